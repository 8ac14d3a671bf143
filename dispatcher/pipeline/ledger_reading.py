"""Records from a ledger's files: an explicit schema, every record once, lanes and turns beside them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import reduce
from itertools import groupby
from typing import Any, Final
from urllib.parse import unquote

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

from dispatcher.errors import ConfigurationError
from dispatcher.ledger.schema import COLUMNS, ColumnKind
from dispatcher.pipeline.few_rows import few
from dispatcher.pipeline.gaps import Window
from dispatcher.pipeline.leaderships import (
    GROUPS_MOVING,
    LEADERSHIP_EVENTS,
    TURNS_PER_EPOCH,
    order_writers,
    written_twice,
)
from dispatcher.pipeline.ledger_files import Found, LedgerFile
from dispatcher.pipeline.spark_paths import LOCAL, escaped

_TYPES: Final[dict[ColumnKind, DataType]] = {
    ColumnKind.INSTANT: TimestampType(),
    ColumnKind.INTEGER: LongType(),
    ColumnKind.SMALL: IntegerType(),
    ColumnKind.TEXT: StringType(),
    ColumnKind.BYTES: BinaryType(),
}
#: Of a file: its columns, and those that its folders name.
SCHEMA: Final = StructType(
    [StructField(column.name, _TYPES[column.kind]) for column in COLUMNS]
    + [StructField("lane", StringType()), StructField("date", StringType())]
)
_EPOCH: Final = datetime.fromtimestamp(0, UTC)
#: pyarrow's names of file systems, where Hadoop calls them otherwise.
_HADOOP_SCHEMES: Final = {"s3": "s3a"}


def read_records(spark: SparkSession, path: str, found: Found) -> DataFrame:
    """All records of the files found, each once, with `lane` and `turn`."""
    before = spark_prefix(path, found.root)
    root, names = found.root, [file.path for file in found.files]
    if before == LOCAL:
        root, *names = [_absolute(name) for name in (root, *names)]
    places = list(_by_place(names)) or [(root, [])]  # of no date anything may be new
    parts = [_read_below(spark, before, *each) for each in places]
    records = reduce(DataFrame.unionByName, parts).drop("schema_version")
    twice = written_twice(found)
    if not twice and all(_folder(each) == each.lane for each in found.files):
        turn = F.col("lane_epoch") * F.lit(TURNS_PER_EPOCH)
        return records.withColumnRenamed("folder", "lane").withColumn("turn", turn)
    records = records.join(few(_writers(spark, found)), ["folder", "writer"]).drop("folder")
    return _each_once(records) if twice else records.drop("is_twice")


def _by_place(names: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Files by the folder that has their `lane=…`: old ones may have been moved further down, or the job may
    read several ledgers at once."""
    for place, found in groupby(sorted(names, key=_place), _place):
        yield place, [*found]


def _place(name: str) -> str:
    return name.rsplit("/", 3)[0]


def _read_below(spark: SparkSession, before: str, place: str, names: list[str]) -> DataFrame:
    """Spark refuses to read files of several such places at once."""
    return (
        spark.read.schema(SCHEMA)
        .option("basePath", before + place)
        .parquet(*(before + escaped(name) for name in names))
        .withColumnRenamed("lane", "folder")
    )


def spark_prefix(path: str, root: str) -> str:
    """What Spark wants before the names that pyarrow has for files of this ledger, whose folder is `root`.
    Raises ConfigurationError where it has other names for them."""
    scheme, separator, rest = path.partition("://")
    if not separator or scheme == "file":
        return LOCAL
    place = unquote(rest.partition("?")[0]).rstrip("/")
    spark_path, root = f"{_HADOOP_SCHEMES.get(scheme, scheme)}://{place}", root.rstrip("/")
    if not spark_path.endswith(root):
        raise ConfigurationError(
            f"{path}: stores of this kind are not supported: use s3, gs, hdfs or a directory"
        )
    return spark_path.removesuffix(root)


def _absolute(path: str) -> str:
    import os.path

    return os.path.abspath(path)


def _writers(spark: SparkSession, found: Found) -> DataFrame:
    turns, twice = order_writers(found), written_twice(found)
    rows = sorted({(_folder(each), each.lane, each.writer) for each in found.files})
    writers = [(lane, writer) for _, lane, writer in rows]
    return spark.createDataFrame(pa.table({
        "folder": [folder for folder, _, _ in rows],
        "lane": [lane for lane, _ in writers],
        "writer": [writer for _, writer in writers],
        "turn": pa.array([turns[each] for each in writers], pa.int64()),
        "is_twice": [each in twice for each in writers],
    }))  # fmt: skip


def _folder(file: LedgerFile) -> str:
    """The value of its folder `lane=…` as Spark reads it, byte by byte."""
    return unquote(file.path.rsplit("/", 3)[1].removeprefix("lane="), encoding="latin-1")


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


def micros_of(time: datetime) -> int:
    """The same of a time that was read without Spark."""
    return (time - _EPOCH) // timedelta(microseconds=1)


def is_fact() -> Column:
    """Of the records of leaderships, and of moves that overlap on purpose."""
    return F.col("event").isin([*LEADERSHIP_EVENTS, GROUPS_MOVING])


def fact_columns() -> list[Column | str]:
    """What `leaderships.fact` makes facts of."""
    time_us = micros("time").alias("time_us")
    return ["lane", "writer", "ordinal", time_us, "event", "reason", "messages", "detail"]


def fact_rows(records: DataFrame, *kept: str) -> list[dict[str, Any]]:
    """What `leaderships.fact` makes facts of; with columns to keep."""
    rows = records.where(is_fact()).select(*kept, *fact_columns())
    return [row.asDict() for row in rows.collect()]
