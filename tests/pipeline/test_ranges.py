"""A window that is cut into ranges says of every row what the whole one says, wherever it is cut."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from bench.pipeline import by_duckdb
from bench.pipeline.__main__ import differences
from bench.pipeline.ledger import make_ledger, name_of
from bench.pipeline.traffic import HOT
from dispatcher.pipeline.ledger_files import find_files
from dispatcher.pipeline.progress import StageProgress
from dispatcher.pipeline.ranges import (
    BEFORE,
    IS_COPY,
    RANGE,
    Leading,
    Ranges,
    largest,
    leading,
    without_copies,
)
from tests.pipeline.conftest import Everything, jobs_of, run_pipeline
from tests.pipeline.test_incremental import tables

#: Of Spark, also where every window of a run is cut.
JOBS_MAX = 40
#: Of the ledger's records.
READS_MAX = 3
#: Of a lane that is cut between all its rows.
ROWS_MAX = 500


def test_few_rows_lie_together_and_windows_say_what_whole_ones_do(spark: SparkSession) -> None:
    """Of 2,000 rows the hot one of 20 groups has about half."""
    row = F.abs(F.hash("id")).cast("bigint")  # another hash than the sample is taken by
    rows = spark.range(2_000).select(
        "id", F.when(row % 2 == 0, 0).otherwise(row % 20).alias("group"), (row % 1_000).alias("value")
    )

    def judged(found: DataFrame, *by: str) -> DataFrame:
        before = Window.partitionBy("group", *by).orderBy("id").rowsBetween(*BEFORE)
        former = F.lag("id").over(Window.partitionBy("group", *by).orderBy("id"))
        return found.withColumns({"most": F.max("value").over(before), "former": former})

    cutter, order = Ranges(2_000, 100), [F.col("id")]
    facts = Leading(F.col("value"), (), ("value",)), Leading(F.col("id"), (), ("id",))
    found = cutter.cut(rows, ["group"], order, leading(["group"], *facts))
    sizes = found.where(~F.col(IS_COPY)).groupBy("group", RANGE).count().collect()
    assert max(each["count"] for each in sizes) < 200
    hot = [each for each in sizes if each["group"] == 0]
    assert 7 <= len(hot) <= 15
    of_others = {each["group"] for each in sizes} - {0}
    assert len(sizes) - len(hot) <= 2 * len(of_others), "groups with few rows are cut once at most"
    assert found.where(IS_COPY).count() <= 2 * len(sizes)
    whole = sorted(map(str, judged(rows).collect()))
    assert sorted(map(str, without_copies(judged(found, RANGE)).collect())) == whole
    plain = cutter.cut(rows, ["group"], order, largest(["group"], "value"))
    most = F.max("value").over(Window.partitionBy("group", RANGE).orderBy("id").rangeBetween(*BEFORE))
    found = without_copies(plain.withColumn("most", most))
    assert found.exceptAll(judged(rows).drop("former").select(*found.columns)).isEmpty()
    uncut = Ranges(100, 100).cut(rows, ["group"], order, largest(["group"]))
    assert RANGE not in uncut.columns


@pytest.mark.slow
def test_with_every_row_alone_in_its_range_lanes_are_the_same_cell_by_cell(
    spark: SparkSession, everything: Everything, tmp_path: Path
) -> None:
    """All but those of many rows: so every violation, and all that only looks like one, is across a cut."""
    found, rows, folders = find_files(str(everything.origin)), Counter[str](), dict[str, Path]()
    for file in found.files:
        rows[file.lane] += file.last - file.first + 1
        folders[file.lane] = Path(file.path).parents[1]
    lanes = {lane for lane, count in rows.items() if count <= ROWS_MAX}
    assert lanes >= everything.kept | everything.verdicts.keys() | everything.readers.keys()
    assert lanes >= {lane for lane, *_ in everything.violations}
    (tmp_path / "ledger").mkdir()
    for lane in lanes:
        (tmp_path / "ledger" / folders[lane].name).symlink_to(folders[lane])
    cut, whole = (
        tables(each, lanes) for each in (run_pipeline(spark, tmp_path, range_rows=1), everything.report)
    )
    for name, found in whole.items():
        assert cut[name] == found, name


@pytest.mark.slow
def test_a_hot_group_is_judged_like_others_and_each_record_is_read_at_most_three_times(
    spark: SparkSession, tmp_path: Path
) -> None:
    """One group of each lane has most messages, and violations in the middle of them: they are found, and
    DuckDB makes the same tables without cutting anything."""
    made = make_ledger(tmp_path / "ledger", 9_000, 100, planted=4, hot_share=0.5)
    in_hot = {rule for _, group, rule, _ in made.violations if group == name_of(HOT)}
    assert in_hot == {"order", "overlap"}
    by_duckdb.make(tmp_path / "ledger", tmp_path / "tables")
    before = jobs_of(spark)
    report = run_pipeline(spark, tmp_path, stage=StageProgress(spark), range_rows=300).folder
    after = jobs_of(spark)
    assert after - before <= JOBS_MAX
    assert differences(report, made) == []
    assert by_duckdb.differences(report, tmp_path / "tables") == []
    read = [each for job in range(before, after) for each in read_by(spark, job)]
    counts = [count for name, count in read if name == "reading leaderships"]
    scans = [count for count in counts if count > made.rows / 2]  # others read what is kept of them
    assert 0 < len(scans) <= READS_MAX
    assert sum(scans) <= made.rows * READS_MAX
    of_files = sum(count for name, count in read if name == "statistics")
    hands = ds.dataset(report / "hand_overs").count_rows()
    assert 0 < of_files < hands / 10, "of few records the hand-overs stay in memory"


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
