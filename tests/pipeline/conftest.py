"""One Spark session for all tests of a process: it takes longer to start than they take."""

from __future__ import annotations

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
from dispatcher.pipeline.run import fitting, look, run
from dispatcher.pipeline.session import spark_session
from tests.pipeline.planted_gaps import CASES, Verdicts
from tests.pipeline.planted_load import plant_load
from tests.pipeline.planted_readers import DISORDERED, READER_CASES
from tests.pipeline.planted_skew import plant_skew
from tests.pipeline.planted_traffic import plant_traffic
from tests.pipeline.planted_violations import Violation, plant_kept, plant_violations

EVERYTHING = Window()


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


@pytest.fixture(scope="session")
def everything(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Everything:
    """Every case is a lane of one ledger: most of a run's time is Spark's own."""
    folder = tmp_path_factory.mktemp("planted")
    ledger = folder / "ledger"
    plant_kept(ledger)
    kept = {each.name.removeprefix("lane=") for each in ledger.iterdir()}
    violations = plant_violations(ledger)
    verdicts = {name: plant(ledger) for name, plant in CASES.items()}
    plant_traffic(ledger)
    plant_load(ledger)
    plant_skew(ledger)
    made = make_ledger(folder / "ledger", 8_000, 100, planted=4)
    readers = {name: plant(ledger) for name, plant in READER_CASES.items()}
    violations.add(DISORDERED)
    return Everything(run_pipeline(spark, folder), kept, violations, verdicts, made, readers)


def _stage(name: str) -> AbstractContextManager[None]:
    return nullcontext()


def run_pipeline(spark: SparkSession, folder: Path, window: Window = EVERYTHING) -> Report:
    """What the pipeline makes of the ledger in folder / "ledger"."""
    ledger = str(folder / "ledger")
    summary = run(spark, ledger, look(ledger, window), folder / "report", window, _stage)
    return Report(folder / "report", summary)
