"""How long consumers were busy with messages: what those cost, whatever waits in a consumer's prefetch."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from dispatcher.ledger.schema import Event
from dispatcher.pipeline.ledger_reading import micros

#: Messages of which the same cost is expected.
KIND: Final = ("inbound", "type", "size_below")


def worked(hand_overs: DataFrame, *apart: Column) -> DataFrame:
    """All hand-overs, with `work_us`: null where it ended otherwise than settled or failed, or another leader
    made it.

    The measure is that of `cost: measured` (docs/semantics.md, F-6): a consumer was busy with what it settles
    at a time since its settle before, or since the first of these was handed over if that is later; several
    share that evenly. What lies in different parts by `apart` knows nothing of each other.
    """
    told_us = F.when(F.col("outcome").isin([Event.SETTLED, Event.FAILED]), micros("ended_at"))
    consumer = [F.col("lane"), F.col("turn"), F.col("incarnation"), *apart]
    together = Window.partitionBy(*consumer, told_us)
    before = Window.partitionBy(*consumer).orderBy(told_us).rangeBetween(Window.unboundedPreceding, -1)
    since = F.greatest(F.max(told_us).over(before), F.min(micros("dispatched_at")).over(together))
    busy = F.greatest(told_us - since, F.lit(0)) / F.count("*").over(together)
    is_known = (
        told_us.isNotNull() & (F.col("began_turn") == F.col("turn")) & F.col("dispatched_at").isNotNull()
    )
    return hand_overs.withColumn("work_us", F.when(is_known, busy))


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
