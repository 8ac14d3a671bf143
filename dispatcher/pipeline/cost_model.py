"""What messages cost: the time that consumers took, by inbound queue and size, with its confidence."""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

#: Of the exported file's form.
VERSION: Final = 1
#: A normal distribution has 95 % within so many standard errors.
_Z_95: Final = 1.959964


def cost_model(hand_overs: DataFrame) -> DataFrame:
    """By lane, inbound queue and size band (`size_below`: the next power of two, in bytes): `messages`, mean
    and standard deviation of what was settled, in µs, and `error_us`: the mean is within it with 95 %."""
    settled = hand_overs.where("outcome = 'settled' and process_us is not null and size is not null")
    band = F.pow(2.0, F.ceil(F.log2(F.greatest(F.col("size") + 1, F.lit(1))))).cast("bigint")
    found = settled.groupBy("lane", "inbound", band.alias("size_below")).agg(
        F.count("*").alias("messages"),
        F.avg("process_us").alias("mean_us"),
        F.stddev_samp("process_us").alias("deviation_us"),
    )
    return found.withColumn("error_us", F.col("deviation_us") * _Z_95 / F.sqrt("messages"))


def exported(model: DataFrame) -> dict[str, Any]:
    """The model as the file has it: lanes, their inbound queues, their size bands."""
    lanes: dict[str, Any] = {}
    for row in model.orderBy("lane", "inbound", "size_below").collect():
        bands = lanes.setdefault(row["lane"], {}).setdefault(row["inbound"], [])
        bands.append({
            "size_below": row["size_below"], "messages": row["messages"], "mean_us": round(row["mean_us"], 1),
            "error_us": None if row["error_us"] is None else round(row["error_us"], 1),
        })  # fmt: skip
    return {"version": VERSION, "unit": "µs", "lanes": lanes}
