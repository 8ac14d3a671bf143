"""Records from a ledger's files: an explicit schema, every record once, lanes and turns beside them."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from dispatcher.ledger.schema import COLUMNS, Kind
from dispatcher.pipeline.gaps import Window
from dispatcher.pipeline.leaderships import (
    GROUPS_MOVING,
    LEADERSHIP_EVENTS,
    Fact,
    fact,
    order_writers,
    written_twice,
)
from dispatcher.pipeline.ledger_files import Found

_TYPES: Final[dict[Kind, DataType]] = {
    Kind.INSTANT: TimestampType(),
    Kind.INTEGER: LongType(),
    Kind.SMALL: IntegerType(),
    Kind.TEXT: StringType(),
    Kind.BYTES: BinaryType(),
}
#: Of a file: its columns, and those that its folders name.
SCHEMA: Final = StructType(
    [StructField(column.name, _TYPES[column.kind]) for column in COLUMNS]
    + [StructField("lane", StringType()), StructField("date", StringType())]
)
#: pyarrow's names of file systems, where Hadoop calls them otherwise.
HADOOP_SCHEMES: Final = {"s3": "s3a"}


def read_records(spark: SparkSession, path: str, found: Found) -> DataFrame:
    """All records of the files found, each once, with `lane` and `turn`."""
    prefix, separator, _ = path.partition("://")
    scheme = f"{HADOOP_SCHEMES.get(prefix, prefix)}://" if separator else "file://"
    if scheme == "file://":
        root = pa.fs.FileSystem.from_uri(path)[1] if separator else _absolute(found.root)
        names = [_absolute(file.path) for file in found.files]
    else:
        root, names = found.root, [file.path for file in found.files]
    records = (
        spark.read.schema(SCHEMA)
        .option("basePath", scheme + root)
        .parquet(*(scheme + escaped(name) for name in names))
        .withColumnRenamed("lane", "folder")
        .drop("schema_version")
    )
    records = records.join(F.broadcast(_writers(spark, found)), ["folder", "writer"]).drop("folder")
    return _each_once(records) if written_twice(found) else records.drop("is_twice")


def _absolute(path: str) -> str:
    import os.path

    return os.path.abspath(path)


def escaped(path: str) -> str:
    """Spark takes paths for patterns."""
    return "".join(f"\\{letter}" if letter in "{}[]*?\\" else letter for letter in path)


def _writers(spark: SparkSession, found: Found) -> DataFrame:
    turns, twice = order_writers(found), written_twice(found)
    rows = sorted({(each.folder, each.lane, each.writer) for each in found.files})
    writers = [(lane, writer) for _, lane, writer in rows]
    return spark.createDataFrame(pa.table({
        "folder": [folder for folder, _, _ in rows],
        "lane": [lane for lane, _ in writers],
        "writer": [writer for _, writer in writers],
        "turn": pa.array([turns[each] for each in writers], pa.int64()),
        "is_twice": [each in twice for each in writers],
    }))  # fmt: skip


def _each_once(records: DataFrame) -> DataFrame:
    """Without the repetitions of files that were copied, of which only some writers have any."""
    repeated = records.where("is_twice").dropDuplicates(["lane", "writer", "ordinal"])
    return records.where("not is_twice").unionByName(repeated).drop("is_twice")


def within(records: DataFrame, window: Window) -> DataFrame:
    """Those whose `time` is within the window."""
    if window.since_us is not None:
        records = records.where(F.col("time") >= F.timestamp_micros(F.lit(window.since_us)))
    if window.until_us is not None:
        records = records.where(F.col("time") < F.timestamp_micros(F.lit(window.until_us)))
    return records


def micros(column: str | Column) -> Column:
    """An instant in µs since 1970."""
    return F.unix_micros(F.col(column) if isinstance(column, str) else column)


def read_facts(records: DataFrame) -> list[Fact]:
    """The records of leaderships, and of moves that overlap on purpose."""
    return [fact(row) for row in fact_rows(records)]


def fact_rows(records: DataFrame, *kept: str) -> list[dict[str, Any]]:
    """What `leaderships.fact` makes facts of; with columns to keep."""
    wanted = records.where(F.col("event").isin([*LEADERSHIP_EVENTS, GROUPS_MOVING]))
    rows = wanted.select(
        *kept, "lane", "writer", "ordinal", micros("time").alias("time_us"), "event", "reason", "messages",
        "detail",
    )  # fmt: skip
    return [row.asDict() for row in rows.collect()]
