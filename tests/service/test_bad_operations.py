"""Commands that can't be done: each is refused in one line that names why, and nothing was changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from dispatcher.errors import CommandRefused
from dispatcher.redis_store.scripts import LaneKeys
from tests.service.harness import LANE, Bench, lane
from tests.service.operating import full_of, ordered, sent
from tests.service.protocol_consumer import ProtocolConsumer
from tests.service.test_operations import begun
from tests.waiting import eventually

NOBODY = "no group 'nobody' is known here"
NO_CONSUMER = "no consumer 'c9'; `dispatcher consumers list` shows who is there"
SIMPLE = ("show", "why", "close", "purge", "pause", "resume")
NOT_THERE: list[tuple[str, dict[str, Any], str]] = [
    *((f"groups.{name}", {"group": "nobody"}, NOBODY) for name in SIMPLE),
    ("groups.move", {"group": "nobody", "to": "elsewhere"}, NOBODY),
    ("groups.reroute", {"group": "nobody", "exchange": "amq.direct", "key": "k"}, NOBODY),
    ("groups.pin", {"group": "nobody", "consumer": "c1"}, NOBODY),
    ("rebalance", {"group": "nobody"}, NOBODY),
    ("groups.pin", {"group": "g", "consumer": "c9"}, NO_CONSUMER),
    ("consumers.drain", {"consumer": "c9"}, NO_CONSUMER),
    ("consumers.evict", {"consumer": "c9"}, NO_CONSUMER),
    ("rebalance", {"group": "g", "to": "c9"}, NO_CONSUMER.replace("no consumer", "no live consumer")),
    ("groups.move", {"group": "g", "to": "gone"}, "there is no queue 'gone': nothing was changed"),
    (
        "groups.reroute", {"group": "g", "exchange": "gone", "key": "k"},
        "there is no exchange 'gone': nothing was changed",
    ),
]  # fmt: skip
CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("groups.close", {}),
    ("groups.purge", {}),
    ("groups.move", {"to": "elsewhere"}),
    ("groups.reroute", {"exchange": "amq.direct", "key": "k"}),
    ("rebalance", {"to": "c1"}),
]


@contextmanager
def nothing_changes(bench: Bench) -> Iterator[None]:
    """Of what Redis keeps of the lane, besides the entries of its journal."""
    keys = LaneKeys.of(bench.vhost.redis_prefix, LANE)
    with redis.Redis.from_url(bench.vhost.redis_url) as store:

        def kept() -> list[Any]:
            return [store.hgetall(key) for key in (keys.owners, keys.incarnations, keys.flags)]

        before = kept()
        yield
        assert kept() == before


async def refusal(bench: Bench, name: str, **arguments: Any) -> str:
    with pytest.raises(CommandRefused) as refused:
        await ordered(bench, name, **arguments)
    return str(refused.value)


async def a_stuck_group(bench: Bench) -> tuple[ProtocolConsumer, ProtocolConsumer]:
    """c1 has the first message of group g and two wait; c2 has nothing."""
    await bench.run(orders=lane())
    client = await bench.client()
    await client.declare("elsewhere")
    owner = await bench.joined("c1", hold=True, prefetch=1)
    await sent(client, "g", b"1", b"2", b"3")
    await owner.has(1)
    other = await bench.joined("c2")
    await eventually(lambda: bench.status()["held"] == 2)
    return owner, other


async def test_what_is_not_there_is_named(bench: Bench) -> None:
    owner, other = await a_stuck_group(bench)
    with nothing_changes(bench):
        for name, arguments, said in NOT_THERE:
            assert said in await refusal(bench, name, **arguments), name
    owner.release()
    await bench.acked()
    assert (owner.bodies(), other.bodies()) == ([b"1", b"2", b"3"], [])


async def test_a_group_with_an_open_operation_is_left_alone(bench: Bench) -> None:
    await bench.run(orders=lane(look_ahead=3))
    client = await bench.client()
    await client.declare("elsewhere")
    owner = await full_of(bench, client)
    await begun(bench, "the-purge")
    with nothing_changes(bench):
        for name, arguments in CHANGES:
            assert await refusal(bench, name, group="g", **arguments) == (
                "the group is in transition by the-purge; try again when that is done"
            ), name
    owner.release()
    await bench.acked()
    assert await client.ready("elsewhere") == 0
