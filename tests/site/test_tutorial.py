"""docs/tutorial.md: its files do what it says, and the order holds over the kill."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from dispatcher.nodes import LocalRedis
from tests.conftest import Vhost
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text()
FILES = re.findall(r"```(?:python|yaml)\n# (\S+)\n(.*?)```", PAGE, re.DOTALL)
ORDERS, STEPS = 50, 40
START_S = 60.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the reader is: the page's files, but a port that is free."""
    for name, text in FILES:
        (tmp_path / name).write_text(text)
    settings = yaml.safe_load((tmp_path / "dispatcher.yaml").read_text())
    (tmp_path / "dispatcher.yaml").write_text(yaml.safe_dump({**settings, "http": {"listen": "127.0.0.1:0"}}))
    return tmp_path


@pytest.fixture
def start(vhost: Vhost, folder: Path) -> Iterator[Start]:
    with ExitStack() as stack:
        redis = stack.enter_context(LocalRedis())
        environment = {
            **os.environ, "PYTHONPATH": str(ROOT), "DISPATCHER_RABBITMQ_URL": vhost.amqp_url,
            "DISPATCHER_REDIS_URL": redis.url,
        }  # fmt: skip

        def started(*arguments: str) -> subprocess.Popen[bytes]:
            with (folder / f"{'-'.join(arguments[-2:])}.log").open("wb") as log:
                process = subprocess.Popen(
                    [sys.executable, *arguments], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                    stdout=log, stderr=log,
                )  # fmt: skip
            stack.callback(_end, process)
            return process

        yield started


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def test_the_page_has_these_files_and_programs() -> None:
    assert [name for name, _ in FILES] == ["dispatcher.yaml", "worker.py", "place.py", "check.py"]
    for command in ("dispatcher run", "python worker.py anna", "python place.py", "python check.py"):
        assert command in PAGE


def test_the_order_holds_over_the_kill(start: Start, folder: Path) -> None:
    handled = folder / "handled.txt"

    def lines() -> list[str]:
        return handled.read_text().splitlines() if handled.exists() else []

    start("-m", "dispatcher", "run")
    log = folder / "dispatcher-run.log"
    wait_until(lambda: "lane_led" in log.read_text(), START_S, "the lane to be led")
    anna = start("worker.py", "anna")
    start("worker.py", "ben")
    wait_until(lambda: log.read_text().count("consumer_joined") == 2, START_S, "both workers")
    assert start("place.py").wait(START_S) == 0
    wait_until(lambda: any(line.endswith("anna") for line in lines()), START_S, "anna at work")
    _end(anna)

    def steps() -> set[str]:
        return {line.rpartition(" ")[0] for line in lines()}

    wait_until(lambda: len(steps()) == ORDERS * STEPS, START_S, "all steps")
    assert start("check.py").wait(START_S) == 0
    said = (folder / "check.py.log").read_text()
    assert said.startswith(f"{ORDERS} orders, handled by ")
    assert said.endswith("out of order: []\n")
