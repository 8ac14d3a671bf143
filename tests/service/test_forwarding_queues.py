"""Queues of hand-over consumers on a connection: what comes while one is given back."""

from __future__ import annotations

from typing import Any

from dispatcher.amqp.events import Delivery
from dispatcher.core.events import Event
from dispatcher.core.forwarding.events import QueueReclaimed, QueueReleased
from dispatcher.core.forwarding.orders import ReclaimQueue, ReleaseQueue
from dispatcher.service.channels import Channels
from dispatcher.service.forwarding import ForwardingQueues
from dispatcher.settings import InboundSettings, LaneSettings, RabbitSettings
from dispatcher.wire.protocol import LaneNames
from tests.service.clients import Client, open_link
from tests.waiting import eventually

QUEUE = "reader"
LANE = LaneSettings(name="orders", inbound=(InboundSettings(queue="in"),))


async def test_what_is_handed_over_while_a_queue_is_given_back_stays_in_it(vhost: Any) -> None:
    settings = RabbitSettings(url=vhost.amqp_url)
    client = await Client.open(settings)
    await client.declare(QUEUE)
    client.send(QUEUE, b"before")
    await client.confirmed()
    reported: list[Event] = []
    came: list[Delivery] = []
    taken: list[bool] = []  # of each, whether it was known to be of the queue

    def receive(events: list[Any]) -> None:
        came.extend(event for event in events if isinstance(event, Delivery))
        taken.extend(forwarding.receive(delivery) for delivery in came[len(taken) :])

    def has_come(kind: type[Event]) -> bool:
        return any(isinstance(event, kind) for event in reported)

    link = await open_link(settings, "forwarding", receive)
    names = LaneNames(LANE.name)
    forwarding = ForwardingQueues(
        link, names, Channels(link, names), LANE, report=reported.append, fail=reported.append
    )
    try:
        forwarding.perform(ReclaimQueue(QUEUE))
        await eventually(lambda: has_come(QueueReclaimed), what="the queue read back")
        async with forwarding._turn:  # as a look at another queue has it
            forwarding.perform(ReleaseQueue(QUEUE))
            client.send(QUEUE, b"after")
            await client.confirmed()
            await eventually(lambda: len(came) == 2, what="what was handed over meanwhile")
        await eventually(lambda: has_come(QueueReleased), what="the queue given back")
        assert [delivery.body for delivery in came] == [b"before", b"after"]
        assert taken == [True, True]
        await client.has_ready(QUEUE, 2)
    finally:
        forwarding.close()
        await link.close()
        await client.close()
