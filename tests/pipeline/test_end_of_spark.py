"""Spark's Java process ends while something is done with it: one line says why, and what to do."""

from __future__ import annotations

import os
import subprocess
import sys

from dispatcher.pipeline.run import fitting_records
from dispatcher.pipeline.session import heap_mib

#: Both in one process, which has a Spark of its own: one after the other ends.
BOTH = """
import os, signal
from dispatcher.errors import ConfigurationError
from dispatcher.pipeline.run import clear_errors
from dispatcher.pipeline.session import java_process, spark_session

def fill(spark):
    spark.range(1).selectExpr("size(sequence(id, 100000000 + id))").collect()

def kill(spark):
    os.kill(java_process(spark), signal.SIGKILL)
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
        # Most of the time goes into compiling what runs once.
        env={**os.environ, "SPARK_DRIVER_MEMORY": "500m", "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1"},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    assert "Traceback" not in found.stderr
    full, killed = found.stdout.splitlines()
    assert full == (
        "Spark has too little memory (500m of heap here): set SPARK_DRIVER_MEMORY to more (on a cluster "
        "--driver-memory and --executor-memory of spark-submit), and start again"
    )
    assert killed == "Spark's Java process has ended (exit code -9): start again"


def test_the_heap_grows_with_the_ledger_up_to_half_of_the_memory() -> None:
    most = heap_mib(10**15)
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 1_024 <= most <= max(1_024, pages // 2**21)
    assert [heap_mib(records) for records in (0, 10_000_000)] == [1_024, 1_024]
    assert [heap_mib(records) for records in (10_000_001, 45_000_000)] == [min(2_048, most), min(5_120, most)]
    assert fitting_records(45_000_000)["spark.driver.memory"] == f"{heap_mib(45_000_000)}m"
