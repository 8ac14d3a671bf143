"""What the simulator believes of a RabbitMQ cluster is what RabbitMQ does: each script runs on both. It
is among the tests that share a cluster, because a cluster takes long to start."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import Any, Protocol

import pytest
from pamqp.commands import Basic, Queue

from dispatcher.amqp.events import Confirmed, ConsumerCancelled, Delivery, Returned
from dispatcher.amqp.link import Link
from dispatcher.errors import BrokerUnavailable, DispatcherError
from dispatcher.nodes import LocalCluster, with_vhost
from dispatcher.settings import RabbitSettings
from dispatcher.sim.nodes import Cluster
from tests.conftest import Vhost
from tests.sim.contract.acts import (
    CLASSIC,
    PERSISTENT,
    QUORUM,
    confirmed,
    confirming,
    consume,
    counts,
    fill,
    got,
    refusal,
)
from tests.sim.contract.sides import Recorded, run_on_modelled_cluster
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TRANSIENT = b"\x10\x00\x01"
SEEDS = range(5)
#: RabbitMQ restarts nodes by itself in a few seconds, as a rule; else the test does.
HEALED_S = 20.0
#: A node that is away has the leader of this queue, or the whole queue, or its owner …
LED, HOMED, OWNED = "led", "homed", "owned"


class Nodes(Protocol):
    """Three nodes, by their numbers. At most one of them is hurt at a time."""

    #: Whether RabbitMQ says nothing for a minute of a classic queue whose node is away: 3.12 and 4.0 do so.
    silent: bool

    async def connect(self, number: int) -> Recorded: ...
    async def leader(self, queue: str) -> int: ...
    async def kill(self, number: int) -> None: ...
    async def start(self, number: int) -> None: ...
    async def freeze(self, number: int) -> None: ...
    async def thaw(self, number: int) -> None: ...
    async def part(self, number: int) -> None: ...
    async def heal(self, number: int) -> None: ...
    async def end(self, number: int) -> None:
        """See to it that one part is restarted after that."""


# --- scripts ---


async def a_node_is_killed(nodes: Nodes) -> Any:
    """The next leader gives back what the consumers of that node had, and counts them until it is back.
    Nobody can use its classic queue meanwhile, which loses what is transient."""
    there, here, stays = await nodes.connect(1), await nodes.connect(0), await nodes.connect(2)
    await fill(there, LED, QUORUM, 8)
    channel = await fill(there, HOMED, CLASSIC, 3)
    there.link.publish(channel, exchange="", routing_key=HOMED, properties=TRANSIENT, body=b"9")
    await eventually(lambda: confirmed(there, channel) == {1, 2, 3, 4})
    await there.link.call(channel, Queue.Declare(queue=OWNED, exclusive=True))
    has = await consume(stays, LED, 2)
    await eventually(lambda: len(got(stays)) == 2)
    await consume(there, LED, 3)
    await eventually(lambda: len(got(there)) == 3)
    await consume(here, HOMED, 1)
    await eventually(lambda: len(got(here)) == 1)
    before = await counts(here, LED), await counts(here, HOMED), await refusal(here, passive(OWNED))
    await nodes.kill(1)
    await eventually(lambda: bool(here.of(ConsumerCancelled)) and there.link.closed.done())
    waiting = await eventually(lambda: seen(here, LED, 6))
    heir = await nodes.connect(0)
    await consume(heir, LED, 100)
    await eventually(lambda: len(got(heir)) == 6)
    stays.link.ack(has, 2, True)
    away = await refusal(heir, passive(OWNED)), await without_its_node(nodes, heir, HOMED)
    counted = await counts(heir, LED)
    await nodes.start(1)
    back = await eventually(lambda: ready(heir, HOMED, 3))
    after = await nodes.connect(2)
    await consume(after, HOMED, 100)
    await eventually(lambda: len(got(after)) == 3)
    forgotten = await eventually(lambda: readers(heir, LED, 2))
    return before, waiting, flags(heir), got(stays), away, counted, back, got(after), forgotten


async def a_leader_stands_still(nodes: Nodes) -> Any:
    """Other nodes say that its queue is empty, and what is published there waits."""
    await fill(await nodes.connect(1), LED, QUORUM, 3)
    leader = await nodes.leader(LED)  # on a busy machine another may have been elected since
    other = (leader + 1) % 3
    here = await nodes.connect(other)
    await nodes.freeze(leader)
    before = await counts(here, LED)
    channel = await confirming(here)
    here.link.publish(channel, exchange="", routing_key=LED, properties=PERSISTENT, body=b"3")
    waiting = await counts(here, LED), here.of(Confirmed)
    await nodes.thaw(leader)
    await eventually(lambda: confirmed(here, channel) == {1})
    reader = await nodes.connect(other)
    await consume(reader, LED, 100)
    await eventually(lambda: len(got(reader)) == 4)
    return before, waiting, got(reader)


async def a_node_is_alone_and_pauses(nodes: Nodes) -> Any:
    """Its clients lose their connections. What they sent to a quorum queue meanwhile was not taken. A classic
    queue ends in order: it flags only what it has delivered."""
    there, here = await nodes.connect(1), await nodes.connect(0)
    sender = await fill(there, LED, QUORUM, 5)
    await fill(there, HOMED, CLASSIC, 3)
    await consume(there, LED, 2)
    await consume(here, HOMED, 1)
    await eventually(lambda: len(got(there)) == 2 and len(got(here)) == 1)
    await nodes.part(1)
    with suppress(BrokerUnavailable):
        there.link.publish(sender, exchange="", routing_key=LED, properties=PERSISTENT, body=b"8")
    await eventually(there.link.closed.done)
    taken = confirmed(there, sender)
    await eventually(lambda: seen(here, LED, 5))
    heir = await nodes.connect(0)
    await consume(heir, LED, 100)
    await eventually(lambda: len(got(heir)) == 5)
    away = await without_its_node(nodes, heir, HOMED)
    await nodes.heal(1)
    back = await eventually(lambda: ready(heir, HOMED, 3))
    after = await nodes.connect(0)
    await consume(after, HOMED, 100)
    await eventually(lambda: len(got(after)) == 3)
    forgotten = await eventually(lambda: readers(heir, LED, 1))
    return taken, flags(heir), away, back, got(after), forgotten


async def a_node_is_alone_and_goes_on(nodes: Nodes) -> Any:
    """A leader takes back what the consumers there have, and goes on with them, on the same channel, when it
    sees that node again. It has not heard what was published there: who is new to the queue is refused, and
    others wait, also after that."""
    there, here = await nodes.connect(1), await nodes.connect(0)
    await fill(here, LED, QUORUM, 4)
    channel = await fill(here, HOMED, CLASSIC, 2)
    await here.link.call(channel, Queue.Declare(queue=OWNED, exclusive=True))
    has = await consume(there, LED, 2)
    await consume(there, HOMED, 1, "homed")
    await eventually(lambda: len(got(there)) == 3)
    sender, unknown = await fill(there, LED, QUORUM, 1), await confirming(there)
    before = await refusal(there, passive(OWNED))
    await nodes.part(1)
    await eventually(lambda: bool(there.of(ConsumerCancelled)))
    taken = await eventually(lambda: seen(here, LED, 5)), await eventually(lambda: seen(here, HOMED, 2))
    away = await refusal(there, passive(OWNED)), await without_its_node(nodes, there, HOMED)
    for channel in (sender, unknown):
        there.link.publish(channel, exchange="", routing_key=LED, properties=PERSISTENT, body=b"8")
    there.link.ack(has, 2, True)
    await eventually(lambda: nacked(there, unknown) == {1})
    asked = await counts(there, LED), confirmed(there, sender)
    await nodes.heal(1)
    await eventually(lambda: len(got(there)) == 5)
    meanwhile = there.link.closed.done(), confirmed(there, sender)
    await nodes.end(1)
    await eventually(there.link.closed.done)
    return before, taken, away, asked, got(there), meanwhile


async def the_part_with_more_clients_wins(nodes: Nodes) -> Any:
    """With `autoheal`, also where this is a node that was alone."""
    here, *there = [await nodes.connect(number) for number in (0, 1, 1, 1)]
    await fill(here, LED, QUORUM, 2)
    await nodes.part(1)
    await eventually(lambda: seen(here, LED, 2))
    await nodes.heal(1)
    await eventually(here.link.closed.done)
    await nodes.end(1)
    after = await nodes.connect(0)
    await eventually(lambda: seen(after, LED, 2))
    await consume(after, LED, 100)
    await eventually(lambda: len(got(after)) == 2)
    return [peer.link.closed.done() for peer in there], got(after)


Script = Callable[[Nodes], Awaitable[Any]]
#: And what nodes do that lose sight of others.
SCRIPTS: dict[Script, str] = {
    a_node_is_killed: "pause_minority",
    a_leader_stands_still: "pause_minority",
    a_node_is_alone_and_pauses: "pause_minority",
    a_node_is_alone_and_goes_on: "ignore",
    the_part_with_more_clients_wins: "autoheal",
}

# --- acts ---


def passive(queue: str) -> Queue.Declare:
    return Queue.Declare(queue=queue, passive=True)


async def seen(peer: Recorded, queue: str, count: int) -> tuple[int, int] | None:
    """What a declare says of a queue, once it says that so many messages are ready."""
    found = await counts(peer, queue)
    return found if found[0] == count else None


async def ready(peer: Recorded, queue: str, count: int) -> tuple[int, int] | None:
    """The same of a classic queue that may be away."""
    return None if await refusal(peer, passive(queue)) else await seen(peer, queue, count)


async def readers(peer: Recorded, queue: str, count: int) -> tuple[int, int] | None:
    found = await counts(peer, queue)
    return found if found[1] == count else None


async def without_its_node(nodes: Nodes, peer: Recorded, queue: str) -> Any:
    """What comes of asking for a classic queue that is away, and of a message to it."""
    if nodes.silent:
        return None
    refusals = await refusal(peer, passive(queue)), await refusal(peer, Basic.Get(queue=queue))
    channel = await confirming(peer)
    peer.link.publish(channel, exchange="", routing_key=queue, properties=PERSISTENT, body=b"7")
    await eventually(lambda: confirmed(peer, channel) == {1})
    return refusals, [answer.code for answer in peer.of(Returned)], nacked(peer, channel)


def nacked(peer: Recorded, channel: int) -> set[int]:
    return {answer.tag for answer in peer.of(Confirmed) if answer.channel == channel and answer.nacked}


def flags(peer: Recorded) -> list[tuple[int, bool, bool]]:
    """Body, redelivered, and whether it has a header that says how often it was delivered before."""
    return [
        (int(delivery.body), delivery.redelivered, b"x-delivery-count" in delivery.properties)
        for delivery in peer.of(Delivery)
    ]


# --- both sides ---


class RealNodes:
    def __init__(self, cluster: LocalCluster, vhost: str, handling: str) -> None:
        self._cluster = cluster
        self._vhost = vhost
        self._handling = handling
        self._links, self._mending = AsyncExitStack(), AsyncExitStack()
        self.silent = False

    async def __aenter__(self) -> RealNodes:
        await self._links.__aenter__()
        await self._everywhere(f"application:set_env(rabbit, cluster_partition_handling, {self._handling})")
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._mending.aclose()  # a script that fails leaves something to do
        await self._links.aclose()
        await self._everywhere("application:set_env(rabbit, cluster_partition_handling, pause_minority)")

    async def _everywhere(self, expression: str) -> None:
        for node in self._cluster.nodes:
            with suppress(DispatcherError):  # one that is down begins with what the cluster is to do
                await asyncio.to_thread(node.evaluate, expression)

    async def connect(self, number: int) -> Recorded:
        recorded = Recorded()
        url = with_vhost(self._cluster.amqp_urls[number], self._vhost)
        link = await Link.open(RabbitSettings(url=url), name="contract", on_events=recorded.note)
        self._links.push_async_callback(link.close)
        self.silent = not str(link.server_properties["version"]).startswith("3.10.")
        recorded.link = link
        return recorded

    async def leader(self, queue: str) -> int:
        name = await asyncio.to_thread(self._cluster.leader_of, queue, self._vhost)
        return [node.node for node in self._cluster.nodes].index(name)

    async def kill(self, number: int) -> None:
        await asyncio.to_thread(self._cluster.nodes[number].kill9)

    async def start(self, number: int) -> None:
        await asyncio.to_thread(self._cluster.nodes[number].start)
        await asyncio.to_thread(self._cluster.wait_for, self._cluster.nodes)

    async def freeze(self, number: int) -> None:
        self._mending.push_async_callback(self.thaw, number)
        for node in self._others(number):  # else they may suspect it, and elect, while the script looks
            await asyncio.to_thread(node.evaluate, "sys:suspend(aten_detector)")
        self._cluster.nodes[number].freeze()

    async def thaw(self, number: int) -> None:
        """Nothing happens if it goes on already."""
        self._cluster.nodes[number].thaw()
        for node in self._others(number):
            await asyncio.to_thread(node.evaluate, "sys:resume(aten_detector)")

    async def part(self, number: int) -> None:
        node, others = self._cluster.nodes[number], self._others(number)
        self._mending.push_async_callback(asyncio.to_thread, node.meet, others)
        await asyncio.to_thread(node.part_from, others)

    async def heal(self, number: int) -> None:
        node = self._cluster.nodes[number]
        await asyncio.to_thread(node.meet, self._others(number))
        if self._handling == "pause_minority":
            await self.end(number)

    async def end(self, number: int) -> None:
        if self._handling == "autoheal":
            with suppress(DispatcherError):
                await asyncio.to_thread(self._cluster.wait_for, self._cluster.nodes, HEALED_S)
                return
            losers = self._others(number)  # they wait in vain for each other, now and then
        else:
            losers = [self._cluster.nodes[number]]
        for node in losers:
            await asyncio.to_thread(node.kill9)
        for node in losers:
            await asyncio.to_thread(node.start)
        await asyncio.to_thread(self._cluster.wait_for, self._cluster.nodes)

    def _others(self, number: int) -> list[Any]:
        return [node for node in self._cluster.nodes if node is not self._cluster.nodes[number]]


class ModelledNodes:
    def __init__(
        self, cluster: Cluster, connect: Callable[[Any], Awaitable[Recorded]], *, silent: bool
    ) -> None:
        self._cluster = cluster
        self.silent = silent
        self._connect = connect

    async def connect(self, number: int) -> Recorded:
        return await self._connect(self._cluster.nodes[number])

    async def leader(self, queue: str) -> int:
        return self._cluster.nodes.index(self._cluster.queues[queue].node)

    async def kill(self, number: int) -> None:
        self._cluster.kill_node(self._cluster.nodes[number])

    async def start(self, number: int) -> None:
        self._cluster.start_node(self._cluster.nodes[number])

    async def freeze(self, number: int) -> None:
        self._cluster.freeze_node(self._cluster.nodes[number])

    async def thaw(self, number: int) -> None:
        self._cluster.thaw_node(self._cluster.nodes[number])

    async def part(self, number: int) -> None:
        self._cluster.part_node(self._cluster.nodes[number])

    async def heal(self, number: int) -> None:
        self._cluster.heal_node(self._cluster.nodes[number])

    async def end(self, _number: int) -> None:
        await eventually(lambda: self._cluster.hurt is None)


def on_model(script: Script, seed: int, *, silent: bool) -> Any:
    return run_on_modelled_cluster(
        lambda cluster, connect: script(ModelledNodes(cluster, connect, silent=silent)), seed, SCRIPTS[script]
    )


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
async def test_the_model_does_what_a_cluster_does(
    script: Script, cluster: LocalCluster, cluster_vhost: Vhost
) -> None:
    async with RealNodes(cluster, cluster_vhost.name, SCRIPTS[script]) as nodes:
        real = await script(nodes)
    assert {str(real)} == {str(on_model(script, seed, silent=nodes.silent)) for seed in SEEDS}
