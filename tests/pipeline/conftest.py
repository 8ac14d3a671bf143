"""One Spark session for all tests of a process: it takes longer to start than they take."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from bench.pipeline.ledger import Made, make_ledger
from dispatcher.nodes.java import ensure_java
from dispatcher.pipeline.gaps import Window
from dispatcher.pipeline.ledger_files import Found
from dispatcher.pipeline.ranges import ROWS
from dispatcher.pipeline.run import Stage, fitting, look, run
from dispatcher.pipeline.session import spark_session
from tests.once import common_folder, once
from tests.pipeline.planted_gaps import CASES, Verdicts
from tests.pipeline.planted_load import plant_load
from tests.pipeline.planted_owners import plant_owners
from tests.pipeline.planted_readers import DISORDERED, READER_CASES
from tests.pipeline.planted_shares import plant_shares
from tests.pipeline.planted_skew import plant_skew
from tests.pipeline.planted_traffic import plant_traffic
from tests.pipeline.planted_violations import Violation, plant_kept, plant_violations
from tests.pipeline.streams import BATCH_FILES, catch_up

EVERYTHING = Window()
#: URLs and patterns have other ideas of such a name.
LIVE = "100%41 [live]"
#: In s: the first test that needs a report waits until it is made, beside other tests.
_TIMEOUT = 600
#: Of Java processes that live for one test: most of it is loading and compiling what runs once.
QUICK_JAVA = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.get_closest_marker("timeout") is None or item.get_closest_marker("timeout").args[0] < _TIMEOUT:
        item.add_marker(pytest.mark.timeout(_TIMEOUT), append=False)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    ensure_java(print)
    with spark_session("local[1]", fitting(Found("", [], [], []))) as session:
        yield session


class Report:
    """What a run made of a ledger."""

    def __init__(self, folder: Path, summary: dict[str, Any]) -> None:
        self.folder, self.summary = folder, summary

    def table(self, name: str) -> pa.Table:
        return ds.dataset(self.folder / name, partitioning="hive").to_table()

    def rows(self, name: str) -> list[dict[str, Any]]:
        return self.table(name).to_pylist()  # type: ignore[no-any-return]


class Everything(NamedTuple):
    """One run over all the lanes that tests have planted, and what should come of it."""

    report: Report
    kept: set[str]  # lanes
    violations: set[Violation]
    verdicts: dict[str, Verdicts]  # by lane
    made: Made  # a ledger as bench.pipeline has it, with as many more
    readers: dict[str, Verdicts]  # by hand-over lane
    jobs: int  # of Spark, that the run took
    origin: Path  # the ledger that all processes share: only to be read


class _Planted(NamedTuple):
    """`Everything` but the report, and the report's summary."""

    kept: set[str]
    violations: set[Violation]
    verdicts: dict[str, Verdicts]
    made: Made
    readers: dict[str, Verdicts]
    jobs: int
    summary: dict[str, Any]


@pytest.fixture(scope="session")
def common(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of all processes that run tests."""
    return common_folder(tmp_path_factory)


@pytest.fixture(scope="session")
def everything(
    request: pytest.FixtureRequest, common: Path, tmp_path_factory: pytest.TempPathFactory
) -> Everything:
    """Every case is a lane of one ledger: most of a run's time is Spark's own. It is made once, and each
    process has a copy that its tests may add to."""

    def make() -> object:
        planted = _plant_everything(request.getfixturevalue("spark"), common / "planted")
        return tuple(planted.made), planted._asdict() | {"made": None}

    made, others = once(common, "planted", make)
    planted = _Planted(**others | {"made": Made(*made)})
    copy = tmp_path_factory.mktemp("everything") / "copy"
    shutil.copytree(common / "planted", copy)
    report = Report(copy / "report", planted.summary)
    return Everything(report, *planted[:-1], origin=common / "planted" / "ledger")


def _plant_everything(spark: SparkSession, folder: Path) -> _Planted:
    ledger = folder / "ledger"
    plant_kept(ledger)
    kept = {each.name.removeprefix("lane=") for each in ledger.iterdir()}
    violations = plant_violations(ledger)
    verdicts = {name: plant(ledger) for name, plant in CASES.items()}
    plant_traffic(ledger)
    plant_load(ledger)
    plant_skew(ledger)
    plant_shares(ledger)
    plant_owners(ledger)
    made = make_ledger(folder / "ledger", 4_000, 100, planted=4)
    readers = {name: plant(ledger) for name, plant in READER_CASES.items()}
    violations.add(DISORDERED)
    before = jobs_of(spark)
    summary = run_pipeline(spark, folder).summary
    return _Planted(kept, violations, verdicts, made, readers, jobs_of(spark) - before, summary)


def jobs_of(spark: SparkSession) -> int:
    """How many its Spark has had."""
    return int(spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs())


@pytest.fixture(scope="session")
def caught_up(
    request: pytest.FixtureRequest,
    everything: Everything,
    common: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """The tables of a stream over every lane that tests have planted, in several batches."""

    def make() -> None:
        catch_up(request.getfixturevalue("spark"), everything.origin, common / LIVE, BATCH_FILES)

    once(common, "live", make)
    live = tmp_path_factory.mktemp("live") / "live"
    shutil.copytree(common / LIVE, live, symlinks=True)
    return live


def _stage(name: str) -> AbstractContextManager[None]:
    return nullcontext()


def run_pipeline(
    spark: SparkSession, folder: Path, window: Window = EVERYTHING, stage: Stage = _stage,
    range_rows: int = ROWS,
) -> Report:  # fmt: skip
    """What the pipeline makes of the ledger in folder / "ledger"."""
    ledger = str(folder / "ledger")
    found = look(ledger, window, folder / "report")
    summary = run(spark, ledger, found, folder / "report", window, stage, range_rows)
    return Report(folder / "report", summary)
