"""A slice of chaos, and how a run ends otherwise.

`DISPATCHER_CHAOS_SEED=4711 scripts/test tests/chaos` takes another plan than the usual one. When its faults
meet which message differs from run to run in any case.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from dispatcher.cli import app
from dispatcher.nodes.guard import descendants
from tests.chaos.__main__ import _limits, _parsed, main
from tests.chaos.going_on import Limits
from tests.chaos.plan import NODE_FAULTS, ON_CLUSTER, STREAMS, Plan
from tests.chaos.verdict import NO_VERDICT
from tests.service.harness import ROOT
from tests.waiting import wait_until

SECONDS = 20
#: A plan in which every part of the system is hurt. RabbitMQ is not killed soon after Redis has lost data: a
#: queue that was declared within the second before has no leader for ever then (RabbitMQ 3.10.8, one node),
#: and after such a loss messages of any group may be in it, for all that the lane knows.
SEED = int(os.environ.get("DISPATCHER_CHAOS_SEED", "4505"))
#: On a cluster: a node is parted from the others, Redis' primary is lost, its replica was cut off.
CLUSTER_SECONDS, CLUSTER_SEED = 35, 360
#: With two shards: RabbitMQ is stopped, a leader and Redis are killed, groups move and are taken out.
SHARDS_SEED = 18409
#: Messages per second. Each costs every process something; the faults are what makes the difference.
RATE, CLUSTER_RATE = 100, 40
FAIL_OVERS = {kind.name for kind in ON_CLUSTER["redis"].kinds}
REDIS_FAULTS = {kind.name for kind in STREAMS["redis"].kinds}
#: Servers start, and what is waiting at the end is handled: on a busy machine that takes minutes.
TIMEOUT_S = CLUSTER_SECONDS + 600
#: Of one plan, when RabbitMQ leaves queues without a leader. A kill does that within the second after a queue
#: was declared; when faults meet which declare differs from run to run.
RUNS_MAX = 3

PROGRAM = [sys.executable, "-m", "tests.chaos"]
Ended = subprocess.CompletedProcess[str]

pytestmark = pytest.mark.slow
held = pytest.mark.timeout(RUNS_MAX * (TIMEOUT_S + 30))


def _arguments(folder: Path, seconds: float, seed: int, *more: str) -> list[str]:
    """Of one lane, unless `more` says another policy."""
    numbers = ["--seconds", str(seconds), "--seed", str(seed), "--policy", "exclusive"]
    return [*numbers, "--report", str(folder), *more]


def _command(folder: Path, seconds: float, seed: int, *more: str) -> list[str]:
    return [*PROGRAM, *_arguments(folder, seconds, seed, *more)]


def _as_program(arguments: list[str]) -> Ended:
    return subprocess.run(
        [*PROGRAM, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


def _with_warm_spark(arguments: list[str]) -> tuple[str, str]:
    run = CliRunner().invoke(app, arguments)
    return run.stdout, f"{run.stderr} {run.exception}"


def _in_this_process(arguments: list[str]) -> Ended:
    """Whose Spark is warm: most of what the pipeline needs for few records is a start of Java."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        code = main(arguments, run_pipeline=_with_warm_spark)
    return subprocess.CompletedProcess(arguments, code, printed.getvalue(), "")


class Held(NamedTuple):
    """A run without a violation."""

    printed: str
    report: dict[str, Any]
    folder: Path


def _held(
    folder: Path, seconds: float, seed: int, *more: str, play: Callable[[list[str]], Ended] = _as_program
) -> Held:
    """Another run is made when RabbitMQ has left a queue without a leader (docs/guarantees.md, "On a
    cluster"): that run has no verdict."""
    for number in range(RUNS_MAX):
        of_run = folder / str(number)
        run = play(_arguments(of_run, seconds, seed, *more))
        if run.returncode != 0:
            assert run.returncode == NO_VERDICT, run.stdout + run.stderr
            assert (of_run / "chaos.json").exists(), run.stdout + run.stderr
        report = json.loads((of_run / "chaos.json").read_text())
        assert report["violations"] == []
        if run.returncode == 0:
            return Held(run.stdout, report, of_run)
        assert report["without_leader"]
    raise AssertionError(f"{RUNS_MAX} runs without a verdict: {run.stdout}{run.stderr}")


@held
def test_everything_holds_for_a_while(spark: SparkSession, tmp_path: Path) -> None:
    more = ("--policy", "all", "--rate", str(RATE), "--ledger")
    printed, report, folder = _held(tmp_path, SECONDS, SEED, *more, play=_in_this_process)
    assert printed.startswith(f"seed: {SEED}\n")
    assert len(report["faults"]) > 10
    assert all(lane["handled"] > 100 for lane in report["lanes"].values())  # a busy machine does less
    # Whether one is evicted depends on what else happens to it and its leader. Who had to be, and was not, is
    # a violation.
    assert any(fault["fault"] == "stick_consumer" and fault["target"] for fault in report["faults"])
    assert "the pipeline's verdict on the ledger: " in printed
    assert (folder / "chaos.png").read_bytes().startswith(b"\x89PNG")


@held
def test_each_group_is_in_order_in_one_of_two_shards(tmp_path: Path) -> None:
    report = _held(tmp_path, SECONDS, SHARDS_SEED, "--policy", "shards", "--rate", str(RATE)).report
    assert list(report["lanes"]) == ["spread@1", "spread@2"]
    assert all(lane["handled"] > 30 for lane in report["lanes"].values())
    happened = {fault["fault"] for fault in report["faults"] if not fault["note"].startswith("skipped")}
    assert {"kill_leader", "stop_rabbitmq"} <= happened


@held
def test_everything_holds_on_a_cluster(tmp_path: Path) -> None:
    """How long lanes may stand still is asked with the limits of a machine that others use, too."""
    report = _held(
        tmp_path, CLUSTER_SECONDS, CLUSTER_SEED, "--policy", "all", "--cluster", "--stall", "60",
        "--stall-after-stop", "45", "--stall-after-fail-over", "30", "--rate", str(CLUSTER_RATE),
    ).report  # fmt: skip
    assert all(lane["handled"] > 30 for lane in report["lanes"].values())
    happened = {fault["fault"] for fault in report["faults"] if not fault["note"].startswith("skipped")}
    assert happened & NODE_FAULTS, happened
    assert happened & FAIL_OVERS, happened


@pytest.mark.parametrize(
    ("option", "field"),
    [
        ("--stall", "stall_s"),
        ("--stall-after-stop", "after_stop_s"),
        ("--stall-after-fail-over", "after_fail_over_s"),
    ],
)
def test_each_limit_is_an_option(option: str, field: str) -> None:
    assert _limits(_parsed(["--cluster", option, "77"])) == Limits()._replace(**{field: 77.0})
    with pytest.raises(SystemExit):
        _parsed([option, "77"])


def test_how_long_lanes_may_stand_still_is_asked_of_a_cluster_only(tmp_path: Path) -> None:
    run = subprocess.run(
        _command(tmp_path, 1, 1, "--stall", "30"), cwd=ROOT, capture_output=True, check=False
    )
    assert run.returncode == 2


def _servers_start(run: subprocess.Popen[str], folder: Path) -> None:
    """RabbitMQ takes seconds for it."""
    wait_until(lambda: any("beam.smp" in _command_line(pid) for pid in descendants(run.pid)), what="RabbitMQ")
    assert not list((folder / "record").glob("*.log")), "dispatchers"


def _all_runs(run: subprocess.Popen[str], folder: Path) -> None:
    _begun(folder)
    assert len(descendants(run.pid)) > 12  # servers, dispatchers, consumers, producers


@pytest.mark.parametrize(("number", "when"), [(signal.SIGINT, _all_runs), (signal.SIGTERM, _servers_start)])
def test_a_signal_ends_everything(
    tmp_path: Path, number: signal.Signals, when: Callable[[subprocess.Popen[str], Path], None]
) -> None:
    with subprocess.Popen(_command(tmp_path, 600, 1), cwd=ROOT, stdout=subprocess.PIPE, text=True) as run:
        when(run, tmp_path)
        started = descendants(run.pid)
        run.send_signal(number)
        assert run.wait(60) == 130
        assert run.stdout is not None
        assert "everything is ended" in run.stdout.read()
    wait_until(lambda: not [pid for pid in started if Path(f"/proc/{pid}/stat").exists()])


def test_a_server_that_does_not_start_again_is_no_verdict(tmp_path: Path) -> None:
    """Redis is killed for the first time within seconds and finds files that it can't read."""
    with subprocess.Popen(
        _command(tmp_path, 600, _seed_that_kills_redis_first()), cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as run:
        _begun(tmp_path)
        manifests = list(_redis_data(run.pid).glob("appendonlydir/*.manifest"))
        assert manifests
        for manifest in manifests:
            manifest.write_text("nothing that Redis has written\n")
        assert run.stdout is not None
        printed = run.stdout.read()
        assert run.wait(60) == 3, printed
    assert "redis ended while it was starting" in printed
    assert "No verdict" in printed
    log = (tmp_path / "record" / "redis-output.log").read_text()
    assert "manifest" in log
    assert (tmp_path / "record" / "rabbitmq-output.log").exists()


def _command_line(pid: int) -> str:
    """Also where a loader of its own runs it."""
    with contextlib.suppress(OSError):  # it is gone
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def _begun(folder: Path) -> None:
    wait_until(lambda: list((folder / "record").glob("*.record")), 60, "the chaos to begin")


def _seed_that_kills_redis_first() -> int:
    def first_s(seed: int) -> float:
        fault = next(fault for fault in Plan(seed, 600).faults if fault.name in REDIS_FAULTS)
        return fault.at_s if fault.name == "kill_redis" else math.inf

    return min(range(100), key=first_s)


def _redis_data(pid: int) -> Path:
    for child in descendants(pid):
        with contextlib.suppress(OSError):  # it is gone
            folder = Path(f"/proc/{child}/cwd").resolve(strict=True)
            if (folder / "appendonlydir").is_dir():
                return folder
    raise AssertionError("no Redis")
