"""How long consumers were busy with messages: what those cost, whatever waits in a consumer's prefetch."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from dispatcher.ledger.schema import Event
from dispatcher.pipeline.ledger_reading import micros
from dispatcher.pipeline.ranges import BEFORE, RANGE, Ranges, largest, without_copies

#: Messages of which the same cost is expected.
KIND: Final = ("inbound", "type", "size_below")
#: Into how many parts a consumer's hand-overs go that ended otherwise.
_OTHERS: Final = 64


def worked(hand_overs: DataFrame, ranges: Ranges, *apart: str) -> DataFrame:
    """All hand-overs, with `work_us`: null where it ended otherwise than settled or failed, or another leader
    made it.

    The measure is that of `cost: measured` (docs/semantics.md, F-6): a consumer was busy with what it settles
    at a time since its settle before, or since the first of these was handed over if that is later; several
    share that evenly. What differs in the columns `apart` knows nothing of each other.
    """
    told_us = F.when(F.col("outcome").isin([Event.SETTLED, Event.FAILED]), micros("ended_at"))
    consumer = ("lane", "turn", "incarnation", *apart)
    found = hand_overs.withColumn("told_us", told_us)
    found = ranges.cut(found, consumer, [F.col("told_us")], largest(consumer, "told_us"))
    # Nothing is asked of the others: they need not be together.
    known = F.col(RANGE) if RANGE in found.columns else F.lit(0)
    place = F.when(F.col("told_us").isNull(), -1 - F.pmod("seq", F.lit(_OTHERS))).otherwise(known)
    found = found.withColumn(RANGE, place)
    by_time = Window.partitionBy(*consumer, RANGE).orderBy("told_us")
    together, before = by_time.rangeBetween(0, 0), by_time.rangeBetween(*BEFORE)
    since = F.greatest(F.max("told_us").over(before), F.min(micros("dispatched_at")).over(together))
    busy = F.greatest(F.col("told_us") - since, F.lit(0)) / F.count("*").over(together)
    is_known = (
        F.col("told_us").isNotNull() & (F.col("began_turn") == F.col("turn"))
        & F.col("dispatched_at").isNotNull()
    )  # fmt: skip
    return without_copies(found.withColumn("work_us", F.when(is_known, busy))).drop("told_us")


def with_work(worked: DataFrame) -> DataFrame:
    """Of what `worked` makes those that it knows the work of, with `size_below`: the next power of two above
    the size, in bytes."""
    known = worked.where("work_us is not null and size is not null")
    return known.withColumn("size_below", size_below(F.col("size")))


def busy_us() -> Column:
    """Of several hand-overs, in whole µs."""
    return whole_us(F.col("work_us")).alias("busy_us")


def whole_us(spent: Column) -> Column:
    """The sum of several times, in whole µs."""
    return F.coalesce(F.round(F.sum(spent)).cast("bigint"), F.lit(0))


def size_below(size: Column) -> Column:
    """The band that a size is in."""
    return F.pow(2.0, F.ceil(F.log2(F.greatest(size + 1, F.lit(1))))).cast("bigint")
