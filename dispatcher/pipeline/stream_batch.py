"""One batch of a stream: from the files that came to alerts, live tables, and what the next one needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from dispatcher.pipeline.gaps import BOUNDARIES, END_OF_TIME_US, Gap, GapKind
from dispatcher.pipeline.leaderships import RecordedLeadership
from dispatcher.pipeline.ledger_files import BadFile
from dispatcher.pipeline.live_folder import KEPT, STATE, LiveFolder
from dispatcher.pipeline.ranges import Ranges
from dispatcher.pipeline.spark_paths import read_from, written_to
from dispatcher.pipeline.stream_alerts import alerts_table, gap_name
from dispatcher.pipeline.stream_audit import (
    KEPT_SCHEMA,
    NO_VIOLATIONS,
    combined,
    found_hand_overs,
    kept,
    new_violations,
    without_repeated,
)
from dispatcher.pipeline.stream_minutes import LiveStatistics, added
from dispatcher.pipeline.stream_reading import LedgerLocation, ReadBatch, parts_of, read_parts
from dispatcher.pipeline.stream_state import StreamState, add_facts

_FILES: Final = pa.schema([
    ("path", pa.string()), ("lane", pa.string()), ("writer", pa.string()), ("first_ordinal", pa.int64()),
    ("problem", pa.string()),
])  # fmt: skip
_INSTANT: Final = pa.timestamp("us", "UTC")
_GAPS: Final = pa.schema([
    ("lane", pa.string()), ("kind", pa.string()), ("is_boundary", pa.bool_()), ("writer", pa.string()),
    ("first_ordinal", pa.int64()), ("last_ordinal", pa.int64()), ("since", _INSTANT), ("until", _INSTANT),
    ("text", pa.string()),
])  # fmt: skip


class RetentionLimits(NamedTuple):
    """How long ended hand-overs count."""

    forget_us: int  # for the audit
    keep_us: int  # in the tables


class BatchReport(NamedTuple):
    """The results of a batch, for the progress output."""

    files: int
    alerts: int


class _Judged(NamedTuple):
    """A batch's records and hand-overs, with those of former ones that count, and their violations."""

    records: DataFrame
    found: DataFrame
    violations: pa.Table


class Batches:
    """Makes one batch after another from what the former one has left in the folder."""

    def __init__(
        self, spark: SparkSession, ledger: LedgerLocation, folder: LiveFolder, limits: RetentionLimits,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:  # fmt: skip
        self.spark, self.ledger, self.folder, self.limits, self.now = spark, ledger, folder, limits, now
        self.state, self.statistics = StreamState(), LiveStatistics()
        self.former: Path | None = None
        if folder.last is not None:
            self.former = folder.batch(folder.last)
            self.state = StreamState.read(self.former / STATE)
            self.statistics = LiveStatistics.read(self.former)

    def make(self, number: int, arrived: Iterable[str], tell: Callable[[pa.Table], None]) -> BatchReport:
        """Read these files and write the batch of that number; former batches stay as they are.
        `tell` is called with its alerts as soon as a kill does not undo them; a batch that was killed then
        tells them again."""
        paths = list(arrived)
        parts, bad = parts_of(self.ledger, self.state, paths)
        read = read_parts(self.spark, self.ledger, self.state, parts)
        bad += read.bad
        self.state.bad += bad
        unfinished = self.folder.begin(number)
        add_facts(self.state, read.facts)
        known = self.state.leaderships()
        gaps = self.state.gaps(known)
        raised, waiting = self._new_gaps(gaps)
        ranges = Ranges(sum(part.last - part.first + 1 for part in parts))
        judged = self._judge(read, known, gaps, ranges)
        violations = NO_VIOLATIONS if judged is None else judged.violations
        alerts = self.folder.raise_alerts(number, alerts_table(violations, raised, bad, self.now()))
        tell(alerts)
        if judged is not None:
            self._keep(unfinished, judged, waiting, read.records)
        self.spark.catalog.clearCache()
        self._write_tables(unfinished, gaps)
        self.folder.commit(number)
        self.former = self.folder.batch(number)
        return BatchReport(len(paths), len(alerts))

    def _judge(
        self, read: ReadBatch, known: list[RecordedLeadership], gaps: list[Gap], ranges: Ranges
    ) -> _Judged | None:
        """Violations that were not said before, and what they were found in; None: there is nothing."""
        new, old = read.records, self._kept()
        if new is None and old is None:
            return None
        records = combined(self.spark, new, old, known, self.state.clocks, self.limits.forget_us)
        if read.has_partial_ends:
            records = without_repeated(self.spark, records, self.state.ended)
        # Plans are cut here: to make one takes longer than to compute a batch.
        records = records.localCheckpoint()
        found = found_hand_overs(self.spark, records, known, gaps).localCheckpoint()
        return _Judged(records, found, new_violations(self.spark, found, known, ranges))

    def _keep(self, unfinished: Path, judged: _Judged, waiting: list[str], new: DataFrame | None) -> None:
        """Write what the next batch needs, and count."""
        records, found, violations = judged
        left = kept(self.spark, records, found, violations, waiting)
        left.write.option("compression", "zstd").parquet(written_to(unfinished / KEPT))
        rows = added(found, new).toArrow().to_pylist()
        self.statistics.add(rows)
        for row in rows:
            if row["seq"] is not None and row["incarnation"] is not None:
                self.state.told_end(row["lane"], row["incarnation"], row["seq"])

    def _kept(self) -> DataFrame | None:
        if self.former is None or not (self.former / KEPT).exists():
            return None
        return self.spark.read.schema(KEPT_SCHEMA).parquet(read_from(self.former / KEPT))

    def _new_gaps(self, gaps: list[Gap]) -> tuple[list[Gap], list[str]]:
        """Gaps to raise now, and the lanes in which a file that is there already may close one: it comes in
        one of the next batches."""
        raised, waiting = [], set()
        unread: dict[str, list[tuple[int, int]]] = {}
        for gap in gaps:
            name = tuple("" if part is None else part for part in gap_name(gap))
            if gap.kind in BOUNDARIES or name in self.state.gaps_raised:
                continue
            if gap.lane not in unread:
                unread[gap.lane] = self.ledger.unread(self.state, gap.lane)
            if gap.kind is not GapKind.DROPPED and any(each < _end(gap) for each in unread[gap.lane]):
                waiting.add(gap.lane)
                continue
            self.state.gaps_raised.add(name)
            raised.append(gap)
        return raised, sorted(waiting)

    def _write_tables(self, folder: Path, gaps: list[Gap]) -> None:
        self.state.forget(self.limits.forget_us)
        self.statistics.forget(self.state.clocks, self.limits.keep_us)
        self.state.write(folder / STATE)
        self.statistics.write(folder)
        pq.write_table(_files_table(self.state.bad), folder / "files.parquet")
        pq.write_table(_gaps_table(gaps), folder / "gaps.parquet")


def _end(gap: Gap) -> tuple[int, int]:
    """The lane epoch and the ordinal behind a gap: files that may close it come before."""
    epoch = int(gap.writer.partition("-")[0])
    if gap.kind is GapKind.NO_LEDGER:
        return epoch, 0
    return (epoch, gap.last_ordinal + 1) if gap.last_ordinal is not None else (epoch + 1, 0)


def _files_table(bad: list[BadFile]) -> pa.Table:
    rows = [(each.path, each.lane, each.writer, each.first, each.problem) for each in bad]
    return pa.Table.from_pylist([dict(zip(_FILES.names, row, strict=True)) for row in rows], _FILES)


def _gaps_table(gaps: list[Gap]) -> pa.Table:
    rows: list[dict[str, Any]] = [
        {"lane": gap.lane, "kind": gap.kind.value, "is_boundary": gap.kind in BOUNDARIES,
         "writer": gap.writer, "first_ordinal": gap.first_ordinal, "last_ordinal": gap.last_ordinal,
         "since": gap.since[1] or None, "text": gap.text,
         "until": gap.until[1] if gap.until[1] < END_OF_TIME_US else None}
        for gap in gaps
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, _GAPS)
