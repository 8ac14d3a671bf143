"""Streams in this process, and what they have written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
from pyspark.sql import SparkSession

from dispatcher.pipeline.live_folder import live_folder
from dispatcher.pipeline.stream import Stream, StreamOptions
from dispatcher.pipeline.stream_batch import RetentionLimits
from dispatcher.pipeline.stream_reading import LedgerLocation

HOUR_US = 3_600_000_000
#: Of the planted ones: two batches.
BATCH_FILES = 45


def catch_up(
    spark: SparkSession, ledger: Path, live: Path, batch_files: int = 500, checkpoint: Path | None = None
) -> None:
    """Stream what is there."""
    place = LedgerLocation(str(ledger))
    options = StreamOptions(5_000, True, batch_files, RetentionLimits(72 * HOUR_US, 72 * HOUR_US))
    with live_folder(live, checkpoint, place.url) as folder:
        Stream(spark, place, folder, options).run()


def rows(live: Path, table: str) -> list[dict[str, Any]]:
    return ds.dataset(live / table).to_table().to_pylist()  # type: ignore[no-any-return]


def told(violations: list[dict[str, Any]]) -> list[str]:
    """With all evidence but what becomes of the other one later."""
    left_out = {"other_outcome", "id", "kind", "text", "raised_at", "latency_us"}
    return sorted(
        json.dumps({name: each[name] for name in sorted(each.keys() - left_out)}, default=str)
        for each in violations
    )


def violations_of(live: Path) -> list[str]:
    return told([each for each in rows(live, "alerts") if each["kind"] == "violation"])
