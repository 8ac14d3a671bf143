"""Operators at work: what the program prints, and a lane whose group can't go on."""

from __future__ import annotations

import asyncio
from typing import Any

from dispatcher.cli.command_client import new_command, send
from dispatcher.cli.rabbitmq import connected
from dispatcher.errors import NoAnswer
from tests.service.clients import Client
from tests.service.harness import Bench
from tests.service.program import program
from tests.service.protocol_consumer import ProtocolConsumer

_ASK_MS = 2_000


async def operator(bench: Bench, *arguments: str) -> str:
    """What the program prints for a command that is done."""
    result = await program(bench.vhost, *arguments)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


async def refusal(bench: Bench, *arguments: str) -> str:
    """The one line that it prints for one that was refused."""
    result = await program(bench.vhost, *arguments)
    assert (result.returncode, result.stdout) == (1, "")
    (line,) = [line for line in result.stderr.splitlines() if not line.startswith("waiting until")]
    return line


async def sent(client: Client, group: str, *bodies: bytes) -> None:
    for body in bodies:
        client.send("in", body, group)
    await client.confirmed()


def bodies(consumer: ProtocolConsumer, group: bytes) -> list[bytes]:
    return [copy.body for copy in consumer.received if copy.group == group]


async def full_of(bench: Bench, client: Client) -> ProtocolConsumer:
    """A lane that takes three originals at a time, and a consumer that has two and settles none."""
    consumer = await bench.joined("c1", hold=True, prefetch=2)
    await sent(client, "g", *(b"%d" % number for number in range(1, 9)))
    await consumer.has(2)
    return consumer


async def ordered(bench: Bench, name: str, **arguments: Any) -> dict[str, Any]:
    """Send a command, and again until it is done, as the program does. Raises CommandRefused."""
    command = new_command(name, arguments)

    def blocking() -> dict[str, Any]:
        with connected(bench.rabbitmq, "test") as connection:
            while True:
                try:
                    result = send(connection, bench.names(), command, timeout_ms=_ASK_MS)
                except NoAnswer:  # who had to give it is dead
                    continue
                if not result.get("open"):
                    return result
                connection.sleep(0.01)

    return await asyncio.to_thread(blocking)
