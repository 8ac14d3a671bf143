"""Spark's Java process ends while something is done with it: one line says why, and what to do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from pyspark.sql import SparkSession

from dispatcher.errors import ConfigurationError
from dispatcher.pipeline.run import fitting_records, parts
from dispatcher.pipeline.session import await_end, heap_mib, spark_session
from tests.pipeline.conftest import QUICK_JAVA

HEAP, JAVA_OPTIONS = "spark.driver.memory", "spark.driver.extraJavaOptions"

#: Both in one process, which has a Spark of its own: one after the other ends.
BOTH = """
from dispatcher.errors import ConfigurationError
from dispatcher.pipeline.run import clear_errors
from dispatcher.pipeline.session import spark_session

def fill(spark):
    spark.range(1).selectExpr("size(sequence(id, 100000000 + id))").collect()

def kill(spark):
    spark.sparkContext._gateway.proc.kill()
    spark.sparkContext._gateway.proc.wait()
    try:
        with spark_session():
            print("never")
    except ConfigurationError as error:
        print("within:", error)
    spark.range(1).collect()

for act in fill, kill:
    try:
        with spark_session("local[1]") as spark, clear_errors():
            act(spark)
    except ConfigurationError as error:
        print(error)
"""


def test_a_full_heap_and_a_killed_process_are_told_in_a_line() -> None:
    found = subprocess.run(
        [sys.executable, "-c", BOTH],
        env={**os.environ, "SPARK_DRIVER_MEMORY": "500m", "JDK_JAVA_OPTIONS": QUICK_JAVA},
        capture_output=True, text=True, check=False, timeout=550,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    assert "Traceback" not in found.stderr
    full, within, killed = found.stdout.splitlines()
    assert full == (
        "Spark has too little memory (500m of heap here): set SPARK_DRIVER_MEMORY to more (on a cluster "
        "--driver-memory and --executor-memory of spark-submit), and start again"
    )
    assert within == f"within: {killed}"
    assert killed == "Spark's Java process has ended (exit code -9): start again"


def test_a_session_within_a_session_has_what_it_asks_for_or_says_why_not(spark: SparkSession) -> None:
    name = "spark.sql.shuffle.partitions"
    before = spark.conf.get(name)
    with spark_session(settings={name: "17", HEAP: "512m", JAVA_OPTIONS: "-XX:+UseSerialGC"}) as same:
        assert same is spark
        assert spark.conf.get(name) == "17"
        with spark_session("local[1]"):
            assert spark.conf.get(name) == "17"
    assert spark.conf.get(name) == before
    for asked, named in (
        (("local[2]", {}), "spark.master: local[2] is asked for, and the Spark session that is open has "),
        ((None, {HEAP: "900g"}), f"{HEAP}: 900g is asked for"),
        ((None, {JAVA_OPTIONS: "-Dx=1"}), f"{JAVA_OPTIONS}: -Dx=1 is asked for"),
        ((None, {"spark.executor.cores": "3"}), "spark.executor.cores: 3 is asked for"),
    ):
        with pytest.raises(ConfigurationError) as refused, spark_session(*asked):
            pass
        assert str(refused.value).startswith(named)


def test_the_heap_grows_with_the_ledger_up_to_half_of_the_memory() -> None:
    most = heap_mib(10**15)
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 1_024 <= most <= max(1_024, pages // 2**21)
    assert [heap_mib(records) for records in (0, 500_000)] == [1_024, 1_024]
    assert [heap_mib(records) for records in (500_001, 10_000_000)] == [min(2_048, most)] * 2
    assert [heap_mib(records) for records in (10_000_001, 45_000_000)] == [min(3_072, most), min(6_144, most)]
    assert fitting_records(45_000_000)["spark.driver.memory"] == f"{heap_mib(45_000_000)}m"


def test_settings_of_spark_and_java_suit_the_ledger() -> None:
    for records, java, is_compiled in (
        (50_000, {"-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"}, False),
        (50_001, {"-XX:TieredStopAtLevel=1", "-XX:+UseParallelGC"}, True),
        (500_000, {"-XX:TieredStopAtLevel=1", "-XX:+UseParallelGC"}, True),
        (500_001, {"-XX:+UseParallelGC"}, True),
    ):
        found = fitting_records(records)
        assert found["spark.sql.adaptive.enabled"] == "false"
        assert found["spark.sql.autoBroadcastJoinThreshold"] == "-1"
        assert ("spark.sql.codegen.wholeStage" in found) is not is_compiled
        always = {"-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote"}
        always |= {"-XX:MetaspaceSize=256m", "-XX:ReservedCodeCacheSize=256m"}
        assert {*found[JAVA_OPTIONS].split()} == java | always


def test_the_number_of_parts_grows_with_the_ledger() -> None:
    assert [parts(records, 8) for records in (0, 50_000, 50_001, 150_001)] == [1, 1, 2, 4]
    assert [parts(records, 8) for records in (400_001, 2_000_000, 2_000_001)] == [8, 8, 9]


def test_a_java_process_that_does_not_end_is_killed() -> None:
    """On a machine that is busy with others a run must not end with a stack trace when all is done."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        await_end(process, 0.1)
    assert process.returncode == -signal.SIGKILL
