"""What a lane ran with: its options over time, and the incarnations that its ledger tells of."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from dispatcher.ledger.schema import Event
from dispatcher.pipeline.leaderships import RecordedLeadership
from dispatcher.pipeline.report_folder import INSTANT, arrow_table


def options(leaderships: Iterable[RecordedLeadership]) -> pa.Table:
    """Lane, turn, `since`, and the options from then on, as the JSON of `lane_started` and `lane_changed`
    (docs/ledger.md) without the consumers."""
    rows = []
    for leadership in leaderships:
        for told in leadership.facts:
            if told.event in (Event.LANE_STARTED, Event.LANE_CHANGED) and told.detail:
                detail = {name: value for name, value in told.detail.items() if name != "consumers"}
                text = json.dumps(detail, ensure_ascii=False)
                rows.append((leadership.lane, leadership.turn, told.time_us, text))
    return arrow_table(rows, lane=pa.string(), turn=pa.int64(), since=INSTANT, options=pa.string())


def incarnations(
    spark: SparkSession, records: DataFrame, leaderships: Iterable[RecordedLeadership]
) -> DataFrame:
    """Lane, consumer, incarnation, its `prefetch`, `joined_at` and `ended_at`. Where the ledger has no record
    of its joining, it was there when a leader began: `joined_at` is that; `ended_at` null: it was not taken
    back so far."""
    told = records.where(F.col("event").isin([Event.CONSUMER_JOINED, Event.CONSUMER_TAKEN_BACK])).select(
        "lane", "consumer", "incarnation",
        F.get_json_object("detail", "$.prefetch").cast("int").alias("prefetch"),
        F.when(F.col("event") == Event.CONSUMER_JOINED, F.col("time")).alias("joined_at"),
        F.when(F.col("event") == Event.CONSUMER_TAKEN_BACK, F.col("time")).alias("ended_at"),
    )  # fmt: skip
    rows = [row for leadership in leaderships for row in _known_before(leadership)]
    table = arrow_table(
        rows, lane=pa.string(), consumer=pa.string(), incarnation=pa.string(), prefetch=pa.int32(),
        known_us=pa.int64(),
    )  # fmt: skip
    known = spark.createDataFrame(table).withColumn("known_at", F.timestamp_micros("known_us"))
    both = told.unionByName(known.drop("known_us"), allowMissingColumns=True)
    return both.groupBy("lane", "consumer", "incarnation").agg(
        F.max("prefetch").alias("prefetch"),
        F.coalesce(F.min("joined_at"), F.min("known_at")).alias("joined_at"),
        F.min("ended_at").alias("ended_at"),
    )


def _known_before(leadership: RecordedLeadership) -> list[tuple[Any, ...]]:
    """Who was there when it began."""
    told = leadership.options.get("consumers")
    if leadership.started is None or not isinstance(told, list):
        return []
    return [
        (leadership.lane, each.get("consumer"), each.get("incarnation"), each.get("prefetch"),
         leadership.started.time_us)
        for each in told
        if isinstance(each, dict)
    ]  # fmt: skip
