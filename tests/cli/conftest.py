"""A configuration for a vhost of the test's own, and something that answers commands there."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pika
import pytest
from typer.testing import CliRunner, Result

from dispatcher.cli import app
from dispatcher.wire import protocol
from dispatcher.wire.protocol import Command, LaneNames
from tests.conftest import Vhost

Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def _no_configuration_from_outside(monkeypatch: pytest.MonkeyPatch, servers: Any) -> None:
    monkeypatch.delenv("DISPATCHER_CONFIG", raising=False)
    monkeypatch.setenv("DISPATCHER_RABBITMQ_MANAGEMENT_URL", servers.management_url)


@pytest.fixture
def config_file(tmp_path: Path, vhost: Vhost) -> Path:
    file = tmp_path / "dispatcher.yaml"
    file.write_text(
        f"""
rabbitmq: {{url: "{vhost.amqp_url}"}}
redis: {{url: "{vhost.redis_url}"}}
prefix: {vhost.redis_prefix}
lanes:
  orders: {{inbound: [{{queue: orders.high}}, {{queue: orders.low, declare: true}}]}}
  bills: {{policy: sequenced, inbound: [{{queue: bills, declare: true}}]}}
"""
    )
    return file


@pytest.fixture
def run(config_file: Path) -> Run:
    """Run the program with this configuration: `run("groups", "list", "orders")`."""

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, [*arguments, "-c", str(config_file)], prog_name="dispatcher")

    return run


class Responder:
    """Stands for an active dispatcher: declares the lane's command queue and answers what it is told to."""

    def __init__(self, vhost: Vhost, lane: str) -> None:
        self.names = LaneNames(lane, vhost.redis_prefix)
        self.received: list[Command] = []
        self.properties: list[pika.BasicProperties] = []
        self.answer: dict[str, Any] | str | None = {}
        self.answers: list[dict[str, Any]] = []  # before that one
        self._url = vhost.amqp_url
        self._connection = pika.BlockingConnection(pika.URLParameters(vhost.amqp_url))
        self._channel = self._connection.channel()
        self._channel.exchange_declare(self.names.command_exchange, "direct", durable=True)
        self._channel.queue_declare(self.names.command, durable=True)
        self._channel.queue_bind(self.names.command, self.names.command_exchange, protocol.KEY_COMMAND)
        self._channel.basic_consume(self.names.command, self._on_command, auto_ack=True)
        self._thread = threading.Thread(target=self._channel.start_consuming)
        self._thread.start()

    def _on_command(self, _channel: Any, _method: Any, properties: pika.BasicProperties, body: bytes) -> None:
        self.received.append(protocol.decode_command(body))
        self.properties.append(properties)
        said = self.answers.pop(0) if self.answers else self.answer
        if said is None:
            return
        reply = {"error": said} if isinstance(said, str) else {"result": said}
        # An answer to something else first: the program must wait for its own.
        for correlation_id, value in (("another", {}), (properties.correlation_id, reply)):
            answer = pika.BasicProperties(correlation_id=correlation_id)
            self._channel.basic_publish("", properties.reply_to, json.dumps(value).encode(), answer)

    def lose_the_queue(self) -> None:
        """Delete the command queue; the exchange stays."""
        with pika.BlockingConnection(pika.URLParameters(self._url)) as connection:
            connection.channel().queue_delete(self.names.command)

    def stop(self) -> None:
        self._connection.add_callback_threadsafe(self._channel.stop_consuming)
        self._thread.join()
        self._connection.close()


@pytest.fixture
def responder(vhost: Vhost) -> Iterator[Responder]:
    """Answers for the lane `orders`."""
    answering = Responder(vhost, "orders")
    yield answering
    answering.stop()


@pytest.fixture
def limited_user(vhost: Vhost) -> Iterator[str]:
    """A user with no rights in the vhost yet."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    vhost.management(f"users/{name}", "PUT", {"password": "pw", "tags": ""})
    yield name
    vhost.management(f"users/{name}", "DELETE")


def as_user(config_file: Path, vhost: Vhost, user: str, password: str = "pw") -> None:
    parts = urlsplit(vhost.amqp_url)
    url = urlunsplit(parts._replace(netloc=f"{user}:{password}@{parts.netloc.rpartition('@')[2]}"))
    config_file.write_text(config_file.read_text().replace(vhost.amqp_url, url))
