"""The examples for frameworks, as their pages say: every order's steps are processed in order."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import yaml

from dispatcher.nodes import LocalRedis
from tests.conftest import Vhost
from tests.waiting import wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS = ["placed", "amended", "paid", "shipped"]
ORDERS = [f"order-{number}" for number in range(10)]
START_S = 60.0
STOP_S = 20.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


class Example:
    """One folder, with its dispatcher running on servers of the test's own."""

    def __init__(self, name: str, environment: dict[str, str], output: Path, stack: ExitStack) -> None:
        self._folder = EXAMPLES / name
        self.environment = {**os.environ, **environment, "PYTHONPATH": str(EXAMPLES.parent)}
        self._output = output
        self._stack = stack

    def dispatch(self) -> None:
        settings = yaml.safe_load((self._folder / "dispatcher.yaml").read_text())
        file = self._output / "dispatcher.yaml"
        file.write_text(yaml.safe_dump({**settings, "http": {"listen": "127.0.0.1:0"}}))
        self.start("dispatcher", ["-m", "dispatcher", "run", "-c", str(file)])
        wait_until(lambda: '"lane_led"' in self.output("dispatcher"), START_S, self.output("dispatcher"))

    def start(self, name: str, arguments: list[str], **environment: str) -> subprocess.Popen[bytes]:
        with (self._output / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, *arguments], cwd=self._folder, env={**self.environment, **environment},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        self._stack.callback(_end, process)
        return process

    def run(self, *arguments: str) -> None:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self._folder,
            env=self.environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def output(self, name: str) -> str:
        return (self._output / f"{name}.log").read_text()

    def steps(self, *names: str) -> dict[str, list[str]]:
        """What the processes of these names have printed, by order."""
        found: dict[str, list[str]] = {}
        for name in names:
            for order, step in re.findall(r"(order-\d+) (\w+)", self.output(name)):
                if step in STEPS:
                    found.setdefault(order, []).append(step)
        return found


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


@pytest.fixture
def example(vhost: Vhost, tmp_path: Path) -> Iterator[Callable[[str], Example]]:
    with ExitStack() as stack:
        redis = stack.enter_context(LocalRedis())
        urls = {"DISPATCHER_RABBITMQ_URL": vhost.amqp_url, "DISPATCHER_REDIS_URL": redis.url}
        yield lambda name: Example(name, urls, tmp_path, stack)


def test_faststream(example: Callable[[str], Example]) -> None:
    app = example("faststream_app")
    app.dispatch()
    app.run("place.py")
    running = app.start("app", ["-m", "faststream", "run", "app:app"])
    wait_until(lambda: app.steps("app") == dict.fromkeys(ORDERS, STEPS), START_S, "all steps in order")
    running.send_signal(signal.SIGTERM)
    running.wait(STOP_S)
    assert "Error" not in app.output("app")


def test_celery(example: Callable[[str], Example]) -> None:
    tasks = example("celery_worker")
    tasks.dispatch()
    tasks.run("place.py")
    names = ["celery-1", "celery-2"]
    for name in names:
        queue = f"dispatch.tasks.consumer.{name}"
        worker = ["-m", "celery", "-A", "tasks", "worker", "--pool", "solo", "-n", name, "-Q", queue]
        tasks.start(name, worker, CONSUMER_ID=name)
    wait_until(lambda: tasks.steps(*names) == dict.fromkeys(ORDERS, STEPS), START_S, "all steps in order")


def test_django(example: Callable[[str], Example], tmp_path: Path) -> None:
    shop = example("django_command")
    database = tmp_path / "shop.sqlite3"
    shop.environment["SHOP_DATABASE"] = str(database)
    shop.dispatch()
    shop.run("manage.py", "migrate", "--run-syncdb")
    shop.run("manage.py", "place_orders")
    running = shop.start("worker", ["manage.py", "consume_orders", "worker-1"])

    def orders() -> dict[str, list[str]]:
        with closing(sqlite3.connect(database)) as connection:
            rows = connection.execute("SELECT id, steps FROM shop_order").fetchall()
        return {order: json.loads(steps) for order, steps in rows}

    wait_until(lambda: orders() == dict.fromkeys(ORDERS, STEPS), START_S, "all steps in order")
    running.send_signal(signal.SIGTERM)
    assert running.wait(STOP_S) == 0
