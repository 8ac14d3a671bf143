"""A stream finds what the batch run finds, in whatever batches the files come."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from dispatcher.pipeline.live_folder import live_folder
from dispatcher.pipeline.stream import Stream, StreamOptions
from dispatcher.pipeline.stream_batch import Limits
from dispatcher.pipeline.stream_reading import Ledger
from tests.pipeline.conftest import Everything

HOUR_US = 3_600_000_000


def catch_up(spark: SparkSession, ledger: Path, live: Path, batch_files: int = 500) -> None:
    """Stream what is there."""
    place = Ledger(str(ledger))
    options = StreamOptions(5_000, True, batch_files, Limits(72 * HOUR_US, 72 * HOUR_US))
    with live_folder(live, None, place.url) as folder:
        Stream(spark, place, folder, options).run()


@pytest.fixture(scope="session")
def caught_up(everything: Everything, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tables of a stream over every lane that tests have planted, in several batches."""
    live = tmp_path_factory.mktemp("live") / "live"
    catch_up(spark, everything.report.folder.parent / "ledger", live, batch_files=30)
    return live


def rows(live: Path, table: str) -> list[dict[str, Any]]:
    return ds.dataset(live / table).to_table().to_pylist()  # type: ignore[no-any-return]


def test_it_raises_what_the_batch_run_finds_each_once(everything: Everything, caught_up: Path) -> None:
    alerts = [each for each in rows(caught_up, "alerts") if each["kind"] == "violation"]
    expected = everything.report.rows("violations")
    names = [name for name in expected[0] if name != "other_outcome"]

    def told(found: list[dict[str, Any]]) -> list[str]:
        return sorted(json.dumps([each[name] for name in names], default=str) for each in found)

    assert told(alerts) == told(expected)
    assert len({each["id"] for each in alerts}) == len(alerts)
