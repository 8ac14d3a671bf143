"""The example programs with the example configuration: orders go through, in order per symbol."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from dispatcher.nodes import LocalRedis
from tests.conftest import Vhost
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
ORDERS_MIN = 100
STOP_TIMEOUT_S = 20.0


class Program:
    """One of the containers' processes, with its output in a file."""

    def __init__(self, command: list[str], environment: dict[str, str], output: Path) -> None:
        self._output = output
        with output.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, *command],
                env=os.environ | environment,
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    def lines(self) -> list[str]:
        return self._output.read_text().splitlines()

    def stop(self) -> int:
        """SIGTERM, as a container engine sends it; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_TIMEOUT_S)


class Deployment:
    """The programs of the compose file on this machine's servers."""

    def __init__(self, running: ExitStack, folder: Path, environment: dict[str, str]) -> None:
        self._running = running
        self._folder = folder
        self._environment = environment
        self._programs: list[Program] = []

    def start(self, name: str, command: list[str], **variables: str) -> Program:
        environment = self._environment | variables
        program = Program(command, environment, self._folder / f"{name}.log")
        self._programs.append(program)
        self._running.callback(program.process.wait)
        self._running.callback(program.process.kill)
        return program

    def all_run(self) -> bool:
        """Fails with the output of a program that has ended; true otherwise."""
        for program in self._programs:
            assert program.process.poll() is None, program.lines()
        return True

    def command(self, *arguments: str) -> Any:
        """What a command of the dispatcher prints as JSON; None when it fails."""
        result = subprocess.run(
            [sys.executable, "-m", "dispatcher", *arguments, "--json"],
            env=os.environ | self._environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        return json.loads(result.stdout) if result.returncode == 0 else None


@pytest.fixture
def deployment(vhost: Vhost, tmp_path: Path) -> Iterator[Deployment]:
    with ExitStack() as running:
        # Not the shared one: the lane's name, and so its keys, are those of the example.
        store = running.enter_context(LocalRedis())
        listen = (DEPLOY / "dispatcher.yaml").read_text().replace("0.0.0.0:8642", "127.0.0.1:0")
        (tmp_path / "dispatcher.yaml").write_text(listen)
        environment = {
            "DISPATCHER_RABBITMQ_URL": vhost.amqp_url,
            "DISPATCHER_REDIS_URL": store.url,
            "DISPATCHER_CONFIG": str(tmp_path / "dispatcher.yaml"),
        }
        yield Deployment(running, tmp_path, environment)


def _queues(vhost: Vhost) -> set[str]:
    return {queue["name"] for queue in vhost.management(f"queues/{vhost.name}")}


def test_orders_of_the_example_producer_are_processed_in_order_by_both_consumers(
    deployment: Deployment, vhost: Vhost
) -> None:
    service = deployment.start("dispatcher", ["-m", "dispatcher", "run"])
    wait_until(lambda: deployment.all_run() and {"orders.high", "orders.low"} <= _queues(vhost))
    program = str(DEPLOY / "examples" / "consumer.py")
    consumers = [deployment.start(name, [program], CONSUMER_ID=name) for name in ("consumer-1", "consumer-2")]

    def both_joined() -> bool:
        deployment.all_run()
        listed = deployment.command("consumers", "list", "orders")
        return listed is not None and len(listed["consumers"]) == 2

    # A group goes to who owns the fewest, so both have to be there before the first message.
    wait_until(both_joined)
    command = [str(DEPLOY / "examples" / "producer.py")]
    producer = deployment.start("producer", command, MESSAGES_PER_SECOND="200")

    def processed() -> bool:
        deployment.all_run()
        counts = [len(consumer.lines()) for consumer in consumers]
        return sum(counts) >= ORDERS_MIN and all(counts)

    wait_until(processed, what="both consumers process orders")
    assert producer.stop() == 0, producer.lines()
    assert [consumer.stop() for consumer in consumers] == [0, 0], [c.lines()[-5:] for c in consumers]
    assert service.stop() == 0, service.lines()[-5:]
    numbers: dict[str, list[int]] = {}
    for consumer in consumers:
        for line in consumer.lines():
            match = re.fullmatch(r"consumer-[12]: (\w+) (\d+) (place|amend|cancel)", line)
            assert match is not None, line
            numbers.setdefault(match[1], []).append(int(match[2]))
    assert len(numbers) == 10
    for symbol, seen in numbers.items():
        assert seen == list(range(len(seen))), symbol
