"""The program's commands against a service that runs as a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest

from tests.cli.conftest import Run
from tests.conftest import Vhost
from tests.service.harness import STOP_S_MAX
from tests.waiting import TIMEOUT_S, wait_until


class Service:
    """`dispatcher run`, and where its HTTP server is."""

    def __init__(self, config_file: Path, log_file: Path) -> None:
        self._log_file = log_file
        with log_file.open("w") as log:
            command = [sys.executable, "-m", "dispatcher", "run", "-c", str(config_file)]
            self.process = subprocess.Popen(command, stderr=log, env={**os.environ, "TERM": "dumb"})

    def events(self) -> list[dict[str, object]]:
        assert self.process.poll() is None, self._log_file.read_text()
        return [json.loads(line) for line in self._log_file.read_text().splitlines()]

    def url(self) -> str:
        found = [event["url"] for event in self.events() if event["event"] == "http_listening"]
        return str(found[0]) if found else ""

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.url() + path, timeout=TIMEOUT_S) as answer:
            return answer.read().decode()


@pytest.fixture
def service(config_file: Path, tmp_path: Path, vhost: Vhost) -> Iterator[Service]:
    with pika.BlockingConnection(pika.URLParameters(vhost.amqp_url)) as connection:
        channel = connection.channel()
        channel.queue_declare("orders.high", durable=True)
        for number in range(30):
            group = f"g{number % 3}"
            properties = pika.BasicProperties(headers={"x-group-id": group}, delivery_mode=2)
            channel.basic_publish("", "orders.high", b"body", properties)
    config_file.write_text(config_file.read_text() + 'http: {listen: "127.0.0.1:0"}\n')
    running = Service(config_file, tmp_path / "log")
    try:
        wait_until(running.url)
        wait_until(lambda: sum(event["event"] == "lane_led" for event in running.events()) == 2)
        yield running
    finally:
        running.process.kill()
        running.process.wait()


def test_a_service_answers_every_command_and_stops_in_time(run: Run, service: Service) -> None:
    def held() -> bool:
        (lane,) = json.loads(run("status", "orders", "--json").stdout)["lanes"]
        return bool(lane["held"] == 30)

    wait_until(held)
    status = run("status")
    assert (status.exit_code, status.stderr) == (0, "")
    assert "orders: exclusive, active at " in status.stdout
    assert "bills: sequenced, active at " in status.stdout
    assert "0 consumers, 3 groups, 30 held, 0 in flight, 0 unconfirmed" in status.stdout

    groups = json.loads(run("groups", "list", "orders", "--sort", "group", "--json").stdout)
    assert [(row["group"], row["state"], row["held"]) for row in groups["groups"]] == [
        ("g0", "free", 10), ("g1", "free", 10), ("g2", "free", 10),
    ]  # fmt: skip
    after = json.loads(
        run("groups", "list", "orders", "--sort", "group", "--after", "g0", "--limit", "1", "--json").stdout
    )
    assert (after["total"], [row["group"] for row in after["groups"]]) == (3, ["g1"])
    refused = run("groups", "list", "orders", "--after", "g0")
    assert (refused.exit_code, refused.stderr) == (1, "dispatcher: after: goes with sorting by group\n")
    assert run("groups", "list", "orders", "--limit", "1001").exit_code == 2
    assert "10" in run("groups", "show", "orders", "g1").stdout
    assert "g1: No consumer has joined" in run("groups", "why", "orders", "g1").stdout
    assert run("groups", "why", "orders", "g9").exit_code == 1
    consumers = json.loads(run("consumers", "list", "orders", "--json").stdout)
    assert consumers == {"consumers": [], "drained_absent": [], "unread": []}
    assert json.loads(run("rebalance", "orders", "--dry-run", "--json").stdout) == {
        "groups": 0,
        "moves": [],
        "applied": False,
        "pause": "group",
    }
    assert run("check").exit_code == 0

    assert service.get("readyz") == "orders: leading\nbills: leading\n"
    assert 'dispatcher_messages_held{lane="orders"} 30.0' in service.get("metrics")
    assert "orders.high" in service.get("api/lanes")

    service.process.send_signal(signal.SIGTERM)
    assert service.process.wait(timeout=STOP_S_MAX) == 0
