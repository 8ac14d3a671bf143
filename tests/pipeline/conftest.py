"""One Spark session for all tests of a process: it takes longer to start than they take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from dispatcher.nodes.java import ensure_java
from dispatcher.pipeline.gaps import Window
from dispatcher.pipeline.run import run
from dispatcher.pipeline.session import spark_session

#: What costs most with little data is compiling.
_QUICK = {
    "spark.sql.shuffle.partitions": "1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.adaptive.enabled": "false",
}

EVERYTHING = Window()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    ensure_java(print)
    with spark_session("local[1]", _QUICK) as session:
        yield session


class Report:
    """What a run made of a ledger."""

    def __init__(self, folder: Path, summary: dict[str, Any]) -> None:
        self.folder, self.summary = folder, summary

    def table(self, name: str) -> pa.Table:
        return ds.dataset(self.folder / name, partitioning="hive").to_table()

    def rows(self, name: str) -> list[dict[str, Any]]:
        return self.table(name).to_pylist()  # type: ignore[no-any-return]

    def verdicts(self) -> dict[str, str]:
        return {each["group"]: each["verdict"] for each in self.rows("groups")}


def _stage(name: str) -> AbstractContextManager[None]:
    return nullcontext()


def run_pipeline(spark: SparkSession, folder: Path, window: Window = EVERYTHING) -> Report:
    """What the pipeline makes of the ledger in folder / "ledger"."""
    summary = run(spark, str(folder / "ledger"), folder / "report", window, _stage)
    return Report(folder / "report", summary)
