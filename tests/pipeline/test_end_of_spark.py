"""Spark's Java process ends while something is done with it: one line says why, and what to do."""

from __future__ import annotations

import os
import subprocess
import sys

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
        env={**os.environ, "SPARK_DRIVER_MEMORY": "500m"},
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
