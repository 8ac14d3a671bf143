"""The demo as people run it: it verifies itself, says what went wrong, and leaves nothing behind."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
import redis
from rich.console import Console

from dispatcher import demo
from dispatcher.demo import queues
from dispatcher.demo.checker import TableFault
from dispatcher.demo.pipeline import run_pipeline, show_verdict
from dispatcher.demo.screen import Screen
from dispatcher.errors import BrokerUnavailable, ConfigurationError, DispatcherError, StoreUnavailable
from dispatcher.judge.judge import BreachKind
from dispatcher.nodes.guard import descendants
from dispatcher.wire.protocol import LaneNames
from tests.conftest import Vhost
from tests.demo.repository import Repository
from tests.page.reports import write_report
from tests.waiting import wait_until

ZEROS = (*BreachKind, *TableFault, "left in high", "left in low", "left in changes.dead")
RUN_S = 240
ROOT = Path(__file__).parents[2]


@pytest.fixture
def environment(vhost: Vhost, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The demo's servers are those of the test; it must leave nothing in them."""
    servers = {"DISPATCHER_RABBITMQ_URL": vhost.amqp_url, "DISPATCHER_REDIS_URL": vhost.redis_url}
    for name, value in servers.items():
        monkeypatch.setenv(name, value)
    yield {**os.environ}
    assert vhost.management(f"queues/{vhost.name}") == []
    assert [e for e in vhost.management(f"exchanges/{vhost.name}") if "demo-" in e["name"]] == []


def _run(**input: object) -> tuple[int, str]:
    out = io.StringIO()
    code = demo.run(**input, console=Console(file=out, width=120))  # type: ignore[arg-type]
    return code, out.getvalue()


def _cell(output: str, row: str) -> str:
    found = re.search(rf"│ {re.escape(row)} +│ +(.*?) │", output)
    assert found is not None, output
    return found[1]


@pytest.mark.seed("Q26")
@pytest.mark.slow
@pytest.mark.timeout(900)  # with Spark, and others beside it
def test_generated_orders_survive_the_kills(environment: dict[str, str], tmp_path: Path) -> None:
    code, output = _run(orders=2_000, output=tmp_path / "demo")
    assert code == 0, output
    for zero in ZEROS:
        assert _cell(output, zero) == "0"
    assert _cell(output, "table against a plain replay, one after the other") == "equal"
    assert int(_cell(output, "groups moved")) > 0
    assert "consumer-5 has joined" in output
    assert "The dispatcher leads again" in output
    assert output.count("killed (kill -9)") == 2
    # And what the pipeline makes of it. What the killed dispatcher told nobody the next one has told.
    report = tmp_path / "demo" / "report"
    assert output.splitlines()[-1] == f"The page: {report}/report.html"
    assert (report / "report.html").is_file()
    summary = json.loads((report / "summary.json").read_text())
    assert summary["verdict"] == "kept", summary["gaps"]
    assert [gap["kind"] for gap in summary["gaps"]] == ["begins", "told_again"]
    assert 1_900 < summary["lanes"]["changes"]["hand_overs"] < 2_500
    assert "\nVerdict: " in output


def test_an_empty_parking_queue_is_removed_too(vhost: Vhost) -> None:
    """The dispatcher deletes it seconds after its last message (P-5), and may have been stopped before."""
    names = LaneNames("changes", f"demo-{vhost.name}")
    with pika.BlockingConnection(pika.URLParameters(vhost.amqp_url)) as connection:
        connection.channel().queue_declare(f"{names.exchange}.park.64", durable=True)
    queues.remove(vhost.amqp_url, names, [])
    assert vhost.management(f"queues/{vhost.name}") == []


@pytest.mark.slow
def test_the_history_of_a_repository_leads_to_its_tree(environment: dict[str, str], tmp_path: Path) -> None:
    repository = Repository(tmp_path / "repository")
    for text in ("one", "two", "three"):
        for name in (b"not utf-8 \xff", b"new\nline", b"plain", b"*#/[a] b"):
            repository.write(name, text)
        repository.commit()
    code, output = _run(git=repository.path, messages_min=1_000, pipeline=False)
    assert code == 0, output
    commit = repository.git("rev-parse", "HEAD").decode()[:12]
    assert _cell(output, f"table against git ls-tree -r {commit}") == "equal"
    assert "which is little: replayed" in output


@pytest.mark.slow
def test_a_strangers_write_to_the_table_fails_the_demo(environment: dict[str, str], redis_url: str) -> None:
    """What must not happen is found and named: here somebody else changes rows while the demo runs."""
    command = [sys.executable, "-m", "dispatcher", "demo", "--orders", "2000", "--no-pipeline"]
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        before = set(client.scan_iter(match="{demo-*}:rows", count=1_000))
        running = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

        def new_table() -> str | None:
            tables = set(client.scan_iter(match="{demo-*}:rows", count=1_000)) - before
            return tables.pop() if tables else None

        table = wait_until(new_table, RUN_S, "the demo's table")
        assert table is not None
        # What the demo has written so far it may write again, or remove; a row of nobody stays.
        for row in ("nobody's", *list(client.hgetall(table))[:20]):
            client.hset(table, row, "spoilt")
        output, _ = running.communicate(timeout=RUN_S)
    assert running.returncode == 1
    assert "Something did not hold." in output
    assert "rows differ" in output
    assert "spoilt" in output


@pytest.mark.slow
def test_an_interrupt_ends_everything(environment: dict[str, str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dispatcher", "demo", "--orders", "4000"]
    environment["TMPDIR"] = str(tmp_path)
    running = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert running.stdout is not None
    for line in running.stdout:
        if line.startswith("handled"):
            break
    started = descendants(running.pid)
    assert len(started) >= 12  # dispatcher and five consumers, a guard for each
    os.killpg(running.pid, signal.SIGINT)
    _, errors = running.communicate(timeout=RUN_S)
    assert running.returncode == 130
    assert errors == "dispatcher: interrupted; everything that was started is ended\n"
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started), what="no process left")
    assert list(tmp_path.iterdir()) == []


def test_servers_that_do_not_answer_are_named(vhost: Vhost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPATCHER_RABBITMQ_URL", "amqp://guest:guest@127.0.0.1:9/")
    monkeypatch.setenv("DISPATCHER_REDIS_URL", vhost.redis_url)
    with pytest.raises(BrokerUnavailable, match="RabbitMQ"):
        _run(orders=10, pipeline=False)
    monkeypatch.setenv("DISPATCHER_RABBITMQ_URL", vhost.amqp_url)
    monkeypatch.setenv("DISPATCHER_REDIS_URL", "redis://127.0.0.1:9/0")
    with pytest.raises(StoreUnavailable, match="Redis does not answer"):
        _run(orders=10, pipeline=False)


def test_a_ledger_that_shows_a_violation_fails_the_demo(tmp_path: Path) -> None:
    out = io.StringIO()
    screen = Screen(Console(file=out, width=200))
    assert not show_verdict(write_report(tmp_path / "violated", verdict="violated", violations=2), screen)
    assert "Verdict: VIOLATED in 2 groups" in out.getvalue()
    assert show_verdict(write_report(tmp_path / "unknown", verdict="unknown", unknown=2), screen)
    assert "Unknown is not violated" in out.getvalue()
    assert show_verdict(write_report(tmp_path / "kept"), screen)
    assert (tmp_path / "kept" / "report.html").is_file()


def test_what_the_pipeline_lacks_is_told_before_anything_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigurationError, match="is not empty: name a directory that the demo may fill"):
        _run(orders=10, output=ROOT)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"jre-headless.*or leave the pipeline out"):
        _run(orders=10, output=tmp_path / "demo")


def test_a_pipeline_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(DispatcherError, match=f"the pipeline failed: .*{tmp_path}/none"):
        run_pipeline(tmp_path / "none", tmp_path / "report", Screen(Console(file=io.StringIO())))


def test_a_path_without_history_is_refused_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dispatcher", "demo", "--git", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert ended.stderr.startswith(f"dispatcher: {tmp_path}: not a git repository")
    assert ended.stderr.count("\n") == 1


def test_a_program_that_lies_in_no_repository_generates_orders(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "dispatcher", tmp_path / "dispatcher")
    script = (
        "from rich.console import Console; from dispatcher.demo.run import choose_workload;"
        "from dispatcher.demo.screen import Screen;"
        "print(choose_workload(Screen(Console(width=200)), None, None, 50).title)"
    )
    chosen = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    reason, title = chosen.stdout.splitlines()
    assert reason.startswith("No git history to replay: ")
    assert "not a git repository" in reason
    assert reason.endswith("Generated orders instead.")
    assert title.startswith("50 events of an order book")
