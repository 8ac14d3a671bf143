"""What the simulator believes of a RabbitMQ that is short of memory, or killed, is what RabbitMQ does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import pytest
from pamqp.commands import Queue

from dispatcher.amqp.events import Blocked, Unblocked
from dispatcher.errors import BrokerUnavailable
from dispatcher.nodes.local_rabbitmq import LocalRabbitMQ
from dispatcher.nodes.servers import PrivateServers
from dispatcher.sim.broker import Broker
from tests.sim.contract.acts import (
    CLASSIC,
    PERSISTENT,
    QUORUM,
    confirmed,
    confirming,
    consume,
    counts,
    fill,
    free,
    got,
    refusal,
)
from tests.sim.contract.sides import Connect, Recorded, run_on_rabbitmq, run_with_modelled_broker
from tests.waiting import eventually

TRANSIENT = b"\x10\x00\x01"
SEEDS = range(5)
SETTLED_S = 6.0


class Node(Protocol):
    """A broker that fails when it is told to."""

    async def alarm(self, on: bool) -> None: ...
    async def settle(self) -> None: ...
    async def kill(self) -> None: ...


# --- scripts ---


async def who_publishes_in_an_alarm_is_not_read_until_it_is_over(connect: Connect, node: Node) -> Any:
    """Not even the publish that blocks is taken before. Whoever publishes nothing is served."""
    reader, publisher, silent = await connect(), await connect(), await connect()
    channel = await fill(publisher, "alarmed", CLASSIC, 1)
    await consume(reader, "alarmed", 10)
    await eventually(lambda: len(got(reader)) == 1)
    await node.alarm(True)
    publish(publisher, channel, "alarmed", 1)
    await eventually(lambda: bool(publisher.of(Blocked)))
    publish(publisher, channel, "alarmed", 2)
    meanwhile = await counts(silent, "alarmed"), len(got(reader)), silent.of(Blocked), reader.of(Blocked)
    await node.alarm(False)
    await eventually(lambda: len(got(reader)) == 3 and bool(publisher.of(Unblocked)))
    return meanwhile, got(reader), len(publisher.of(Unblocked))


async def the_end_of_who_is_blocked_is_not_seen_before(connect: Connect, node: Node) -> Any:
    """His exclusive queue stays for so long."""
    owner, other = await connect(), await connect()
    channel = await confirming(owner)
    await owner.link.call(channel, Queue.Declare(queue="owned", exclusive=True))
    await node.alarm(True)
    publish(owner, channel, "owned", 1)
    await eventually(lambda: bool(owner.of(Blocked)))
    owner.link.abort()
    meanwhile = [await refusal(other, Queue.Declare(queue="owned", passive=True)) for _ in range(3)]
    await node.alarm(False)

    async def is_gone() -> bool:
        return await refusal(other, Queue.Declare(queue="owned", passive=True)) == 404

    await eventually(is_gone)
    return meanwhile


async def a_kill_leaves_what_is_on_disk(connect: Connect, node: Node) -> Any:
    """A classic queue flags it all, sorts it, and forgets transient messages. A quorum queue does neither:
    what came back before the kill, or by it, goes first, in the order in which it came back."""
    peer, reader = await connect(), await connect()
    for kind in (CLASSIC, QUORUM):
        queue = kind["x-queue-type"]
        channel = await fill(peer, queue, kind, 4)
        peer.link.publish(channel, exchange="", routing_key=queue, properties=TRANSIENT, body=b"9")
        await eventually(lambda channel=channel: confirmed(peer, channel) == {1, 2, 3, 4, 5})
        await fill(peer, f"returned {queue}", kind, 6)
        for taken in (4, 2):
            await take_and_leave(connect, f"returned {queue}", taken)
    owned = Queue.Declare(queue="owned", exclusive=True)
    await reader.link.call(await reader.link.open_channel(), owned)
    await node.settle()
    held = {"classic": 2, "quorum": 2, "returned classic": 1, "returned quorum": 1}
    for count, queue in enumerate(held, 1):
        await consume(reader, queue, held[queue], queue)
        await eventually(lambda count=count: len(got(reader)) == sum(list(held.values())[:count]))
    await node.kill()
    survivors = {"classic": 4, "quorum": 5, "returned classic": 6, "returned quorum": 6}
    seen = [await what_survived(connect, queue, count) for queue, count in survivors.items()]
    return got(reader), seen, await refusal(await connect(), Queue.Declare(queue="owned", passive=True))


async def what_survived(connect: Connect, queue: str, survivors: int) -> list[tuple[int, bool]]:
    """And the first message after it."""
    await eventually(lambda: is_led(connect, queue), 30)
    after = await connect()
    await consume(after, queue, 100)
    await eventually(lambda: len(got(after)) > survivors, 30)
    return got(after)[: survivors + 1]


async def take_and_leave(connect: Connect, queue: str, prefetch: int) -> None:
    """A consumer gets so many and is lost."""
    reader = await connect()
    await consume(reader, queue, prefetch)
    await eventually(lambda: len(got(reader)) == prefetch)
    reader.link.abort()
    other = await connect()
    await eventually(lambda: free(other, queue))


async def is_led(connect: Connect, queue: str) -> bool:
    """RabbitMQ lets clients in before a quorum queue has elected its leader. Only that one can confirm, and
    it returns what a consumer had when it forgets him."""
    try:
        peer = await connect()
        channel = await confirming(peer)
        publish(peer, channel, queue, 7)
        await eventually(lambda: confirmed(peer, channel) == {1}, 5)
        await eventually(lambda: free(peer, queue), 5)
    except (BrokerUnavailable, AssertionError):
        return False
    return True


def publish(peer: Recorded, channel: int, queue: str, number: int) -> None:
    peer.link.publish(
        channel, exchange="", routing_key=queue, properties=PERSISTENT, body=b"%d" % number
    )  # fmt: skip


Script = Callable[[Connect, Node], Awaitable[Any]]
SCRIPTS: dict[str, Script] = {
    "alarm": who_publishes_in_an_alarm_is_not_read_until_it_is_over,
    "blocked end": the_end_of_who_is_blocked_is_not_seen_before,
    "kill": a_kill_leaves_what_is_on_disk,
}

# --- both sides ---


class RealNode:
    def __init__(self, server: LocalRabbitMQ) -> None:
        self._server = server

    async def alarm(self, on: bool) -> None:
        share = "0.00001" if on else "0.4"
        limit = f"vm_memory_monitor:set_vm_memory_high_watermark({share})"
        # The second is answered behind the alarm: then every connection has been told of it.
        await asyncio.to_thread(self._server.evaluate, f"begin {limit}, rabbit_alarm:get_alarms() end")

    async def settle(self) -> None:
        await asyncio.to_thread(self._server.sync_definitions)
        # sleeps: a quorum queue that is younger than that has no leader for a minute after a kill -9
        await asyncio.sleep(SETTLED_S)  # sleeps: see above

    async def kill(self) -> None:
        self._server.kill9()
        await asyncio.to_thread(self._server.start)


class ModelledNode:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def alarm(self, on: bool) -> None:
        if on:
            self._broker.alarm = True
        else:
            self._broker.end_alarm()

    async def settle(self) -> None:
        """What is confirmed is on its disk."""

    async def kill(self) -> None:
        self._broker.kill()
        self._broker.restart()


def on_model(script: Script, seed: int) -> Any:
    return run_with_modelled_broker(lambda connect, broker: script(connect, ModelledNode(broker)), seed)


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_the_model_fails_as_rabbitmq_does(private_servers: PrivateServers) -> None:
    node, url = RealNode(private_servers.rabbitmq), private_servers.amqp_url
    for name, script in SCRIPTS.items():
        real = await run_on_rabbitmq(lambda connect, act=script: act(connect, node), url)
        assert {str(real)} == {str(on_model(script, seed)) for seed in SEEDS}, name
