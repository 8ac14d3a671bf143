"""Simulations on Spark, one task each: on this machine's cores, or on a cluster's."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import SparkSession

import dispatcher
from dispatcher.errors import ConfigurationError
from dispatcher.pipeline.advise.measures import Measures, simulate
from dispatcher.pipeline.advise.traffic import Scenario, Traffic


@contextlib.contextmanager
def workers(spark: SparkSession) -> Iterator[None]:
    """Make Spark's Python workers know what they simulate: those of a cluster get this package as a file."""
    context = spark.sparkContext
    if str(context.master).startswith("local"):
        if "PYSPARK_PYTHON" not in os.environ:
            context.pythonExec = sys.executable  # else whatever `python3` is
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        package, path = Path(folder) / "dispatcher.zip", list(sys.path)
        pack(package)
        context.addPyFile(str(package))
        sys.path[:] = path  # here it is already
        yield


def pack(package: Path) -> None:
    """Write what workers import: the simulation needs nothing but Python."""
    root = Path(dispatcher.__file__).parent
    with zipfile.ZipFile(package, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(root.rglob("*.py")):
            archive.write(file, file.relative_to(root.parent))


def simulate_all(spark: SparkSession, work: list[tuple[Traffic, Scenario]]) -> list[Measures]:
    """What each shows, in the order given. Raises ConfigurationError where the workers can't."""
    from py4j.protocol import Py4JJavaError

    if not work:
        return []
    traffics = {traffic.lane: traffic for traffic, _ in work}
    shared = spark.sparkContext.broadcast(traffics)
    tasks = [(traffic.lane, scenario) for traffic, scenario in work]
    try:
        made = spark.sparkContext.parallelize(tasks, len(tasks)).map(
            lambda task: simulate(shared.value[task[0]], task[1])
        )
        return list(made.collect())
    except Py4JJavaError as problem:
        raise ConfigurationError(f"Spark's Python workers can't simulate: {_reason(str(problem))}") from None
    finally:
        shared.unpersist()


def _reason(text: str) -> str:
    """The worker's own words, one line of them."""
    lines = [line.strip() for line in text.splitlines()]
    told = [line for line in lines if "Error:" in line or "MISMATCH" in line or "Cannot run program" in line]
    return (told or lines)[0][:300]
