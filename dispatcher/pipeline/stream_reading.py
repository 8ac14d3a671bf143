"""What a batch of a stream reads: files that are new, judged, and of their records those that are new."""

from __future__ import annotations

import os.path
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple
from urllib.parse import quote

import pyarrow as pa
from pyarrow import fs
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from dispatcher.ledger.schema import FILE_SUFFIX, Event
from dispatcher.pipeline.hand_overs import ENDS
from dispatcher.pipeline.leaderships import Fact, fact
from dispatcher.pipeline.ledger_files import NAME, BadFile, LedgerFile, judge, open_ledger
from dispatcher.pipeline.ledger_reading import (
    SCHEMA,
    fact_columns,
    is_fact,
    micros,
    spark_prefix,
)
from dispatcher.pipeline.spark_paths import LOCAL, escaped
from dispatcher.pipeline.stream_state import Span, StreamState, Writer

#: What Spark's file source says of a file, its content apart.
ARRIVALS: Final = "path string, modificationTime timestamp, length bigint, content binary"
_OF_FILE: Final = StructType([field for field in SCHEMA if field.name not in ("lane", "date")])
_READERS: Final = 16
#: A file may be deleted between two looks.
_TRIES: Final = 5


class Part(NamedTuple):
    """Of a file, records that have not been read before."""

    path: str
    lane: str
    writer: str
    first: int
    last: int


class LedgerLocation:
    """A ledger's place, for pyarrow and for Spark. Raises ConfigurationError when there is none."""

    def __init__(self, path: str) -> None:
        self.store, root = open_ledger(path)
        root = root.rstrip("/")
        self._before = spark_prefix(path, root)
        self.root = os.path.abspath(root) if self._before == LOCAL else root
        #: As a name, and as a pattern that Spark takes for this place alone.
        self.url = self._before + self.root
        self.pattern = self._before + escaped(self.root)

    def name(self, spark_path: str) -> str:
        """A file by the name that pyarrow has for it."""
        return spark_path[spark_path.index(self.root) :]

    def read(self, spark: SparkSession, parts: list[Part]) -> DataFrame:
        """The records of these parts, with `lane` and `part`, a place in the list. A file that is damaged
        inside has less of them than it should."""
        records = (
            spark.read.schema(_OF_FILE)
            .options(ignoreCorruptFiles=True, ignoreMissingFiles=True, recursiveFileLookup=True)
            .parquet(*sorted({self._before + escaped(part.path) for part in parts}))
            .withColumn("uri", F.url_decode(F.replace("_metadata.file_path", F.lit("+"), F.lit("%2B"))))
        )
        table = pa.table({
            "path": [part.path for part in parts],
            "lane": [part.lane for part in parts],
            "part": pa.array(range(len(parts)), pa.int32()),
            "first": pa.array([part.first for part in parts], pa.int64()),
            "last": pa.array([part.last for part in parts], pa.int64()),
        })  # fmt: skip
        known = F.broadcast(spark.createDataFrame(table))
        path = F.substring("uri", F.instr("uri", F.lit(self.root)), F.length("uri"))
        found = records.withColumn("path", path).join(known, "path")
        return found.where(F.col("ordinal").between(F.col("first"), F.col("last"))).drop(
            "uri", "path", "first", "last", "schema_version"
        )

    def unread(self, state: StreamState, lane: str) -> list[tuple[int, int]]:
        """Files that are there and were not read so far: lane epoch and first ordinal."""
        folder = f"{self.root}/lane={quote(lane, safe='')}"
        bad = {each.path for each in state.bad}
        found = []
        listed = self.store.get_file_info(fs.FileSelector(folder, allow_not_found=True, recursive=True))
        for info in listed:
            name = NAME.fullmatch(info.base_name.removesuffix(FILE_SUFFIX))
            if name is None or info.path in bad:
                continue
            writer = state.writers.get((lane, name[1]))
            if writer is None or not writer.covers(int(name[3])):
                found.append((int(name[2]), int(name[3])))
        return found

    def empty_beside(self, names: Iterable[str]) -> set[str]:
        """Files without content in the folders of these: Spark's file source does not tell of them."""
        folders = {name.rpartition("/")[0] for name in names}
        return {
            info.path
            for folder in folders
            for info in self.store.get_file_info(fs.FileSelector(folder, allow_not_found=True))
            if info.type is fs.FileType.File and not info.size and not info.base_name.startswith((".", "_"))
        }


def parts_of(
    ledger: LedgerLocation, state: StreamState, arrived: Iterable[str]
) -> tuple[list[Part], list[BadFile]]:
    """The new parts of these files (Spark's names of them), and the files that can't be read."""
    names = {ledger.name(path) for path in arrived}
    names |= ledger.empty_beside(names) - {each.path for each in state.bad}
    with ThreadPoolExecutor(_READERS) as readers:
        judged = list(readers.map(lambda name: judge(ledger.store, name), sorted(names)))
    parts: list[Part] = []
    taken: dict[tuple[str, str], Writer] = {}  # what of each writer is read then
    files = [each for each in judged if isinstance(each, LedgerFile)]
    for file in sorted(files, key=lambda each: (each.lane, each.lane_epoch, each.writer, each.first)):
        known = state.writer(file)
        then = taken.setdefault(
            (file.lane, file.writer), Writer(file.lane, file.writer, file.lane_epoch, list(known.spans))
        )
        for first, last in then.missing_of(file.first, file.last):
            then.add(Span(first, last, 0, 0, None, None))
            parts.append(Part(file.path, file.lane, file.writer, first, last))
    return parts, [each for each in judged if isinstance(each, BadFile)]


class ReadBatch(NamedTuple):
    """A batch's new records, and what they reach over. Partial ends lack what another leader knew."""

    records: DataFrame | None
    bad: list[BadFile]
    facts: list[Fact]
    has_partial_ends: bool


def read_parts(
    spark: SparkSession, ledger: LedgerLocation, state: StreamState, parts: list[Part]
) -> ReadBatch:
    """Read these parts, note in the state what they reach over, and name the files that are damaged inside.
    The records are persisted."""
    for attempt in range(_TRIES):
        try:
            return _read_parts(spark, ledger, state, _existing(ledger, parts))
        except AnalysisException:
            if attempt == _TRIES - 1:
                raise
    raise AssertionError("unreachable")


def _existing(ledger: LedgerLocation, parts: list[Part]) -> list[Part]:
    """Without those whose file was deleted since: they are a gap by their numbers."""
    infos = ledger.store.get_file_info([part.path for part in parts]) if parts else []
    return [part for part, info in zip(parts, infos, strict=True) if info.type is not fs.FileType.NotFound]


def _read_parts(
    spark: SparkSession, ledger: LedgerLocation, state: StreamState, parts: list[Part]
) -> ReadBatch:
    if not parts:
        return ReadBatch(None, [], [], has_partial_ends=False)
    records = ledger.read(spark, parts).persist()
    is_end = ~F.col("event").isin([Event.DISPATCHED, Event.RECEIVED])
    is_partial = F.col("event").isin(ENDS) & F.col("seq").isNotNull() & F.col("dispatched_at").isNull()
    rows = records.groupBy("part").agg(
        F.count("*").alias("count"), micros(F.min("time")).alias("first_us"),
        micros(F.max("time")).alias("last_us"), F.max("epoch").alias("epoch_max"),
        micros(F.min(F.when(is_end, F.col("time")))).alias("first_end_us"),
        F.max(is_partial).alias("is_partial"),
        F.collect_list(F.when(is_fact(), F.struct(*fact_columns()))).alias("facts"),
    ).collect()  # fmt: skip
    found = {row["part"]: row for row in rows}
    bad, damaged, facts = [], [], []
    for number, part in enumerate(parts):
        row, wanted = found.get(number), part.last - part.first + 1
        writer = state.writers[part.lane, part.writer]
        if row is None or row["count"] != wanted:
            had = row["count"] if row else 0
            damaged.append(number)
            bad.append(BadFile(
                part.path, part.lane, f"is damaged inside: {had:,} of {wanted:,} records can be read",
                part.writer, writer.lane_epoch, part.first,
            ))  # fmt: skip
            continue
        writer.add(Span(
            part.first, part.last, row["first_us"], row["last_us"], row["first_end_us"], row["epoch_max"],
        ))  # fmt: skip
        facts += [fact(each) for each in row["facts"]]
        state.clocks[part.lane] = max(state.clocks.get(part.lane, 0), row["last_us"])
    whole = records.where(~F.col("part").isin(damaged)) if damaged else records
    return ReadBatch(whole, bad, facts, any(row["is_partial"] for row in rows))
