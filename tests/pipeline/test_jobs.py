"""How much of Spark a run needs: what one over few records takes is mostly its jobs."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from bench.pipeline.__main__ import differences
from bench.pipeline.ledger import make_ledger, name_of
from bench.pipeline.traffic import HOT
from dispatcher.pipeline.progress import StageProgress
from tests.pipeline.conftest import Everything, jobs_of, run_pipeline

JOBS_MAX = 30
READS_MAX = 3


def test_a_run_over_few_records_has_few_jobs(everything: Everything) -> None:
    """Also where there are gaps, violations, several leaders and lanes that hand over."""
    assert 0 < everything.jobs <= JOBS_MAX


def test_each_record_is_read_at_most_three_times_and_a_hot_group_is_judged_like_others(
    spark: SparkSession, tmp_path: Path
) -> None:
    """One group of each lane has most messages, and violations in the middle of them."""
    made = make_ledger(tmp_path / "ledger", 9_000, 100, planted=2, hot_share=0.6)
    in_hot = {rule for _, group, rule, _ in made.violations if group == name_of(HOT)}
    assert in_hot == {"order", "overlap"}
    before = jobs_of(spark)
    report = run_pipeline(spark, tmp_path, stage=StageProgress(spark))
    assert differences(report.folder, made) == []
    counts = [
        count for job in range(before, jobs_of(spark))
        for name, count in read_by(spark, job) if name == "reading leaderships"
    ]  # fmt: skip
    scans = [count for count in counts if count > made.rows / 2]  # others read what is kept of them
    assert 0 < len(scans) <= READS_MAX
    assert sum(scans) <= made.rows * READS_MAX


def read_by(spark: SparkSession, job: int) -> list[tuple[str, int]]:
    """By each of the job's stages that ran: what it was described as, and how many records of files it
    read."""
    context = spark.sparkContext
    told = context.statusTracker().getJobInfo(job)
    assert told is not None
    store = context._jsc.sc().statusStore()
    stages = [store.lastStageAttempt(number) for number in told.stageIds]
    ran = [each for each in stages if each.description().isDefined()]
    return [(each.description().get(), each.inputRecords()) for each in ran]
