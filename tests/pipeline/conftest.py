"""One Spark session for all tests of a process: it takes longer to start than they take."""

from __future__ import annotations

import fcntl
import os
import pickle
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
from dispatcher.pipeline.run import Stage, fitting, look, run
from dispatcher.pipeline.session import spark_session
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
#: In s: the first test that needs a report waits until it is made, beside other tests.
_TIMEOUT = 600


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
    readers: dict[str, Verdicts]  # by lane that hands over


class _Planted(NamedTuple):
    """`Everything` but the report, and the report's summary."""

    kept: set[str]
    violations: set[Violation]
    verdicts: dict[str, Verdicts]
    made: Made
    readers: dict[str, Verdicts]
    summary: dict[str, Any]


@pytest.fixture(scope="session")
def everything(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Everything:
    """Every case is a lane of one ledger: most of a run's time is Spark's own. Of several processes that run
    tests the first one makes it, and each has a copy that its tests may add to."""
    mine = tmp_path_factory.mktemp("everything")
    is_one_of_several = "PYTEST_XDIST_WORKER" in os.environ
    common = tmp_path_factory.getbasetemp().parent if is_one_of_several else mine
    done = common / "planted.pickle"
    with (common / "planted.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            planted = _plant_everything(request.getfixturevalue("spark"), common / "planted")
            done.write_bytes(pickle.dumps([tuple(planted.made), planted._asdict() | {"made": None}]))
    made, others = pickle.loads(done.read_bytes())
    planted = _Planted(**others | {"made": Made(*made)})
    shutil.copytree(common / "planted", mine / "copy")
    return Everything(Report(mine / "copy" / "report", planted.summary), *planted[:-1])


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
    made = make_ledger(folder / "ledger", 8_000, 100, planted=4)
    readers = {name: plant(ledger) for name, plant in READER_CASES.items()}
    violations.add(DISORDERED)
    return _Planted(kept, violations, verdicts, made, readers, run_pipeline(spark, folder).summary)


@pytest.fixture(scope="session")
def caught_up(everything: Everything, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tables of a stream over every lane that tests have planted, in several batches."""
    live = tmp_path_factory.mktemp("live") / "live"
    catch_up(spark, everything.report.folder.parent / "ledger", live, BATCH_FILES)
    return live


def _stage(name: str) -> AbstractContextManager[None]:
    return nullcontext()


def run_pipeline(
    spark: SparkSession, folder: Path, window: Window = EVERYTHING, stage: Stage = _stage
) -> Report:
    """What the pipeline makes of the ledger in folder / "ledger"."""
    ledger = str(folder / "ledger")
    summary = run(spark, ledger, look(ledger, window, folder / "report"), folder / "report", window, stage)
    return Report(folder / "report", summary)
