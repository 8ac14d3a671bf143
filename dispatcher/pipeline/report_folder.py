"""Where results go: tables as Parquet, and `summary.json`, which is there only when all of them are."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, Any, Final

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from dispatcher.errors import ConfigurationError
from dispatcher.pipeline.own_folder import locked, make_own, note_java
from dispatcher.pipeline.session import java_process
from dispatcher.pipeline.spark_paths import read_from, written_to

#: Of a report; raised when an earlier dispatcher would misread it. New tables and columns don't.
LAYOUT: Final = 1
SUMMARY: Final = "summary.json"
LOCK: Final = ".lock"
#: Of a report. Any other file in a folder shows that the folder is not ours.
TABLES: Final = (
    "files", "gaps", "options", "incarnations", "owners", "hand_overs", "lifecycle", "violations", "groups",
    "lane_stats", "consumer_stats", "group_stats", "timeline", "hot_groups", "holders", "lanes", "fairness",
    "cost_model", "stalls",
)  # fmt: skip
#: Tables that other commands add to a finished report, and that say nothing of the next one.
ADDED: Final = ("advise", "plan")
COST_MODEL: Final = "cost_model.json"
#: The page that `pipeline report` makes of it.
PAGE: Final = "report.html"
HAND_OVERS: Final = "hand_overs"
#: What the next run needs of this one, besides its tables.
KEPT: Final = "kept"
RECORDS: Final = f"{KEPT}/records"
#: By day, what other tables are made of.
SHARES: Final = f"{KEPT}/shares"
COSTS: Final = f"{KEPT}/costs"
#: Of the last audit, in a folder of its own.
AUDITED: Final = f"{KEPT}/audit"
MEMORY: Final = "memory.json"
_FILES: Final = (SUMMARY, COST_MODEL, MEMORY)
_OURS: Final = {*TABLES, *ADDED, PAGE, KEPT, *_FILES, *(f".{name}" for name in _FILES), LOCK}
#: `pipeline report` takes a few seconds.
_READERS_END_WITHIN_S: Final = 60.0
_IN_USE: Final = "another run writes its report there: wait for it, or name another directory"


INSTANT: Final = pa.timestamp("us", tz="UTC")


def arrow_table(rows: list[tuple[Any, ...]], **columns: pa.DataType) -> pa.Table:
    """Rows with the columns named, in order."""
    values = list(zip(*rows, strict=True)) or [()] * len(columns)
    arrays = [pa.array(column, kind) for column, kind in zip(values, columns.values(), strict=True)]
    return pa.table(arrays, list(columns))


class ReportFolder:
    """A folder of ours on a disk that all of Spark's machines see."""

    def __init__(self, path: Path, lock: IO[str] | None = None) -> None:
        self.path, self._lock = path, lock
        #: Of tables that were written or read through this object: to find one in files is a job of Spark's.
        self._schemas: dict[str, StructType] = {}

    def note_writer(self, spark: SparkSession) -> None:
        """It writes here from now on."""
        if self._lock is not None:
            note_java(self._lock, java_process(spark))

    def read(self, spark: SparkSession, name: str, schema: StructType | None = None) -> DataFrame:
        """A table, with Spark."""
        known = schema or self._schemas.get(name)
        reader = spark.read if known is None else spark.read.schema(known)
        found = reader.parquet(read_from(self.path / name))
        self._schemas.setdefault(name, found.schema)
        return found

    def read_finished(self, spark: SparkSession, name: str) -> DataFrame:
        """A table that every finished report has. Raises ConfigurationError where it is not there."""
        self._require(name)
        return self.read(spark, name)

    def small_finished(self, name: str, lane: str | None = None) -> pa.Table:
        """The same of a table that fits in memory here, or a lane's rows of it, without Spark."""
        self._require(name)
        try:
            where = None if lane is None else ds.field("lane") == lane
            return ds.dataset(self.path / name).to_table(filter=where)
        except pa.ArrowException as problem:
            raise ConfigurationError(
                f"{self.path / name}: can't be read ({str(problem).partition(chr(10))[0]}): run the pipeline "
                "again"
            ) from None

    def _require(self, name: str) -> None:
        if not (self.path / name).is_dir():
            raise ConfigurationError(
                f"{self.path}: has no table {name}: it was made by another version; run the pipeline again"
            )

    def table(self, name: str) -> str:
        """As Spark wants it to write there."""
        return written_to(self.path / name)

    def write(self, name: str, table: DataFrame, *by: str) -> None:
        """Write a table, in place of a former one; `by` are the columns that its folders name."""
        self._schemas[name] = table.schema
        table.write.partitionBy(*by).option("compression", "zstd").mode("overwrite").parquet(self.table(name))

    def copy(self, name: str, other: str) -> None:
        """Write a table once more, under another name."""
        shutil.copytree(self.path / name, self.path / other)

    def write_rows(self, name: str, rows: pa.Table, schema: StructType | None = None) -> None:
        """The same, of few rows that are here: Spark takes much longer to begin than to write them. `schema`:
        as Spark has it, where known."""
        if schema is not None:
            self._schemas[name] = schema
        shutil.rmtree(self.path / name, ignore_errors=True)
        (self.path / name).mkdir()
        pq.write_table(rows, self.path / name / "part-0.zstd.parquet", compression="zstd")

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Those of a small table."""
        found: list[dict[str, Any]] = ds.dataset(self.path / name).to_table().to_pylist()
        return found

    def hand_overs_by_lane(self) -> dict[str, int]:
        """How many each lane of a finished report has. Raises ConfigurationError."""
        try:
            told = json.loads((self.path / SUMMARY).read_bytes())
            return {name: int(facts["hand_overs"]) for name, facts in told["lanes"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise ConfigurationError(f"{self.path / SUMMARY}: is damaged: run the pipeline again") from None

    def add(self, name: str, table: DataFrame, *by: str) -> None:
        """Write parts of a table, which `keep` has deleted before."""
        self._schemas[name] = table.schema
        table.write.partitionBy(*by).option("compression", "zstd").mode("append").parquet(self.table(name))

    def keep(self, name: str, key: str, values: Collection[str]) -> None:
        """Delete all folders of a table but those of these values of its first folders' column, and what a
        killed run has left."""
        kept = {f"{key}={value}" for value in values}
        for each in (self.path / name).iterdir() if (self.path / name).is_dir() else ():
            if each.name in kept:
                continue
            if each.is_dir():
                shutil.rmtree(each)
            else:
                each.unlink()
        (self.path / name).mkdir(parents=True, exist_ok=True)

    def finish(self, summary: dict[str, Any]) -> None:
        """Write the summary: from now on the report is whole."""
        self.write_json(SUMMARY, {"layout": LAYOUT, **summary})

    def write_json(self, name: str, value: dict[str, Any]) -> None:
        """Write a file of the report as a whole."""
        unfinished = self.path / f".{name}"
        unfinished.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        unfinished.replace(self.path / name)


def refuse_newer(path: Path) -> None:
    """Raises ConfigurationError for a report, finished or not, that a newer dispatcher has laid out."""
    for name in (SUMMARY, MEMORY):
        try:
            layout = json.loads((path / name).read_bytes()).get("layout", 0)
        except (OSError, ValueError, AttributeError):
            continue  # the code that needs the file reports that
        if not isinstance(layout, int) or layout > LAYOUT:
            raise ConfigurationError(
                f"{path}: was made by a newer version of the dispatcher (layout {layout} of reports, and "
                f"this one knows {LAYOUT}): use that version, or make a report in another directory"
            )


@contextlib.contextmanager
def finished_report(path: Path) -> Iterator[ReportFolder]:
    """A report that is whole, to which something is added; ours alone meanwhile, once those that read it have
    ended. Raises ConfigurationError."""
    if not (path / SUMMARY).is_file():
        raise ConfigurationError(
            f"{path}: is no finished report: it has no {SUMMARY} (`dispatcher pipeline run --output {path}` "
            "makes one)"
        )
    refuse_newer(path)
    with locked(path, LOCK, _IN_USE, _READERS_END_WITHIN_S) as lock:
        yield ReportFolder(path, lock)


@contextlib.contextmanager
def report_folder(path: Path) -> Iterator[ReportFolder]:
    """The folder, made if need be, and ours alone meanwhile. Raises ConfigurationError."""
    make_own(path, _OURS, "the report")
    with locked(path, LOCK, _IN_USE) as lock:
        refuse_newer(path)
        for name in ADDED:
            shutil.rmtree(path / name, ignore_errors=True)
        for former in (SUMMARY, PAGE):
            (path / former).unlink(missing_ok=True)
        yield ReportFolder(path, lock)
