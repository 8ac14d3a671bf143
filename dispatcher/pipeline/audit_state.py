"""What an audit keeps of the hand-overs that it has judged, so that the next one need not judge them again.

A hand-over is judged by the rows of its group before it. So rows that have ended, and that lie before all
that have not, can be replaced by a few facts for each group, queue and incarnation: the latest place, the
latest end, the last row. These facts become rows that stand for many (`_standing`), and go through the same
rules (`order_audit.screened`). If new rows lie before them, or if hand-overs that several dates tell together
have changed, a group is judged anew from all its hand-overs.
"""

from __future__ import annotations

from typing import Final

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from dispatcher.ledger.schema import Event
from dispatcher.pipeline import order_audit
from dispatcher.pipeline.few_rows import FEW, few
from dispatcher.pipeline.gaps import Gap
from dispatcher.pipeline.hand_overs import OPEN
from dispatcher.pipeline.leaderships import RecordedLeadership
from dispatcher.pipeline.order_audit import GROUP, NUMBERS, SCREENED
from dispatcher.pipeline.pieces import ACROSS, DATE, Pieces
from dispatcher.pipeline.ranges import RANGE, Ranges, within_range
from dispatcher.pipeline.report_folder import AUDITED, HAND_OVERS, ReportFolder

#: Incarnations before queues: in that order those of a group are counted.
_KEY: Final = (*GROUP, "incarnation", "inbound")
_HASH: Final = "group_hash"
#: What is kept: the state, holes, and rows that are to be judged again, in one table; and `violations`.
_ROWS, _VIOLATIONS = "rows", "violations"
_STATE, _HOLES, _LEFT = "state", "holes", "left"
#: Columns of `_sums`, and how several rows of a key become one.
_MERGED: Final = {
    "hand_overs": F.sum, "open": F.sum, "first_at": F.min, "last_at": F.max, "because": F.min,
    "is_remarkable": F.max, "began": F.max, "ended": F.max, "place": F.max, "stayed": F.max,
    "settled": F.max, "last": F.max, "across": F.sum, "across_hash": F.bit_xor,
}  # fmt: skip


class Audit:
    """Of one run. `write` writes the tables `violations` and `groups`, and what the next run needs."""

    def __init__(
        self, spark: SparkSession, folder: ReportFolder, pieces: Pieces, known: list[RecordedLeadership],
        gaps: list[Gap], ranges: Ranges,
    ) -> None:  # fmt: skip
        self._spark, self._folder, self._pieces = spark, folder, pieces
        self._known, self._gaps, self._ranges = known, gaps, ranges
        self._persisted: list[DataFrame] = []
        self._former = pieces.audited
        self._hands = order_audit.judged(pieces.read(HAND_OVERS)).withColumn("is_carried", F.lit(False))

    def write(self) -> None:
        try:
            self._write()
        finally:
            for each in self._persisted:
                each.unpersist()

    def _write(self) -> None:
        state = self._state()
        rows = self._rows(state)
        marked = order_audit.screened(
            rows, self._ranges, DATE, "is_carried", queues=self._pieces.queues
        ).where("not is_carried")
        is_part = self._pieces.window.since_us is not None
        marked = order_audit.with_doubts(self._spark, marked, self._known, is_part=is_part)
        sums = self._persist(_sums(marked))
        both = sums
        if state is not None:
            known = state.withColumns({"is_over": F.lit(True), _HASH: F.xxhash64(*GROUP)})
            both = sums.unionByName(known, allowMissingColumns=True)
        self._write_violations(both)
        groups = self._persist(_groups(both))
        holes = self._holes(sums, groups)
        hidden = order_audit.hidden(self._spark, holes, self._gaps)
        found = order_audit.verdicts(groups, self._pieces.read("violations"), hidden)
        self._folder.write("groups", found)
        if self._pieces.is_apart:
            self._keep(sums, both)

    def _persist(self, table: DataFrame) -> DataFrame:
        self._persisted.append(table.persist(StorageLevel.DISK_ONLY))
        return table

    def _kept(self, kind: str, *columns: str) -> DataFrame:
        rows = self._pieces.read(f"{AUDITED}/{self._former}/{_ROWS}")
        return rows.where(F.col("kind") == kind).select(*columns)

    def _state(self) -> DataFrame | None:
        """What the former run has kept of groups that need not be judged anew; these are `self._stale`."""
        if self._former is None:
            return None
        state = self._kept(_STATE, *_KEY, *_MERGED)
        self._cuts = self._persist(state.groupBy(*GROUP).agg(
            F.max("last.numbers").alias("cut"), F.sum("across").alias("across"),
            F.bit_xor("across_hash").alias("across_hash"),
        ))  # fmt: skip
        self._stale = self._persist(self._changed().distinct())
        return state.join(self._stale, [*GROUP], "left_anti")

    def _changed(self) -> DataFrame:
        """Groups with new rows before the kept ones, or with other rows across dates than then."""
        numbers = F.struct(*NUMBERS)
        before = self._new().join(self._cuts, [*GROUP]).where(numbers <= F.col("cut")).select(*GROUP)
        told = self._across().select(*GROUP, numbers.alias("numbers"), _fingerprint().alias("print"))
        now = (
            told.join(self._cuts.select(*GROUP, "cut"), [*GROUP])
            .where("numbers <= cut")
            .groupBy(*GROUP)
            .agg(F.count("*").alias("now"), F.bit_xor("print").alias("now_hash"))
        )
        is_same = (F.coalesce("now", F.lit(0)) == F.col("across")) & (
            F.coalesce("now_hash", F.lit(0)) == F.col("across_hash")
        )
        return before.unionByName(
            self._cuts.join(now, [*GROUP], "left").where(~is_same).select(*GROUP)
        )  # fmt: skip

    def _new(self) -> DataFrame:
        return self._hands.where(F.col(DATE).isin(self._pieces.unaudited))

    def _across(self) -> DataFrame:
        return self._hands.where(F.col(DATE) == ACROSS)

    def _rows(self, state: DataFrame | None) -> DataFrame:
        """The rows to judge, and before them those that stand for judged rows."""
        if state is None:
            return self._hands
        columns = [*SCREENED, DATE, "is_carried"]
        cuts = self._cuts.select(*GROUP, "cut")
        is_behind = F.col("cut").isNull() | (F.struct(*NUMBERS) > F.col("cut"))
        across = self._across().join(cuts, [*GROUP], "left").where(is_behind).select(*columns)
        left = self._kept(_LEFT, *SCREENED, DATE).withColumn("is_carried", F.lit(False)).select(*columns)
        rows = left.unionByName(across).unionByName(self._new().select(*columns))
        if not self._stale.isEmpty():
            anew = self._hands.join(few(self._stale), [*GROUP], "left_semi").select(*columns)
            rows = rows.join(few(self._stale), [*GROUP], "left_anti").unionByName(anew)
        rows = self._persist(rows)
        of_several_dates = self._cuts.where("across > 0").select(*GROUP)
        self._touched = self._persist(rows.select(*GROUP).unionByName(of_several_dates).distinct())
        standing = _standing(state.join(self._touched, [*GROUP], "left_semi"), rows)
        return rows.unionByName(standing.select(*columns))

    def _write_violations(self, sums: DataFrame) -> None:
        """Look closer at groups that are remarkable and have something new."""
        remarkable = sums.where("is_remarkable").select(*GROUP).distinct()
        if self._former is not None:
            remarkable = remarkable.join(self._touched, [*GROUP], "left_semi")
        remarkable = self._persist(remarkable)
        found = order_audit.no_violations(self._hands)
        if count := remarkable.count():
            chosen = few(remarkable) if count <= FEW else remarkable
            needed = self._hands.select(*order_audit.CLOSER)
            closer = self._persist(needed.join(chosen, [*GROUP], "left_semi"))
            found = order_audit.violations(self._spark, closer, self._known, self._ranges)
        elif self._former is None:
            nothing = to_arrow_schema(found.schema, timezone="UTC").empty_table()
            self._folder.write_rows("violations", nothing, found.schema)
            return
        if self._former is not None:
            former = self._pieces.read(f"{AUDITED}/{self._former}/{_VIOLATIONS}")
            found = found.unionByName(former.join(self._touched, [*GROUP], "left_anti"))
        self._folder.write("violations", found)

    def _holes(self, sums: DataFrame, groups: DataFrame) -> DataFrame:
        def until_ever(since: str, rows: DataFrame) -> DataFrame:
            nothing = F.lit(None).cast(rows.schema[since].dataType).alias("hole_until")
            return rows.select(*GROUP, F.col(since).alias("hole_since"), nothing)

        unended = until_ever("open_until", sums.where("open_until is not null"))
        found = _told_holes(sums).unionByName(unended).unionByName(until_ever("began", groups))
        if self._former is not None:
            found = found.unionByName(self._former_holes())
        return found

    def _former_holes(self) -> DataFrame:
        holes = self._kept(_HOLES, *GROUP, "hole_since", "hole_until")
        return holes.join(self._stale, [*GROUP], "left_anti")

    def _keep(self, sums: DataFrame, both: DataFrame) -> None:
        name = self._pieces.begin_audit()
        holes = _told_holes(sums.where("is_over"))
        if self._former is not None:
            holes = holes.unionByName(self._former_holes())
        left = sums.where(F.col("left").isNotNull()).select("left.*")
        rows = _merged(both).withColumn("kind", F.lit(_STATE))
        for kind, table in (_HOLES, holes), (_LEFT, left):
            rows = rows.unionByName(table.withColumn("kind", F.lit(kind)), allowMissingColumns=True)
        self._folder.write(f"{AUDITED}/{name}/{_ROWS}", rows)
        self._folder.copy("violations", f"{AUDITED}/{name}/{_VIOLATIONS}")
        self._pieces.keep_audit(name)


def _fingerprint() -> Column:
    return F.xxhash64(*SCREENED)


def _sums(marked: DataFrame) -> DataFrame:
    """By group, queue, incarnation and range, and apart for ended rows: counts, and the facts that
    `_standing` needs. Rows of which more must be known have a sum of their own: before which a `hole` may be,
    which have no end (`open_until`: until when they lasted at least), or which are `left` to be judged again.
    """
    is_across, is_open = F.col(DATE) == ACROSS, F.col("outcome") == OPEN
    is_left = ~F.col("is_over") & ~is_across
    hole = F.struct(F.col("former_began").alias("hole_since"), F.col("began").alias("hole_until"))
    is_alone = ~F.col("is_linked") | is_open | is_left
    # With hash and range a group's rows are where they were sorted.
    key = within_range(marked, (_HASH, *_KEY))
    # What is sorted here is as little as will do.
    told = marked.select(
        *key, "is_over", "because", "is_remarkable", "began", "ended", "place", "dispatched_at",
        F.when(is_alone, F.monotonically_increasing_id()).alias("own"),
        is_open.alias("is_open"), F.coalesce("ended_at", "dispatched_at").alias("last_at"),
        (F.col("outcome") != Event.TAKEN_BACK).alias("has_stayed"),
        (F.col("outcome") == Event.SETTLED).alias("is_settled"),
        F.struct(F.struct(*NUMBERS).alias("numbers"), "began", "over").alias("last"),
        F.when(is_across, _fingerprint()).alias("across_hash"),
        F.when(~F.col("is_linked"), hole).alias("hole"),
        F.when(is_open, F.col("ended")).alias("open_until"),
        F.when(is_left, F.struct(*SCREENED, DATE)).alias("left"),
    )  # fmt: skip
    return told.groupBy(*key, "is_over", "own").agg(
        F.count("*").alias("hand_overs"),
        F.sum(F.col("is_open").cast("bigint")).alias("open"),
        # Not `began`: of what was told again from the journal that is a commit's number.
        F.min("dispatched_at").alias("first_at"),
        F.min("because").alias("because"),
        *(F.max(name).alias(name) for name in ("last_at", "is_remarkable", "began", "ended", "place")),
        F.max("last").alias("last"),
        F.max(F.when(F.col("has_stayed"), F.col("place"))).alias("stayed"),
        F.max(F.when(F.col("is_settled"), F.col("place"))).alias("settled"),
        F.count("across_hash").alias("across"),
        F.coalesce(F.bit_xor("across_hash"), F.lit(0)).alias("across_hash"),
        *(F.max(name).alias(name) for name in ("hole", "open_until", "left")),
    ).drop(RANGE, "own")  # fmt: skip


def _told_holes(sums: DataFrame) -> DataFrame:
    """Between which hand-overs of a group one may be missing: those whose numbers do not follow each other.
    Of a group's first one the beginning is null."""
    return sums.where("hole is not null").select(*GROUP, "hole.*")


def _merged(sums: DataFrame) -> DataFrame:
    """One row for each key, of the ended rows."""
    return (
        sums.where("is_over")
        .groupBy(_HASH, *_KEY)
        .agg(*(merge(name).alias(name) for name, merge in _MERGED.items()))
        .drop(_HASH)
    )


def _groups(sums: DataFrame) -> DataFrame:
    """One row for each group; `began` is when the last of its hand-overs did."""

    def added(rows: DataFrame, *by: str) -> DataFrame:
        return rows.groupBy(_HASH, *by).agg(
            *(F.sum(name).alias(name) for name in ("hand_overs", "open")),
            *(F.min(name).alias(name) for name in ("first_at", "because")),
            *(F.max(name).alias(name) for name in ("last_at", "began")),
            *([F.count("incarnation").alias("incarnations")] if "incarnation" not in by else []),
        )

    # First by incarnation, which are in order: to have them counted apart takes twice as many steps.
    return added(added(sums, *GROUP, "incarnation"), *GROUP).drop(_HASH)


def _standing(state: DataFrame, rows: DataFrame) -> DataFrame:
    """Rows of SCREENED that say the same to those behind them as all that they stand for: the last one's
    numbers, and the latest end and places. Hand-overs that were taken back have a place of their own."""
    is_settled = F.col("settled") == F.col("stayed")
    outcome = F.when(is_settled, Event.SETTLED.value).otherwise(Event.FAILED.value)
    stayed = F.struct(outcome.alias("outcome"), F.col("stayed").alias("place"))
    taken = F.struct(F.lit(Event.TAKEN_BACK.value).alias("outcome"), F.col("place"))
    is_later = F.col("stayed").isNull() | (F.col("stayed") < F.col("place"))
    kinds = F.array(F.when(F.col("stayed").isNotNull(), stayed), F.when(is_later, taken))
    one = state.withColumn("kind", F.explode(F.filter(kinds, lambda kind: kind.isNotNull())))
    known: dict[str, Column] = {
        "group_hash": F.xxhash64(*GROUP), "place": F.col("kind.place"), "outcome": F.col("kind.outcome"),
        "began": F.col("last.began"), "over": F.col("last.over"), "ended": F.col("ended"),
        "is_carried": F.lit(True), "hands_over": F.lit(False), "is_shared": F.lit(False),
        **{name: F.col(f"last.numbers.{name}") for name in NUMBERS},
        **{name: F.col(name) for name in _KEY},
    }  # fmt: skip
    return one.select(*(
        known.get(field.name, F.lit(None)).cast(field.dataType).alias(field.name) for field in rows.schema
    ))  # fmt: skip
