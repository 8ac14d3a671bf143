"""The command line of docs/pipeline.md on a cluster: a master and two executors say what one process says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
import pytest

from dispatcher.pipeline.ledger_files import find_files
from tests.pipeline.conftest import QUICK_JAVA, Everything, Report
from tests.pipeline.planted_gaps import killed
from tests.pipeline.planted_violations import days
from tests.pipeline.streams import rows as rows_of
from tests.pipeline.streams import told, violations_of
from tests.pipeline.test_incremental import tables
from tests.waiting import wait_until

#: Java, beside others that use all cores; it ends within that, too.
STARTS_WITHIN_S = 200.0
ROOT = Path(__file__).parents[2]
SPARK = Path(pyspark.__file__).parent
#: Of this test's ledger, and of the one that all tests share.
LANES = {"days", "killed"}

#: deploy/pipeline.py several times within one cluster application: its executors are started once.
ALL = """
import json, runpy, sys

from dispatcher.pipeline.session import spark_session

commands = json.loads(sys.argv[1])
with spark_session():
    for arguments in commands:
        sys.argv[1:] = arguments
        try:
            runpy.run_path("deploy/pipeline.py", run_name="__main__")
        except SystemExit as ended:
            print("exit code:", ended.code)
"""


def environment() -> dict[str, str]:
    return {
        **os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT),
        "JDK_JAVA_OPTIONS": QUICK_JAVA,
    }  # fmt: skip


@contextmanager
def daemon(log: Path, name: str, *arguments: str) -> Iterator[None]:
    """One of Spark's own processes, ended by its id."""
    options = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    with log.open("w") as output:
        process = subprocess.Popen(
            [SPARK / "bin" / "spark-class", f"org.apache.spark.deploy.{name}", *arguments, *options],
            stdout=output, stderr=output, env=environment(),
        )  # fmt: skip
    try:
        yield
    finally:
        process.terminate()
        process.wait(STARTS_WITHIN_S)


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """The URL of a master with a worker that has room for two executors."""
    log = tmp_path / "master.log"

    def logged(pattern: str) -> list[str]:
        return re.findall(pattern, log.read_text())

    with ExitStack() as running:
        running.enter_context(daemon(log, "master.Master"))
        (url,) = wait_until(lambda: logged(r"Starting Spark master at (spark://\S+)"), STARTS_WITHIN_S)
        work = ("--cores", "2", "--memory", "2g", "--work-dir", str(tmp_path / "work"))
        running.enter_context(daemon(tmp_path / "worker.log", "worker.Worker", url, *work))
        wait_until(lambda: logged("Registering worker"), STARTS_WITHIN_S)
        yield url


@pytest.mark.slow
@pytest.mark.timeout(1_500)
def test_a_cluster_says_what_one_process_says(everything: Everything, master: str, tmp_path: Path) -> None:
    ledger, report, live = (tmp_path / name for name in ("ledger", "of-cluster", "live"))
    days(ledger)
    killed(ledger)
    assert {each.lane for each in find_files(str(ledger)).files} == LANES
    program = tmp_path / "all.py"
    program.write_text(ALL)
    forgetting = ("--forget-after", "3d", "--keep", "3d")
    options = ("--consumers", "1,2", "--prefetch", "10", "--policy", "exclusive")
    commands = [
        ["run", "--input", str(ledger), "--output", str(report)],
        ["advise", "--report", str(report), *options],
        ["stream", "--input", str(ledger), "--output", str(live), "--until-caught-up", *forgetting],
    ]
    done = subprocess.run(
        [
            SPARK / "bin" / "spark-submit", "--master", master, "--conf", "spark.executor.cores=1",
            str(program), json.dumps(commands),
        ],
        cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    codes = re.findall(r"^exit code: (.*)$", done.stdout, re.M)
    assert codes == ["1", "0", "0"], done.stderr  # order was violated
    chatter = [line for line in done.stderr.splitlines() if " INFO " in line and "SparkContext: " not in line]
    assert chatter == []
    verdict, _, rest = done.stdout.partition("exit code: 1\n")
    advice, _, alerts = rest.partition("exit code: 0\n")
    assert verdict.splitlines()[-1].startswith("Verdict: VIOLATED in ")
    assert "consumers" in advice
    assert len(list(tmp_path.glob("work/app-*/[01]"))) == 2  # both have worked
    found = Report(report, json.loads((report / "summary.json").read_text()))
    assert found.rows("advise")
    assert violations_of(live) == told(found.rows("violations"))
    assert alerts.count("\n{") + alerts.startswith("{") == len(rows_of(live, "alerts"))
    said, one = (tables(each, LANES) for each in (found, everything.report))
    assert said == one
