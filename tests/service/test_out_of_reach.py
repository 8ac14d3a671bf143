"""RabbitMQ has one code for a queue that is not there, and for one that it can't use now."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dispatcher.amqp.methods import QueueDeclare
from dispatcher.core.queue_ids import parking_id
from dispatcher.errors import ChannelRefused, ConfigurationError, is_missing, is_out_of_reach
from dispatcher.nodes.servers import PrivateServers
from dispatcher.service.lane_runner import LaneRunner, RunnerState
from dispatcher.service.lanes import Lanes
from dispatcher.service.parking_feeds import find_parking_queues
from dispatcher.service.topology import declare_lane, prepare_inbound
from dispatcher.settings import InboundSettings, LaneSettings
from dispatcher.wire.protocol import LaneNames
from tests.service.harness import START_S, bench_of, lane, private_vhost
from tests.waiting import eventually

LANE = LaneSettings(name="orders", inbound=(InboundSettings(queue="in"),))
NAMES = LaneNames("orders")
MISSING = "no queue 'in' in vhost '/'"
#: As RabbitMQ 3.10 and 4.0 have them (rabbit_amqqueue).
OUT_OF_REACH = (
    "home node 'r@h' of durable queue 'in' in vhost '/' is down or inaccessible",
    "queue 'in' in vhost '/' process is stopped by supervisor",
    "queue 'in' in vhost '/' has crashed and failed to restart",
    "failed to perform operation on queue 'in' in vhost '/' due to timeout",
)


class Refusing:
    """A link: every declare of a queue of this name is refused with these words."""

    def __init__(self, text: str, queue: str = "") -> None:
        self._text, self._queue = text, queue

    async def open_channel(self) -> int:
        return 1

    async def call(self, channel: int, method: Any) -> Any:
        if isinstance(method, QueueDeclare) and method.queue.endswith(self._queue):
            raise ChannelRefused(404, f"NOT_FOUND - {self._text}")


def refusing(text: str, queue: str = "") -> Any:
    return Refusing(text, queue)


@pytest.mark.parametrize("text", OUT_OF_REACH)
async def test_a_start_waits_for_a_queue_out_of_reach(text: str) -> None:
    with pytest.raises(ChannelRefused):
        await prepare_inbound(refusing(text), LANE)
    with pytest.raises(ChannelRefused):
        await declare_lane(refusing(text), NAMES, LANE, [False])


async def test_a_start_does_not_wait_for_an_inbound_queue_that_is_not_there() -> None:
    with pytest.raises(ConfigurationError):
        await prepare_inbound(refusing(MISSING), LANE)


@pytest.mark.parametrize("text", OUT_OF_REACH)
async def test_a_parking_queue_out_of_reach_is_there(text: str) -> None:
    assert await find_parking_queues(refusing(text, "p2"), ("p2",)) == (parking_id(0),)
    assert await find_parking_queues(refusing(MISSING, "p2"), ("p2",)) == ()


def test_other_codes_are_of_neither_kind() -> None:
    refused = ChannelRefused(403, "ACCESS_REFUSED - no access to queue 'in'")
    assert [is_missing(refused), is_out_of_reach(refused)] == [False, False]


#: For a queue's process. While it is suspended, RabbitMQ answers no declare of the queue.
TELL = """begin
    {{ok, Queue}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"{}">>, queue, <<"{}">>)),
    sys:{}(amqqueue:get_pid(Queue))
end"""


class Impatient(LaneRunner):
    """Takes RabbitMQ for silent after one second."""

    answers_s = 1.0


class Impatiently(Lanes):
    runner_type = Impatient


async def test_no_lane_waits_for_the_queues_of_another_one(private_servers: PrivateServers) -> None:
    async def tell(what: str) -> None:
        command = TELL.format(bench.vhost.name, "mute", what)
        await asyncio.to_thread(private_servers.rabbitmq.evaluate, command)

    async with bench_of(private_vhost(private_servers)) as bench:
        client = await bench.client()
        await client.declare("mute")
        await tell("suspend")
        settings = bench.settings(first=lane("in"), second=lane("mute"))
        lanes = Impatiently(settings, lambda: settings)
        first, second = lanes.runners
        await lanes.prepare()
        lanes.start()
        await eventually(lambda: first.state is RunnerState.LEADING, START_S)
        assert second.state is not RunnerState.LEADING
        await tell("resume")
        await eventually(lambda: second.state is RunnerState.LEADING, START_S)
        await lanes.stop(5)
