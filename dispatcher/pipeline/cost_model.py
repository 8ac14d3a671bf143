"""What messages cost: how long consumers were busy with them, by inbound queue, type and size, with its
confidence."""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from dispatcher.known_work import VERSION
from dispatcher.ledger.schema import Event
from dispatcher.pipeline.work import KIND, with_work

#: A normal distribution has 95 % within so many standard errors.
_Z_95: Final = 1.959964


def cost_model(worked: DataFrame) -> DataFrame:
    """By lane, inbound queue, type and size band (`size_below`: the next power of two, in bytes): `messages`,
    mean and standard deviation of the work that what was settled took, in µs (`work`), and `error_us`: the
    mean is within it with 95 %."""
    settled = with_work(worked).where(F.col("outcome") == Event.SETTLED)
    found = settled.groupBy("lane", *KIND).agg(
        F.count("*").alias("messages"),
        F.avg("work_us").alias("mean_us"),
        F.stddev_samp("work_us").alias("deviation_us"),
    )
    return found.withColumn("error_us", F.col("deviation_us") * _Z_95 / F.sqrt("messages"))


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
