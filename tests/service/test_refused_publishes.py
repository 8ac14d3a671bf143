"""Messages over which RabbitMQ closes the channel they are published on (D-8).

The limit for the size of a message is lowered after they were published: RabbitMQ holds them, delivers them,
and takes them back from nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest

from dispatcher.errors import CommandRefused
from dispatcher.nodes.local_rabbitmq import LocalRabbitMQ
from dispatcher.nodes.servers import PrivateServers
from tests.service.clients import Client
from tests.service.harness import LANE, Bench, bench_of, lane, private_vhost
from tests.service.operating import ordered
from tests.service.program import program
from tests.service.protocol_consumer import ProtocolConsumer, read_properties
from tests.spec.lane_bench import clause
from tests.waiting import TIMEOUT_S, eventually

SIZE_MAX: Final = 10_000
UNLIMITED: Final = 134_217_728
LARGE: Final = bytes(2 * SIZE_MAX)
KEPT: Final[dict[str, Any]] = {"history": {"max_age": "7d"}}
#: What was refused is tried again after 1, 2, 4 … s: the next time may be as far away as the test has run.
DEAD_S: Final = 2 * TIMEOUT_S


async def limit(node: LocalRabbitMQ, size_max: int) -> None:
    """Takes effect with the next channel that is opened. RabbitMQ 4 reads the setting when it starts."""
    for act in (
        f"application:set_env(rabbit, max_message_size, {size_max})",
        f"persistent_term:put(max_message_size, {size_max})",
    ):
        await asyncio.to_thread(node.evaluate, act)


@pytest.fixture
async def private_bench(private_servers: PrivateServers) -> AsyncIterator[Bench]:
    async with bench_of(private_vhost(private_servers)) as bench:
        yield bench
    await limit(private_servers.rabbitmq, UNLIMITED)


async def published(bench: Bench, *messages: tuple[str, bytes]) -> Client:
    """(group, body) in the inbound queue before the lane starts."""
    client = await bench.client()
    await client.declare("in")
    for group, body in messages:
        client.send("in", body, group)
    await client.confirmed()
    return client


async def got(consumer: ProtocolConsumer, group: str, *bodies: bytes) -> None:
    await eventually(
        lambda: consumer.bodies(group) == list(bodies), what=f"{group}: {[b[:9] for b in bodies]}"
    )


async def dead(bench: Bench, client: Client, count: int) -> list[tuple[bytes, dict[str, Any]]]:
    await client.has_ready(bench.names().dead, count, DEAD_S)
    taken = await client.take(bench.names().dead)
    return [(message.body, dict(read_properties(message.properties).headers or {})) for message in taken]


async def test_a_message_too_large_to_publish(private_bench: Bench, private_servers: PrivateServers) -> None:
    bench, node = private_bench, private_servers.rabbitmq
    several = [("many", b"%d" % number) for number in range(400)]
    large = [("g", b"2" + LARGE), ("alone", LARGE), ("h", b"1" + LARGE), ("h", b"2" + LARGE)]
    client = await published(
        bench, ("g", b"0"), ("g", b"1"), large[0], *several, ("g", b"3"), ("g", b"4"), large[1],
        ("h", b"0"), large[2], large[3], ("h", b"3"),
    )  # fmt: skip
    await limit(node, SIZE_MAX)
    await bench.run(orders=lane())
    consumer = await bench.joined("c1", prefetch=1_000, hold=True)
    await got(consumer, "g", b"0", b"1", b"3", b"4")
    await got(consumer, "h", b"0", b"3")
    await got(consumer, "many", *(body for _, body in several))
    epochs = {copy.body: (copy.epoch, copy.group_seq) for copy in consumer.of_group("g")}
    assert epochs[b"0"][0] == epochs[b"1"][0] < epochs[b"3"][0] == epochs[b"4"][0]
    assert [group_seq for _, group_seq in epochs.values()] == [1, 2, 1, 2]
    assert [copy.attempt for copy in consumer.received] == [1] * len(consumer.received)

    await eventually(lambda: bench.status()["undeliverable"] == 4)
    assert bench.counter("unpublishable") == 4
    assert bench.runners[LANE].leaderships == 1, "nobody else noticed anything"
    why = await bench.ask("groups.why", group="g")
    (detail,) = why["details"]
    assert "unpublishable: 406 PRECONDITION_FAILED - message size 20001 is larger than" in detail
    assert "the dead queue does not take it" in detail
    consumer.release()
    await eventually(lambda: bench.status()["in_flight"] == 0)
    client.send("in", b"5", "g")
    await got(consumer, "g", b"0", b"1", b"3", b"4", b"5")
    assert await client.ready(bench.names().dead) == 0

    await limit(node, UNLIMITED)
    buried = await dead(bench, client, 4)
    assert sorted(body for body, _ in buried) == sorted(body for _, body in large)
    for _, headers in buried:
        assert headers["x-dispatch-reason"].startswith("unpublishable: 406 PRECONDITION_FAILED")
        assert headers["x-dispatch-attempt"] == 1
    await eventually(lambda: bench.status()["undeliverable"] == 0)
    await bench.acked()
    assert len(consumer.received) == 407


async def test_what_is_undeliverable_survives_a_crash(
    private_bench: Bench, private_servers: PrivateServers
) -> None:
    """And it is not in the lane's history, which does not take it either; everything else is."""
    clause("H-1", "is not kept and goes on")
    bench, node = private_bench, private_servers.rabbitmq
    client = await published(bench, ("g", b"0"), ("g", LARGE), ("g", b"2"))
    await limit(node, SIZE_MAX)
    await bench.run(orders=lane(**KEPT))
    consumer = await bench.joined("c1")
    await got(consumer, "g", b"0", b"2")
    await eventually(lambda: bench.status()["undeliverable"] == 1)
    assert (bench.runners[LANE].leaderships, bench.counter("history_refused")) == (1, 1)
    await bench.crash()
    await bench.run(orders=lane(**KEPT))
    await eventually(lambda: bench.status()["undeliverable"] == 1)
    client.send("in", b"3", "g")
    await got(consumer, "g", b"0", b"2", b"3")

    async def all_kept() -> bool:
        replay = await program(bench.vhost, "replay", LANE, "--all", "--dry-run", **KEPT)
        return replay.stdout.startswith("3 messages would be sent again")

    await eventually(all_kept, what="all others to be kept")
    await bench.crash()
    await limit(node, UNLIMITED)
    await bench.run(orders=lane(**KEPT))
    ((body, headers),) = await dead(bench, client, 1)
    assert body == LARGE
    assert headers["x-dispatch-reason"].startswith("unpublishable: 406")
    await bench.acked()


async def test_a_move_that_rabbitmq_refuses_leaves_nothing_behind(
    private_bench: Bench, private_servers: PrivateServers
) -> None:
    bench, node = private_bench, private_servers.rabbitmq
    client = await published(bench, ("g", b"0"), ("g", LARGE), ("g", b"2"))
    await client.declare("elsewhere")
    await limit(node, SIZE_MAX)
    await bench.run(orders=lane())
    await eventually(lambda: bench.status()["held"] == 3)
    with pytest.raises(CommandRefused, match="is larger than configured max size"):
        await ordered(bench, "groups.move", group="g", to="elsewhere")
    assert await client.ready("elsewhere") == 1

    def bindings() -> list[str]:
        found = bench.vhost.management(f"bindings/{bench.vhost.name}")
        return [row["routing_key"] for row in found if row["destination"] == "elsewhere"]

    await eventually(lambda: asyncio.to_thread(lambda: bindings() == ["elsewhere"]))
    await limit(node, UNLIMITED)
