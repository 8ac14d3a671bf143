"""What the scripts of the contract do on a link, and what they look at."""

from __future__ import annotations

from typing import Any

from pamqp.commands import Basic, Confirm, Queue

from dispatcher.amqp.events import Confirmed, Delivery
from dispatcher.errors import ChannelRefused
from tests.sim.contract.sides import Recorded
from tests.waiting import eventually

PERSISTENT = b"\x10\x00\x02"
CLASSIC, QUORUM = {"x-queue-type": "classic"}, {"x-queue-type": "quorum"}


async def confirming(peer: Recorded) -> int:
    channel: int = await peer.link.open_channel()
    await peer.link.call(channel, Confirm.Select())
    return channel


async def fill(peer: Recorded, queue: str, kind: dict[str, str], count: int) -> int:
    """Declare a queue and store so many messages in it; returns a channel with confirms."""
    channel = await confirming(peer)
    await peer.link.call(channel, Queue.Declare(queue=queue, durable=True, arguments=kind))
    for number in range(count):
        peer.link.publish(
            channel, exchange="", routing_key=queue, properties=PERSISTENT, body=b"%d" % number
        )  # fmt: skip
    await eventually(lambda: confirmed(peer, channel) >= set(range(1, count + 1)))
    return channel


def confirmed(peer: Recorded, channel: int) -> set[int]:
    """Confirm tags that were answered, `multiple` resolved."""
    tags: set[int] = set()
    for answer in peer.of(Confirmed):
        if answer.channel == channel:
            tags |= set(range(1, answer.tag + 1)) if answer.multiple else {answer.tag}
    return tags


async def consume(peer: Recorded, queue: str, prefetch: int, tag: str = "c", **given: Any) -> int:
    channel: int = await peer.link.open_channel()
    await peer.link.call(channel, Basic.Qos(prefetch_count=prefetch))
    await peer.link.call(channel, Basic.Consume(queue=queue, consumer_tag=tag, **given))
    return channel


def got(peer: Recorded) -> list[tuple[int, bool]]:
    return [(int(delivery.body), delivery.redelivered) for delivery in peer.of(Delivery)]


async def counts(peer: Recorded, queue: str) -> tuple[int, int]:
    channel = await peer.link.open_channel()
    answer = await peer.link.call(channel, Queue.Declare(queue=queue, passive=True))
    return answer.message_count, answer.consumer_count


async def free(peer: Recorded, queue: str) -> bool:
    """Whether nobody consumes it."""
    return (await counts(peer, queue))[1] == 0


async def refusal(peer: Recorded, method: Any) -> int:
    """The code with which the broker closes a channel for this; 0: it does not."""
    channel = await peer.link.open_channel()
    try:
        await peer.link.call(channel, method)
    except ChannelRefused as refused:
        return refused.code
    return 0
