"""Live statistics: what each batch adds to minutes and consumers.

Durations are counted in buckets whose bounds grow by the 32nd root of two. So a percentile is told at most
2.2 % too high, and whatever batches the same records come in, the answer is the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from dispatcher.ledger.schema import Event
from dispatcher.pipeline.hand_overs import OPEN
from dispatcher.pipeline.ledger_reading import micros
from dispatcher.pipeline.lifecycle import OUTCOMES, with_durations
from dispatcher.pipeline.statistics import PERCENTILES

_BUCKETS_PER_OCTAVE: Final = 32
MINUTE_US: Final = 60_000_000
_ENDED: Final = (Event.SETTLED, Event.FAILED, Event.TAKEN_BACK)
_SUMS: Final = ("bytes", "cost", "busy_us")
COUNTS: Final = (*(each.value for each in (*_ENDED, *OUTCOMES)), *_SUMS)
_DURATIONS: Final = ("wait", "process")
IN_HAND: Final = "in_hand"


def added(found: DataFrame, new: DataFrame | None) -> DataFrame:
    """What a batch adds, as few rows: `lane`, `inbound`, `minute_us`, `consumer`, `incarnation`, `name`,
    `bucket`, `amount`, `seq`. Minutes are those in which hand-overs ended, by their leaders' clocks.

    `found` are hand-overs with `is_new`; `new` are new records.
    """
    timed = with_durations(found)
    ended = timed.where("is_new")
    amounts = F.explode(F.array(
        *(_amount(name, F.coalesce(F.col(column), F.lit(0)))
          for name, column in zip(_SUMS, ("size", "cost", "process_us"), strict=True)),
        *(_amount(f"{name}_us", F.lit(1), f"{name}_us") for name in _DURATIONS),
        F.struct(
            F.col("outcome").alias("name"), F.lit(None).cast("int").alias("bucket"),
            F.lit(1).cast("bigint").alias("amount"),
        ),
    )).alias("one")  # fmt: skip
    keys = ["lane", "inbound", "minute_us", "consumer", "incarnation", "name", "bucket"]
    counted = ended.select(
        "lane", "inbound", _minute("ended_at"), "consumer", "incarnation", "seq", amounts
    ).where("one.name is not null").select(*keys[:5], "seq", "one.*")  # fmt: skip
    held = found.where(F.col("outcome") == OPEN).select(
        "lane", "inbound", F.lit(None).cast("bigint").alias("minute_us"), "consumer", "incarnation",
        F.lit(None).cast("bigint").alias("seq"), F.lit(IN_HAND).alias("name"),
        F.lit(None).cast("int").alias("bucket"), F.lit(1).cast("bigint").alias("amount"),
    )  # fmt: skip
    rows = counted.unionByName(held)
    if new is not None:
        none = F.lit(None).cast("string")
        gone = new.where(F.col("event").isin([*OUTCOMES]) & F.col("seq").isNull()).select(
            "lane", "inbound", _minute("time"), none.alias("consumer"), none.alias("incarnation"),
            F.col("seq"), F.col("event").alias("name"), F.lit(None).cast("int").alias("bucket"),
            F.lit(1).cast("bigint").alias("amount"),
        )  # fmt: skip
        rows = rows.unionByName(gone)
    return rows.groupBy(*keys).agg(F.sum("amount").alias("amount"), F.max("seq").alias("seq"))


def _minute(column: str) -> Column:
    return (F.floor(micros(column) / MINUTE_US) * MINUTE_US).cast("bigint").alias("minute_us")


def _amount(name: str, amount: Column, duration: str | None = None) -> Column:
    """With a duration: counted in its bucket, or not at all where there is none."""
    bucket, shown = F.lit(None).cast("int"), F.lit(name)
    if duration is not None:
        bucket = F.floor(F.log2(F.col(duration) + 1) * _BUCKETS_PER_OCTAVE).cast("int")
        shown = F.when(F.col(duration).isNotNull(), shown)
    return F.struct(shown.alias("name"), bucket.alias("bucket"), amount.cast("bigint").alias("amount"))


@dataclass
class Minute:
    """Of one inbound queue of a lane."""

    counts: dict[str, int] = field(default_factory=dict)
    durations: dict[str, dict[int, int]] = field(default_factory=lambda: {name: {} for name in _DURATIONS})


def percentile_us(buckets: dict[int, int], percent: int) -> int | None:
    """The upper bound of the bucket that the value of this rank is in."""
    rank = math.ceil(sum(buckets.values()) * percent / 100)
    for bucket in sorted(buckets):
        rank -= buckets[bucket]
        if rank <= 0:
            return math.ceil(2 ** ((bucket + 1) / _BUCKETS_PER_OCTAVE)) - 1
    return None


@dataclass
class LiveStatistics:
    """The minutes that are kept, and all consumers that have been seen in that time."""

    minutes: dict[tuple[str, str | None, int], Minute] = field(default_factory=dict)
    consumers: dict[tuple[str, str | None], dict[str, int]] = field(default_factory=dict)

    def add(self, rows: Iterable[dict[str, Any]]) -> None:
        """The rows of `added`."""
        for counts in self.consumers.values():
            counts[IN_HAND] = 0
        for row in rows:
            name, amount = row["name"], row["amount"]
            self._add_to_consumer(row)
            if name == IN_HAND:
                continue
            minute = self.minutes.setdefault((row["lane"], row["inbound"], row["minute_us"]), Minute())
            if row["bucket"] is None:
                minute.counts[name] = minute.counts.get(name, 0) + amount
            else:
                buckets = minute.durations[name.removesuffix("_us")]
                buckets[row["bucket"]] = buckets.get(row["bucket"], 0) + amount

    def _add_to_consumer(self, row: dict[str, Any]) -> None:
        if row["consumer"] is None or row["bucket"] is not None:
            return
        counts = self.consumers.setdefault((row["lane"], row["consumer"]), {})
        counts[row["name"]] = counts.get(row["name"], 0) + row["amount"]
        if row["minute_us"] is not None:
            counts["last_us"] = max(counts.get("last_us", 0), row["minute_us"])

    def forget(self, clocks: dict[str, int], keep_us: int) -> None:
        """What lies longer back, by its lane's clock; a consumer that has something in hand stays."""
        for key in [key for key in self.minutes if key[2] < clocks.get(key[0], 0) - keep_us]:
            del self.minutes[key]
        for name, counts in list(self.consumers.items()):
            is_old = counts.get("last_us", 0) < clocks.get(name[0], 0) - keep_us
            if is_old and not counts.get(IN_HAND):
                del self.consumers[name]

    # -- as files --

    def write(self, folder: Path) -> None:
        minutes = [
            {"lane": lane, "inbound": inbound, "minute": minute_us, **_shown(minute)}
            for (lane, inbound, minute_us), minute in sorted(self.minutes.items(), key=str)
        ]
        consumers = [
            {"lane": lane, "consumer": consumer, **{name: counts.get(name, 0) for name in _OF_CONSUMER},
             "last_minute": counts.get("last_us")}
            for (lane, consumer), counts in sorted(self.consumers.items(), key=str)
        ]  # fmt: skip
        pq.write_table(pa.Table.from_pylist(minutes, _MINUTES), folder / "lane_minutes.parquet")
        pq.write_table(pa.Table.from_pylist(consumers, _CONSUMERS), folder / "consumers.parquet")

    @classmethod
    def read(cls, folder: Path) -> LiveStatistics:
        found = cls()
        for row in _plain(pq.read_table(folder / "lane_minutes.parquet")):
            found.minutes[row["lane"], row["inbound"], row["minute"]] = Minute(
                {name: row[name] for name in COUNTS if row[name]},
                {name: dict(row[f"{name}_buckets"]) for name in _DURATIONS},
            )
        for row in _plain(pq.read_table(folder / "consumers.parquet")):
            counts = {name: row[name] for name in _OF_CONSUMER if row[name]}
            if row["last_minute"] is not None:
                counts["last_us"] = row["last_minute"]
            found.consumers[row["lane"], row["consumer"]] = counts
        return found


_OF_CONSUMER: Final = (*(each.value for each in _ENDED), *_SUMS, IN_HAND)
_INSTANT: Final = pa.timestamp("us", "UTC")
_MINUTES: Final = pa.schema(
    [("lane", pa.string()), ("inbound", pa.string()), ("minute", _INSTANT), ("per_s", pa.float64())]
    + [(name, pa.int64()) for name in COUNTS]
    + [(f"{name}_p{percent}_us", pa.int64()) for name in _DURATIONS for percent in PERCENTILES]
    + [(f"{name}_buckets", pa.map_(pa.int32(), pa.int64())) for name in _DURATIONS]
)
_CONSUMERS: Final = pa.schema(
    [("lane", pa.string()), ("consumer", pa.string())]
    + [(name, pa.int64()) for name in _OF_CONSUMER]
    + [("last_minute", _INSTANT)]
)


def _plain(table: pa.Table) -> list[dict[str, Any]]:
    """Rows with instants in µs."""
    for place, column in enumerate(table.schema):
        if column.type == _INSTANT:
            table = table.set_column(place, column.name, table[column.name].cast(pa.int64()))
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def _shown(minute: Minute) -> dict[str, Any]:
    hand_overs = sum(minute.counts.get(name, 0) for name in _ENDED)
    return {
        "per_s": hand_overs * 1e6 / MINUTE_US,
        **{name: minute.counts.get(name, 0) for name in COUNTS},
        **{f"{name}_p{percent}_us": percentile_us(minute.durations[name], percent)
           for name in _DURATIONS for percent in PERCENTILES},
        **{f"{name}_buckets": sorted(minute.durations[name].items()) for name in _DURATIONS},
    }  # fmt: skip
