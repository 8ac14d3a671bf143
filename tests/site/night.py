"""A lane that is in trouble on purpose, and the program's own words about it.

docs/three-in-the-morning.md shows what commands say; `says` compares that with what they say here.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pika
import yaml
from typer.testing import CliRunner

from dispatcher.cli import app
from dispatcher.nodes import LocalRedis
from dispatcher.wire.protocol import LaneNames
from tests.conftest import Vhost
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "three-in-the-morning.md").read_text()
LANE, QUEUE = "orders", "orders.in"
START_S = 60.0
#: What differs from run to run.
VARYING = re.compile(r"(?<=active at )\S+|─+|\d+(?:[.,:]\d+)*(?:ms|s|m|h)?|amq\.gen-\S+|[0-9a-f]{12,}|…")


class Night:
    """A lane `orders` on a RabbitMQ and a Redis of the test's own."""

    def __init__(
        self, amqp_url: str, management_url: str, redis: LocalRedis, folder: Path, stack: ExitStack
    ) -> None:
        self._amqp_url = amqp_url
        self._management_url = management_url
        self.redis = redis
        self._folder = folder
        self._stack = stack
        self._config = folder / "dispatcher.yaml"

    def configure(self, **lane: Any) -> None:
        keys = {"inbound": [{"queue": QUEUE, "declare": True}], "heartbeat": "500ms", **lane}
        settings = {
            "rabbitmq": {"url": self._amqp_url},
            "redis": {"url": self.redis.url, "timeout": "500ms"},
            "http": {"listen": "127.0.0.1:0"},
            "lanes": {LANE: keys},
        }
        self._config.write_text(yaml.safe_dump(settings))

    def dispatch(self) -> subprocess.Popen[bytes]:
        process = self._start("dispatcher", ["-m", "dispatcher", "run"])
        wait_until(lambda: '"lane_led"' in self.log("dispatcher"), START_S, "the lane to be led")
        return process

    def work(self, consumer: str) -> subprocess.Popen[bytes]:
        """A consumer whose handler does what the body says: `hang`, `fail`, `die`; else nothing."""
        process = self._start(consumer, ["-m", "tests.site.night_worker", self._amqp_url, LANE, consumer])
        wait_until(lambda: "consumer_joined" in self.log("dispatcher"), START_S, "a consumer")
        return process

    def publish(self, *bodies: str, group: str) -> None:
        with pika.BlockingConnection(pika.URLParameters(self._amqp_url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            for body in bodies:
                properties = pika.BasicProperties(headers={"x-group-id": group}, delivery_mode=2)
                channel.basic_publish("", QUEUE, body.encode(), properties, mandatory=True)

    def dead(self) -> int:
        with pika.BlockingConnection(pika.URLParameters(self._amqp_url)) as connection:
            declared = connection.channel().queue_declare(LaneNames(LANE).dead, passive=True)
            return int(declared.method.message_count)

    def _start(self, name: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, *arguments], cwd=ROOT, env=self._environment(), stdin=subprocess.DEVNULL,
                stdout=log, stderr=log,
            )  # fmt: skip
        self._stack.callback(_end, process)
        return process

    def log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text()

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ, "DISPATCHER_CONFIG": str(self._config), "COLUMNS": "100", "TERM": "dumb",
            "DISPATCHER_RABBITMQ_MANAGEMENT_URL": self._management_url,
        }  # fmt: skip

    def run(self, command: str) -> str:
        """What the command prints. In this process: others would take most of their time to start."""
        program, *arguments = shlex.split(command)
        assert program == "dispatcher"
        done = CliRunner().invoke(app, arguments, prog_name=program, env=self._environment())
        return done.stdout + done.stderr

    def says(self, command: str, section: str) -> None:
        """Wait until the command says what the section of the page shows, but for numbers and times."""
        wanted = [varied(line) for line in shown(command, section)]
        assert wanted, f"the page shows nothing for {command} in {section!r}"

        said: list[str] = []

        def agrees() -> bool:
            said[:] = [varied(line) for line in self.run(command).splitlines()]
            return all(line in said for line in wanted)

        with contextlib.suppress(AssertionError):
            wait_until(agrees)
        assert set(wanted) <= set(said), f"{command} says {said}"


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def varied(line: str) -> str:
    return " ".join(VARYING.sub("N", line).split())


def section_of(title: str) -> str:
    found = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    assert found, f"there is no section {title!r}"
    return found


def shown(command: str, section: str) -> list[str]:
    """The lines that a console block of the section has below this command."""
    for block in re.findall(r"```console\n(.*?)```", section_of(section), re.DOTALL):
        lines = block.splitlines()
        if f"$ {command}" in lines:
            below = lines[lines.index(f"$ {command}") + 1 :]
            end = next((number for number, line in enumerate(below) if line.startswith("$ ")), len(below))
            return [line for line in below[:end] if line.strip() not in ("", "…")]
    raise AssertionError(f"{section!r} does not show {command}")


def night_of(vhost: Vhost, management_url: str, folder: Path, stack: ExitStack) -> Night:
    return Night(vhost.amqp_url, management_url, stack.enter_context(LocalRedis()), folder, stack)
