"""How long consumers were busy with messages: what those cost, whatever waits in a consumer's prefetch."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from dispatcher.ledger.schema import Event
from dispatcher.pipeline.ledger_reading import micros

#: Messages of which the same cost is expected.
KIND: Final = ("inbound", "type", "size_below")


def with_work(hand_overs: DataFrame) -> DataFrame:
    """The hand-overs that were settled or failed and of which that is known, with `work_us` and `size_below`.

    The measure is that of `cost: measured` (docs/semantics.md, F-6): a consumer was busy with what it settles
    at a time since its settle before, or since the first of these was handed over if that is later; several
    share that evenly. `size_below`: the next power of two above the size, in bytes.
    """
    told = hand_overs.where(F.col("outcome").isin([Event.SETTLED, Event.FAILED]))
    consumer = ("lane", "turn", "incarnation")
    together = Window.partitionBy(*consumer, "ended_at")
    before = Window.partitionBy(*consumer).orderBy(micros("ended_at")).rangeBetween(
        Window.unboundedPreceding, -1
    )  # fmt: skip
    since = F.greatest(F.max(micros("ended_at")).over(before), F.min(micros("dispatched_at")).over(together))
    busy = F.greatest(micros("ended_at") - since, F.lit(0))
    found = told.withColumns({
        "work_us": busy / F.count("*").over(together), "size_below": size_below(F.col("size")),
    })  # fmt: skip
    return found.where("began_turn = turn and dispatched_at is not null and size is not null")


def size_below(size: Column) -> Column:
    """The band that a size is in."""
    return F.pow(2.0, F.ceil(F.log2(F.greatest(size + 1, F.lit(1))))).cast("bigint")
