"""Where `rabbitmq.urls` names several nodes, commands are answered on a connection of their own."""

from __future__ import annotations

import asyncio

from dispatcher.core.orders import Reply
from dispatcher.service import answers
from dispatcher.service.answers import Answers
from dispatcher.settings import RabbitSettings
from dispatcher.wire.protocol import LaneNames
from tests.conftest import Vhost
from tests.service.clients import Client
from tests.service.harness import LANE, Bench, lane
from tests.waiting import eventually

NAMES = LaneNames(LANE)


def urls(vhost: Vhost) -> list[str]:
    """Two names of one node."""
    return [vhost.amqp_url, vhost.amqp_url.replace("127.0.0.1", "localhost")]


async def test_the_end_of_that_connection_costs_no_leadership(bench: Bench) -> None:
    await bench.run(changes={"rabbitmq": {"urls": urls(bench.vhost)}}, orders=lane())
    assert (await bench.ask("status"))["state"] == "active"
    runner = bench.runners[LANE]
    assert runner._answers is not None
    link = runner._answers._link
    assert link is not None
    assert link is not runner._link
    link.abort()
    await link.closed
    assert (await bench.ask("status"))["state"] == "active"
    assert runner.leaderships == 1


async def test_one_node_has_one_connection(bench: Bench) -> None:
    await bench.run(orders=lane())
    assert (await bench.ask("status"))["state"] == "active"
    assert bench.runners[LANE]._answers is None


async def test_what_waits_is_bounded_and_published_before_the_end(vhost: Vhost) -> None:
    replies = Answers(RabbitSettings(url=vhost.amqp_url), NAMES)
    client = await Client.open(RabbitSettings(url=vhost.amqp_url))
    await client.declare("replies")
    for number in range(answers.WAITING_MAX + 2):
        replies.give(Reply(("replies", str(number)), {}, None))
    replies.give(Reply(("", ""), {}, None))
    await replies.close()
    await client.has_ready("replies", answers.WAITING_MAX)
    await client.close()


async def test_who_stops_waiting_for_the_end_leaves_no_connection(vhost: Vhost) -> None:
    """Neither before the broker's goodbye, nor while it is awaited."""
    for waits in range(1, 5):
        replies = Answers(RabbitSettings(url=vhost.amqp_url), NAMES)
        replies.give(Reply(("replies", "1"), {}, None))
        await eventually(lambda each=replies: each._link is not None and each._channel)
        closing = asyncio.create_task(replies.close())
        for _ in range(waits):
            await asyncio.sleep(0)  # sleeps: until it has come so far
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        assert closing.cancelled()
        assert replies._link is not None
        await replies._link.closed


async def test_two_may_end_it_and_it_is_not_opened_again(vhost: Vhost) -> None:
    """`stop` and the end of `run` do."""
    replies = Answers(RabbitSettings(url=vhost.amqp_url), NAMES)
    replies.give(Reply(("replies", "1"), {}, None))
    await asyncio.gather(replies.close(), replies.close())
    link = replies._link
    assert link is not None
    assert link.closed.done()
    replies.give(Reply(("replies", "2"), {}, None))
    assert replies._link is link
    assert not replies._waiting


async def test_a_lane_has_stopped_when_that_connection_has_ended(bench: Bench) -> None:
    await bench.run(changes={"rabbitmq": {"urls": urls(bench.vhost)}}, orders=lane())
    assert (await bench.ask("status"))["state"] == "active"
    runner = bench.runners[LANE]
    await runner.stop()
    assert runner._answers is not None
    assert runner._answers._link is not None
    assert runner._answers._link.closed.done()


async def test_answers_that_find_no_broker_are_dropped() -> None:
    replies = Answers(RabbitSettings(url="amqp://127.0.0.1:1/"), NAMES)
    replies.give(Reply(("replies", "1"), {}, None))
    await eventually(lambda: replies._task is not None and replies._task.done())
    assert not replies._waiting
    await replies.close()
