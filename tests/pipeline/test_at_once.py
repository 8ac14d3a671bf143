"""Parts of a run at the same time."""

from __future__ import annotations

import threading

import pytest
from pyspark.sql import SparkSession

from dispatcher.errors import ConfigurationError
from dispatcher.pipeline.at_once import at_once


def test_all_parts_run_at_once_and_the_problem_of_the_first_one_is_raised(spark: SparkSession) -> None:
    meeting = threading.Barrier(2, timeout=60)
    ended = []

    def fails(name: str) -> None:
        meeting.wait()  # alone it would be broken
        ended.append(spark.range(3).count())
        raise ConfigurationError(name)

    with pytest.raises(ConfigurationError, match="second"):
        at_once(meeting.wait, lambda: fails("second"))
    with pytest.raises(ConfigurationError, match="first"):
        at_once(lambda: fails("first"), lambda: fails("second"))
    assert ended == [3, 3, 3], "the other one has ended, too"
