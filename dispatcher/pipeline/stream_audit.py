"""The order audit over a stream: the batch audit's own rules, over new records and those that still count.

A batch judges new records together with those of former batches that `kept` has left. These are few for each
group, and yet nothing is missed: a writer's files tell of every hand-over that had begun before they were
closed, so hand-overs in later files began later, and have larger numbers. Such a hand-over is out of order
only if the last message of its group and queue is a later one, and it overlaps only with hand-overs that have
not ended.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BooleanType, LongType, StringType, StructField, StructType

from dispatcher.ledger.schema import Event
from dispatcher.pipeline import order_audit
from dispatcher.pipeline.gaps import Gap
from dispatcher.pipeline.hand_overs import ENDS, KEY, MESSAGE, OPEN, hand_overs
from dispatcher.pipeline.leaderships import RecordedLeadership
from dispatcher.pipeline.ledger_reading import SCHEMA
from dispatcher.pipeline.order_audit import GROUP
from dispatcher.pipeline.ranges import Ranges

_AGAIN: Final = (Event.FAILED, Event.TAKEN_BACK)
#: What `kept` adds to records: the lane's clock when they came, whether they have no end, and the rules that
#: their hand-over was said to have broken.
KEPT_SCHEMA: Final = StructType(
    [field for field in SCHEMA if field.name not in ("date", "schema_version")]
    + [
        StructField("kept_us", LongType()), StructField("is_open", BooleanType()),
        StructField("raised", ArrayType(StringType())),
    ]
)  # fmt: skip
NO_VIOLATIONS: Final = pa.table({
    "lane": pa.array([], pa.string()), "incarnation": pa.array([], pa.string()),
    "seq": pa.array([], pa.int64()), "rule": pa.array([], pa.string()),
})  # fmt: skip


def combined(
    spark: SparkSession,
    new: DataFrame | None,
    kept: DataFrame | None,
    known: list[RecordedLeadership],
    clocks: dict[str, int],
    forget_us: int,
) -> DataFrame:
    """New records and those of former batches that count, with `turn`, `clock_us` of their lane, and the
    columns of `kept` (null where they are new). Records older than `forget_us` are forgotten, except those of
    messages in flight."""
    last = {each.lane: each.turn for each in known}
    table = pa.table({
        "lane": pa.array([each.lane for each in known], pa.string()),
        "writer": pa.array([each.writer for each in known], pa.string()),
        "turn": pa.array([each.turn for each in known], pa.int64()),
        "last_turn": pa.array([last[each.lane] for each in known], pa.int64()),
        "clock_us": pa.array([clocks.get(each.lane, 0) for each in known], pa.int64()),
    })  # fmt: skip
    writers = F.broadcast(spark.createDataFrame(table))
    parts = [each for each in (new, kept) if each is not None]
    records = parts[0] if len(parts) == 1 else parts[1].unionByName(parts[0], allowMissingColumns=True)
    if kept is None:
        records = records.withColumns({
            "kept_us": F.lit(None).cast("bigint"), "is_open": F.lit(None).cast("boolean"),
            "raised": F.lit(None).cast("array<string>"),
        })  # fmt: skip
    is_old = F.coalesce(F.col("kept_us") < F.col("clock_us") - forget_us, F.lit(False))
    is_held = F.coalesce(F.col("is_open") & (F.col("turn") == F.col("last_turn")), F.lit(False))
    return records.join(writers, ["lane", "writer"]).where(~is_old | is_held).drop("last_turn")


def without_repeated(spark: SparkSession, records: DataFrame, ended: dict[tuple[str, str], int]) -> DataFrame:
    """Without new ends that repeat one which was told and is kept no more: a consumer settles once more for
    the next leader. `ended` says by incarnation up to which number ends were told."""
    if not ended:
        return records
    known = pa.table({
        "lane": [lane for lane, _ in ended],
        "incarnation": [incarnation for _, incarnation in ended],
        "ended_seq": pa.array(list(ended.values()), pa.int64()),
    })  # fmt: skip
    kept = records.where(F.col("kept_us").isNotNull() & F.col("seq").isNotNull())
    partial = F.col("event").isin(ENDS) & F.col("dispatched_at").isNull() & F.col("kept_us").isNull()
    suspects = records.where(partial & F.col("seq").isNotNull())
    repeated = (
        suspects.join(F.broadcast(spark.createDataFrame(known)), ["lane", "incarnation"])
        .where(F.col("seq") <= F.col("ended_seq"))
        .join(kept.select(*KEY), [*KEY], "left_anti")
        .select("lane", "writer", "ordinal")
    )
    return records.join(repeated, ["lane", "writer", "ordinal"], "left_anti")


def found_hand_overs(
    spark: SparkSession, records: DataFrame, known: list[RecordedLeadership], gaps: list[Gap]
) -> DataFrame:
    """As `hand_overs`, with `is_new`: the end was not told before, and `already`: the rules that it was said
    to have broken."""
    found = hand_overs(spark, records, known, gaps)
    former = records.where(F.col("kept_us").isNotNull()).groupBy(*KEY).agg(
        (~F.min("is_open")).alias("was_over"), F.flatten(F.collect_set("raised")).alias("already"),
    )  # fmt: skip
    is_new = (F.col("outcome") != OPEN) & ~F.coalesce("was_over", F.lit(False))
    return found.join(former, [*KEY], "left").withColumn("is_new", is_new).drop("was_over")


def new_violations(
    spark: SparkSession, found: DataFrame, known: list[RecordedLeadership], ranges: Ranges
) -> pa.Table:
    """The violations among the hand-overs of `found_hand_overs` that were not said before. Most batches have
    no group that is remarkable, and so none."""
    judged = order_audit.judged(found)
    marked = order_audit.screened(judged, ranges).where("is_remarkable").select(*GROUP).distinct().toArrow()
    if not marked.num_rows:
        return NO_VIOLATIONS
    remarkable = F.broadcast(spark.createDataFrame(marked))
    closer = judged.join(remarkable, [*GROUP], "left_semi").localCheckpoint()
    broken = order_audit.violations(spark, closer, known, ranges)
    said = closer.where(F.size("already") > 0).select(*KEY, F.explode("already").alias("rule"))
    return broken.join(said, [*KEY, "rule"], "left_anti").toArrow()


def kept(
    spark: SparkSession, records: DataFrame, found: DataFrame, violations: pa.Table, whole_lanes: list[str]
) -> DataFrame:
    """The records that a later batch needs: those of messages in flight, those of messages that may be handed
    over again, and for each group and queue those of the last message, also of each incarnation's last one.

    Of `whole_lanes` everything is kept: there, files that come before others are still to be read.
    """
    is_judged = F.col("group").isNotNull() & (F.coalesce("group_seq", F.lit(1)) > 0)
    here = F.struct("arrival_epoch", "arrival", "epoch", "group_seq")
    counts = is_judged & (F.col("outcome") != Event.FAILED)

    def is_last(among: Column, *by: str) -> Column:
        over = Window.partitionBy(*GROUP, "inbound", *by)
        return among & (F.max(F.when(among, here)).over(over) == here)

    is_final = counts & ~F.col("outcome").isin(Event.TAKEN_BACK, OPEN)
    last_attempt = F.max("attempt").over(Window.partitionBy(*MESSAGE))
    may_return = is_judged & F.col("outcome").isin([*_AGAIN]) & (F.col("attempt") == last_attempt)
    broken = spark.createDataFrame(violations.select([*KEY, "rule"]))
    said = broken.groupBy(*KEY).agg(F.collect_set("rule").alias("rules"))
    needed = (
        (F.col("outcome") == OPEN) | F.col("may_return") | F.col("is_final_last") | F.col("is_own_last")
        | (F.col("lane").isin(whole_lanes) if whole_lanes else F.lit(False))
    )  # fmt: skip
    keys = (
        found.withColumns({
            "is_final_last": is_last(is_final), "is_own_last": is_last(counts, "incarnation"),
            "may_return": may_return,
        })
        .where(needed)
        .join(F.broadcast(said), [*KEY], "left")
        .select(
            *KEY, (F.col("outcome") == OPEN).alias("now_open"),
            F.concat(F.coalesce("already", F.array()), F.coalesce("rules", F.array())).alias("now_raised"),
        )
    )  # fmt: skip
    of_hand_overs = F.col("seq").isNotNull() & F.col("event").isin([*ENDS, Event.DISPATCHED, Event.READ_BACK])
    return records.where(of_hand_overs).join(keys, [*KEY]).withColumns({
        "kept_us": F.coalesce("kept_us", "clock_us"), "is_open": F.col("now_open"),
        "raised": F.col("now_raised"),
    }).drop("turn", "clock_us", "now_open", "now_raised", "part")  # fmt: skip
