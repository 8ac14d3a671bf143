"""How much of Spark a run needs: what one over few records takes is mostly its jobs."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from tests.pipeline.conftest import run_pipeline
from tests.pipeline.ledgers import Leader, Numbers, in_order

JOBS_MAX = 40


def test_a_run_over_a_small_ledger_has_few_jobs(spark: SparkSession, tmp_path: Path) -> None:
    def jobs() -> int:
        return int(spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs())

    leader, numbers = Leader(tmp_path / "ledger"), Numbers()
    leader.hand(*(numbers.number(each) for each in in_order("g", 3)))
    leader.end()
    before = jobs()
    run_pipeline(spark, tmp_path)
    assert 0 < jobs() - before <= JOBS_MAX
