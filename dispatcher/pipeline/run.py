"""The batch run: reads a ledger, calls the transforms, writes their tables."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from dispatcher.errors import ConfigurationError
from dispatcher.pipeline import (
    cost_model,
    fairness,
    hot_groups,
    participants,
    stalls,
)
from dispatcher.pipeline.at_once import at_once
from dispatcher.pipeline.audit_state import Audit
from dispatcher.pipeline.day_tables import write_day_tables
from dispatcher.pipeline.few_rows import PARTS, together
from dispatcher.pipeline.gaps import BOUNDARIES, END_OF_TIME_US, Gap, Window, find_gaps, missing_times
from dispatcher.pipeline.leaderships import RecordedLeadership
from dispatcher.pipeline.ledger_files import Found, find_files
from dispatcher.pipeline.ledger_reading import spark_prefix
from dispatcher.pipeline.lifecycle import UNDECIDED, WAITING
from dispatcher.pipeline.memory import Memory
from dispatcher.pipeline.owners import owners
from dispatcher.pipeline.pieces import Pieces
from dispatcher.pipeline.ranges import ROWS, Ranges
from dispatcher.pipeline.report_folder import (
    COST_MODEL,
    COSTS,
    INSTANT,
    SHARES,
    ReportFolder,
    arrow_table,
    refuse_newer,
    report_folder,
)
from dispatcher.pipeline.session import (
    JAVA_OPTIONS,
    connector_missing_in,
    heap_setting,
    no_room_in,
    text_of,
    without_connector,
)
from dispatcher.pipeline.spark_paths import LOCAL
from dispatcher.pipeline.summary import summarise

#: Wraps a part of the work, and shows its name to the user meanwhile.
Stage = Callable[[str], contextlib.AbstractContextManager[None]]
#: A file's records may be older than its day, and it may be written somewhat after it.
_MARGIN: Final = timedelta(days=1)
_ON_DISK: Final = StorageLevel.DISK_ONLY
#: Few records are sorted before a second core has begun.
_FEW_RECORDS: Final = 50_000
#: What Spark says of a file that is damaged, or not there any more.
_UNREADABLE: Final = ("FAILED_READ_FILE", "FileNotFound", "ParquetDecoding", "PATH_NOT_FOUND")
#: By stage of a run: its part of the work with few records, and with many (docs/benchmarks.md), in percent.
_SHARES: Final = {
    "reading leaderships": (23, 9), "hand-overs": (14, 7), "lifecycle": (9, 10), "order audit": (22, 36),
    "statistics": (13, 31), "hot groups and stalls": (4, 2), "fairness": (12, 3), "cost model": (1, 1),
    "summary": (3, 2),
}  # fmt: skip
#: For ledgers of every size.
_SETTINGS: Final = {
    # Else Spark plans each stage anew when the one before is over, and makes it a job of its own: that takes
    # longer than a better plan saves. The number of parts comes from the ledger's files, and small tables are
    # counted (`few_rows`).
    "spark.sql.adaptive.enabled": "false",
    # To send a table to every machine is a job, too: only those that are known to be small are sent.
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    # To list many folders elsewhere is another one.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
    # What lies in order is aggregated in it, and once where all rows of a key are in one part.
    "spark.sql.execution.replaceHashWithSortAgg": "true",
    # To find how to pack each column of a table that is kept between jobs costs more than it saves.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    # Dates and lanes of a table are written beside each other, without sorting the rows by them.
    "spark.sql.maxConcurrentOutputFileWriters": "64",
}
#: With few records to generate code takes longer than to do without.
_SMALL: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
#: Java verifies the code of each class that it loads: Spark's own, twenty thousand of them.
_UNVERIFIED: Final = "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
#: Room for classes and for compiled code: else Java collects the whole heap four times while it loads Spark's
#: classes, and may throw away what it has compiled.
_ROOM: Final = "-XX:MetaspaceSize=256m -XX:ReservedCodeCacheSize=256m"
#: Up to this many records Java's second compiler takes more time than its faster code saves.
_ONE_COMPILER_RECORDS: Final = 500_000


def look(ledger: str, window: Window, report: Path | None = None) -> Found:
    """The files that a run reads, found without Spark; those that a former run has read for this report are
    not opened. Raises ConfigurationError."""
    known = {}
    if report is not None:
        refuse_newer(report)
        known = Memory.load(report, window).known_files()
    days = [_day(us) for us in (window.since_us, window.until_us)]
    found = find_files(
        ledger,
        days[0] - _MARGIN if days[0] else None,
        days[1] + _MARGIN if days[1] else None,
        known,
    )
    is_local = spark_prefix(ledger, found.root) == LOCAL
    if report is not None and is_local and report.resolve().is_relative_to(Path(found.root).resolve()):
        raise ConfigurationError(f"{report}: lies within the ledger {ledger}: name a directory outside of it")
    return found


def run(
    spark: SparkSession, ledger: str, found: Found, report: Path, window: Window, stage: Stage,
    range_rows: int = ROWS,
) -> dict[str, Any]:  # fmt: skip
    """All jobs, in order; returns the summary. `range_rows`: how many rows of a window lie together at most.
    Raises ConfigurationError."""
    divide_work(spark, _records(found))
    with report_folder(report) as folder, clear_errors(), contextlib.ExitStack() as held:
        folder.note_writer(spark)
        job = _Job(spark, folder, ledger, found, window, Ranges(_records(found), range_rows))
        with stage("reading leaderships"):
            job.read()
        with stage("hand-overs"):
            job.write_hand_overs(held)
        at_once(
            _in_turn(stage, {"lifecycle": job.write_lifecycle, "statistics": job.write_stats}),
            _in_turn(stage, {"order audit": job.write_audit}),
        )
        at_once(
            _in_turn(stage, {"hot groups and stalls": job.write_groups, "cost model": job.write_cost_model}),
            _in_turn(stage, {"fairness": job.write_fairness}),
        )
        with stage("summary"):
            summary = job.summary()
            folder.finish(summary)
        return summary


def _in_turn(stage: Stage, parts: dict[str, Callable[[], None]]) -> Callable[[], None]:
    """Calls these, each as a stage of its name."""

    def work() -> None:
        for name, part in parts.items():
            with stage(name):
                part()

    return work


def fitting(found: Found) -> dict[str, str]:
    """Settings of a session that suit a ledger of this size."""
    return fitting_records(_records(found))


def fitting_records(records: int) -> dict[str, str]:
    """The same, for this number of records."""
    is_small = records <= _FEW_RECORDS
    java = [_UNVERIFIED, _ROOM, "-XX:+UseSerialGC" if is_small else "-XX:+UseParallelGC"]
    if records <= _ONE_COMPILER_RECORDS:
        java.append("-XX:TieredStopAtLevel=1")
    small = _SMALL if is_small else {}
    return {**_SETTINGS, **small, JAVA_OPTIONS: " ".join(java), **heap_setting(records)}


def stage_shares(found: Found) -> dict[str, float]:
    """What part of the work of a run from nothing each stage is, about."""
    place = 0 if _records(found) <= _FEW_RECORDS else 1
    return {name: shares[place] / 100 for name, shares in _SHARES.items()}


def divide_work(spark: SparkSession, records: int) -> None:
    """As many parts as fit into memory, and keep cores busy; what the user has set is left so."""
    if not spark.sparkContext.getConf().contains(PARTS):
        spark.conf.set(PARTS, parts(records, spark.sparkContext.defaultParallelism))


def parts(records: int, cores: int) -> int:
    """How many parts these records are divided into: the cores get one each as far as it is worth a core's
    while, and more where it would not fit into memory."""
    worth = -(-records // _FEW_RECORDS)
    return max(1, min(cores, worth), -(-records // ROWS))


def _records(found: Found) -> int:
    return sum(file.last - file.first + 1 for file in found.files)


class _Job:
    """What the stages of a run hand on."""

    def __init__(
        self, spark: SparkSession, folder: ReportFolder, ledger: str, found: Found, window: Window,
        ranges: Ranges,
    ) -> None:  # fmt: skip
        self.spark, self.folder, self.found, self.window = spark, folder, found, window
        self.ledger, self.ranges = ledger, ranges
        self.gaps: list[Gap] = []

    def read(self) -> None:
        """Read files that former runs have not read; find who led when, and the gaps."""
        self.pieces = Pieces(self.spark, self.folder, self.ledger, self.found, self.window)
        self.leaderships, self.records = self.pieces.leaderships, self.pieces.records
        times = missing_times(self.ledger, self.found, self.leaderships)
        gaps = find_gaps(self.leaderships, self.found.bad, times, self.window)
        self.gaps = [gap for gap in gaps if _overlaps(gap, self.window)]
        self.folder.write_rows("files", _files_table(self.found))
        self.folder.write_rows("gaps", _gaps_table(self.gaps))
        self.folder.write_rows("options", participants.options(self.leaderships))

    def write_hand_overs(self, held: contextlib.ExitStack) -> None:
        held.callback(self.pieces.let_go)
        at_once(lambda: self.pieces.write_hand_overs(self.gaps), self._write_participants)

    def _write_participants(self) -> None:
        told = participants.incarnations(self.spark, self.pieces.all_records, self.leaderships)
        self.folder.write("incarnations", told)
        self.folder.write("owners", owners(self.records))

    def write_lifecycle(self) -> None:
        self.outcomes = self.pieces.write_lifecycle()

    def write_audit(self) -> None:
        Audit(self.spark, self.folder, self.pieces, self.leaderships, self.gaps, self.ranges).write()

    def write_stats(self) -> None:
        write_day_tables(self.spark, self.pieces, _spans_us(self.leaderships, self.window), self.ranges)

    def write_groups(self) -> None:
        shares = self._read(SHARES)
        groups = hot_groups.by_group(shares).persist(_ON_DISK)
        hot = hot_groups.hot_groups(groups).persist(_ON_DISK)
        unended = self._read("hand_overs").where(F.col("ended_at").isNull())
        try:
            found = together({
                "hot_groups": hot, "holders": hot_groups.holders(shares, unended, hot),
                "lanes": hot_groups.concentration(groups),
                "stalls": stalls.stalls(self.pieces.all_records, self.window),
            })  # fmt: skip
        finally:
            for each in hot, groups:
                each.unpersist()
        for name, rows in found.items():
            self.folder.write_rows(name, rows)

    def write_fairness(self) -> None:
        if not fairness.have_choice(self.leaderships):
            self.folder.write_rows("fairness", fairness.NO_ROWS)
            return
        weights = fairness.weights(self.spark, self.leaderships)
        hands, known = self._read("hand_overs"), self.leaderships
        told = fairness.with_pool(self.spark, hands, known, self.ranges)
        left = None
        if self._has(WAITING):
            left = fairness.left_over(self.spark, self._read("lifecycle"), hands, self.records, known)
        self.folder.write("fairness", fairness.fairness(fairness.contested(told, left, weights)))

    def write_cost_model(self) -> None:
        self.folder.write("cost_model", cost_model.cost_model(self._read(COSTS)))
        self.folder.write_json(COST_MODEL, cost_model.exported(self.folder.rows("cost_model")))

    def summary(self) -> dict[str, Any]:
        small = {name: self.folder.rows(name) for name in ("hot_groups", "lanes", "fairness", "stalls")}
        large = {name: self._read(name) for name in ("hand_overs", "violations", "groups")}
        if self._has(*UNDECIDED):
            large["left"] = stalls.left_waiting(self._read("lifecycle"), self.records, self.leaderships)
        found = summarise(large, small, self.outcomes, self.found, self.gaps, self.ledger, self.window)
        return found | {"dates": {"computed": self.pieces.computed, "reused": self.pieces.reused}}

    def _has(self, *outcomes: str) -> bool:
        """Whether a message of any lane has one of these outcomes: Spark takes long to find that none has."""
        return any(outcome in of_lane for of_lane in self.outcomes.values() for outcome in outcomes)

    def _read(self, name: str) -> DataFrame:
        return self.pieces.read(name)


@contextlib.contextmanager
def clear_errors(place: str = "the ledger") -> Iterator[None]:
    """What Spark can't read or write, in one line."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError, OSError) as problem:
        if words := no_room_in(problem):
            raise ConfigurationError(
                f"{words}: the report, or Spark's own files, can't be written: make room, and start again"
            ) from None
        if scheme := connector_missing_in(problem):
            raise without_connector(scheme) from None
        text = text_of(problem)
        file = re.search(r"file:(?://)?(/[^\s,]+?\.parquet)|([a-z0-9]+://[^\s,]+?\.parquet)", text)
        if any(each in text for each in _UNREADABLE):
            name = (file[1] or file[2]) if file else f"a file of {place}"
            raise ConfigurationError(
                f"{name}: can't be read: it is damaged, or was deleted meanwhile; run again without it"
            ) from None
        raise


def _day(time_us: int | None) -> date | None:
    return datetime.fromtimestamp(time_us / 1e6, UTC).date() if time_us is not None else None


def _spans_us(leaderships: list[RecordedLeadership], window: Window) -> dict[str, int]:
    """By lane, from the first record to the last one within the window."""
    ends: dict[str, list[int]] = {}
    for each in leaderships:
        if each.first_us is not None and each.last_us is not None:
            first = max(each.first_us, window.since_us or each.first_us)
            last = min(each.last_us, window.until_us or each.last_us)
            if first <= last:  # else the leadership lies outside
                ends.setdefault(each.lane, []).extend((first, last))
    return {lane: max(times) - min(times) for lane, times in ends.items()}


def _overlaps(gap: Gap, window: Window) -> bool:
    """Whether a gap may hide something of the window; a leadership without records has no times."""
    if window.since_us is not None and gap.until[1] < window.since_us:
        return False
    return window.until_us is None or gap.since[1] < window.until_us


def _files_table(found: Found) -> pa.Table:
    rows: list[tuple[Any, ...]] = [(f.path, f.lane, f.writer, f.first, f.last, None) for f in found.files]
    rows += [(bad.path, bad.lane, bad.writer, bad.first, None, bad.problem) for bad in found.bad]
    return arrow_table(
        rows, path=pa.string(), lane=pa.string(), writer=pa.string(), first_ordinal=pa.int64(),
        last_ordinal=pa.int64(), problem=pa.string(),
    )  # fmt: skip


def _gaps_table(gaps: list[Gap]) -> pa.Table:
    rows = [
        (gap.lane, gap.kind.value, gap.kind in BOUNDARIES, gap.writer, gap.first_ordinal, gap.last_ordinal,
         gap.since[1] or None, gap.until[1] if gap.until[1] < END_OF_TIME_US else None, gap.text)
        for gap in gaps
    ]  # fmt: skip
    return arrow_table(
        rows, lane=pa.string(), kind=pa.string(), is_boundary=pa.bool_(), writer=pa.string(),
        first_ordinal=pa.int64(), last_ordinal=pa.int64(), since=INSTANT, until=INSTANT, text=pa.string(),
    )  # fmt: skip
