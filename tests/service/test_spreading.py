"""Lanes are shared out among the replicas, one at a time, unless the configuration says no."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import redis

from dispatcher.redis_store.scripts import LaneKeys
from dispatcher.service.lane_runner import LaneRunner
from dispatcher.service.lanes import Lanes
from dispatcher.service.replicas import Replicas
from dispatcher.settings import Settings
from tests.conftest import Vhost
from tests.service.harness import Bench, lane
from tests.waiting import eventually

LANES = ("a", "b", "c", "d")
BEAT_S = 0.05
LOOK_S = 0.5
#: So often a standby has said that it is there when the others have looked at it several times.
BEATS = 3 * int(LOOK_S / BEAT_S)


def replica(name: str) -> type[Lanes]:
    """A replica with that name that hears of the others at once."""

    class Named(Replicas):
        beat_s = BEAT_S
        gone_s = 2.0
        me = name  # type: ignore[assignment]

    class Runner(LaneRunner):
        replicas_type = Named

    class Spread(Lanes):
        runner_type = Runner
        spread_look_s = LOOK_S

    return Spread


class Fleet:
    """Replicas of the same lanes in one event loop."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.replicas: dict[str, Lanes] = {}

    async def start(self, name: str) -> None:
        lanes = self.replicas[name] = replica(name)(self._settings, lambda: self._settings)
        await lanes.prepare()
        lanes.start()

    async def stop(self, name: str) -> None:
        await self.replicas.pop(name).stop(5)

    def led(self, name: str) -> set[str]:
        """The lanes that it leads."""
        return {
            runner.name for runner in self.replicas[name].runners if runner.readiness() == (True, "leading")
        }

    def shares(self) -> list[int]:
        """How many lanes each leads, the fewest first."""
        return sorted(len(self.led(name)) for name in self.replicas)

    def statuses(self, key: str) -> list[Any]:
        """What the leaders of all lanes say of this."""
        found = [runner.overview() for lanes in self.replicas.values() for runner in lanes.runners]
        return [each[key] for each in found if each.get("state") == "active"]


Start = Callable[..., Fleet]


@pytest.fixture
async def start(bench: Bench) -> AsyncIterator[Start]:
    fleets: list[Fleet] = []

    def make(**changes: Any) -> Fleet:
        lanes = {name: lane(f"in-{name}") for name in LANES}
        fleets.append(Fleet(bench.settings(changes=changes, **lanes)))
        return fleets[0]

    yield make
    for fleet in fleets:
        await asyncio.gather(*(fleet.stop(name) for name in list(fleet.replicas)))


async def test_a_replica_that_comes_gets_its_part_and_loses_it_when_it_goes(start: Start) -> None:
    fleet = start()
    await fleet.start("one")
    await eventually(lambda: fleet.shares() == [4])
    await fleet.start("two")
    await eventually(lambda: fleet.shares() == [2, 2], what="two lanes each")

    def is_told() -> bool:
        whys = [each[1]["why"] for each in fleet.statuses("leaderships") if len(each) > 1]
        return any(why and why.startswith("given to two") for why in whys)

    await eventually(is_told, what="the reason of the former leadership, which its heir reads in Redis")
    await fleet.start("three")
    await eventually(lambda: fleet.shares() == [1, 1, 2], what="a part for the third")
    await fleet.stop("one")
    await eventually(lambda: fleet.shares() == [2, 2], what="the lanes of the one that went")


async def test_messages_go_on_in_order_while_lanes_are_given(bench: Bench, start: Start) -> None:
    fleet = start()
    await fleet.start("one")
    await eventually(lambda: fleet.shares() == [4])
    client = await bench.client()
    consumers = [await bench.joined("c1", name) for name in LANES]
    await fleet.start("two")
    sent = 0
    while fleet.shares() != [2, 2]:
        for name in LANES:
            client.send(f"in-{name}", b"%d" % sent, f"g{sent % 3}")
        sent += 1
        await client.confirmed()
    for consumer in consumers:
        await consumer.has(sent)
        numbers = [int(copy.body) for copy in consumer.received]
        assert all(numbers[i] < numbers[j] for i in range(sent) for j in (i + 3,) if j < sent)
        assert sorted(numbers) == list(range(sent))


async def test_lanes_stay_where_they_are_if_that_is_wanted(start: Start, vhost: Vhost) -> None:
    fleet = start(spread_lanes=False)
    await fleet.start("one")
    await eventually(lambda: fleet.shares() == [4])
    await fleet.start("two")
    with redis.Redis.from_url(vhost.redis_url) as store:
        await eventually(lambda: _beat(store, vhost, "two") >= BEATS)
    assert [rows[0]["dispatcher"] for rows in fleet.statuses("standbys")] == ["two"] * 4
    assert fleet.shares() == [0, 4]


def _beat(store: Any, vhost: Vhost, name: str) -> int:
    """How often a standby has said that it is there."""
    row = store.hget(LaneKeys.of(vhost.redis_prefix, "a").replicas, f"standby {name}")
    return int(json.loads(row)["beat"]) if row else 0


async def test_a_lane_whose_heir_does_not_come_is_led_by_another(
    bench: Bench, start: Start, vhost: Vhost
) -> None:
    fleet = start()
    keys = LaneKeys.of(vhost.redis_prefix, "a")
    with redis.Redis.from_url(vhost.redis_url) as store:
        await fleet.start("one")
        await eventually(lambda: "a" in fleet.led("one"))
        await fleet.stop("one")
        store.hset(keys.replicas, "heir", json.dumps({"heir": "nobody", "after": 1}))
        await fleet.start("one")
        await eventually(lambda: fleet.shares() == [4], what="led in spite of the heir")
        await eventually(lambda: not store.hexists(keys.replicas, "heir"))


async def test_a_replica_that_has_ended_is_given_none(start: Start, vhost: Vhost) -> None:
    """What it said last is in Redis until a leader has seen for a while that nothing new comes."""
    fleet = start()
    key = LaneKeys.of(vhost.redis_prefix, "a").replicas
    with redis.Redis.from_url(vhost.redis_url) as store:
        store.hset(key, "standby dead", json.dumps({"since_ms": 1, "beat": 7, "leads": 0}))
        await fleet.start("one")
        await eventually(lambda: not store.hexists(key, "standby dead"), what="its row to be removed")
    await eventually(lambda: fleet.shares() == [4])
    assert [len(rows) for rows in fleet.statuses("leaderships")] == [1] * 4


async def test_who_does_not_say_how_many_lanes_it_leads_is_given_none(start: Start, vhost: Vhost) -> None:
    fleet = start()
    await fleet.start("one")
    await eventually(lambda: fleet.shares() == [4])
    key = LaneKeys.of(vhost.redis_prefix, "a").replicas
    with redis.Redis.from_url(vhost.redis_url) as store:

        async def beat() -> None:
            number = 0
            while True:
                number += 1
                store.hset(key, "standby old", json.dumps({"since_ms": 1, "beat": number}))
                await asyncio.sleep(BEAT_S)  # sleeps: as a standby does between two words

        beating = asyncio.create_task(beat())
        try:
            await eventually(lambda: any(fleet.statuses("standbys")))
            await eventually(lambda: _beat(store, vhost, "old") >= BEATS)
            assert fleet.shares() == [4]
        finally:
            beating.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await beating
