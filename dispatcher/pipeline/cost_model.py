"""What messages cost: how long consumers were busy with them, by inbound queue, type and size, with its
confidence."""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from dispatcher.ledger.schema import Event
from dispatcher.pipeline.work import KIND, with_work
from dispatcher.settings import VERSION

#: A normal distribution has 95 % within this many standard errors.
_Z_95: Final = 1.959964


def measured(worked: DataFrame) -> DataFrame:
    """By `day`, lane, inbound queue, type and size band (`size_below`: the next power of two, in bytes):
    `messages` that were settled, the mean of the work that they took, in µs (`work`), and `squares`: the sum
    of the squares of what each differs from it."""
    settled = with_work(worked).where(F.col("outcome") == Event.SETTLED)
    return settled.groupBy("day", "lane", *KIND).agg(
        F.count("*").alias("messages"),
        F.avg("work_us").alias("mean_us"),
        (F.var_pop("work_us") * F.count("*")).alias("squares"),
    )


def cost_model(measured: DataFrame) -> DataFrame:
    """For each kind in `measured`: `messages`, mean and standard deviation, and `error_us`: the mean is
    within it with 95 %."""
    days = F.sort_array(F.collect_list(F.struct("day", "messages", "mean_us", "squares")))
    found = measured.groupBy("lane", *KIND).agg(days.alias("days"))
    none = F.lit(0.0)
    start = F.struct(F.lit(0).cast("bigint").alias("messages"), none.alias("mean_us"), none.alias("squares"))
    total = found.select("lane", *KIND, F.aggregate("days", start, _together).alias("all"))
    deviation = F.when(F.col("all.messages") > 1, F.sqrt(F.col("all.squares") / (F.col("all.messages") - 1)))
    return total.select(
        "lane", *KIND, "all.messages", "all.mean_us", deviation.alias("deviation_us"),
        (deviation * _Z_95 / F.sqrt("all.messages")).alias("error_us"),
    )  # fmt: skip


def _together(one: Column, other: Column) -> Column:
    """Of two samples; T. Chan, G. Golub, R. LeVeque, *Updating Formulae and a Pairwise Algorithm for
    Computing Sample Variances*, 1979: without subtracting large sums from each other."""
    messages = one["messages"] + other["messages"]
    apart = other["mean_us"] - one["mean_us"]
    return F.struct(
        messages.alias("messages"),
        (one["mean_us"] + apart * other["messages"] / messages).alias("mean_us"),
        (one["squares"] + other["squares"]
         + apart * apart * one["messages"] * other["messages"] / messages).alias("squares"),
    )  # fmt: skip


def exported(model: list[dict[str, Any]]) -> dict[str, Any]:
    """The table's rows as the file has them: lanes, their inbound queues, the types and sizes of these."""
    lanes: dict[str, Any] = {}
    for row in sorted(
        model, key=lambda row: [(row[name] is not None, row[name]) for name in ("lane", *KIND)]
    ):
        bands = lanes.setdefault(row["lane"], {}).setdefault(row["inbound"], [])
        bands.append({
            "type": row["type"], "size_below": row["size_below"], "messages": row["messages"],
            "mean_us": round(row["mean_us"], 1),
            "error_us": None if row["error_us"] is None else round(row["error_us"], 1),
        })  # fmt: skip
    return {"version": VERSION, "unit": "µs", "lanes": lanes}
