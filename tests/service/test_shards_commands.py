"""Operators name a lane, and its shards do what is meant."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dispatcher.service.shards import fingerprint
from dispatcher.wire.shards import ShardNames, shard_name
from tests.service.harness import LANE, Bench, lane
from tests.service.program import Ended, program
from tests.waiting import eventually

SHARDS = 3
GROUPS = [f"group {number}" for number in range(12)]
NAMES = [shard_name(LANE, number) for number in range(1, SHARDS + 1)]


async def run(bench: Bench, *arguments: str) -> Ended:
    return await program(bench.vhost, *arguments, shards=SHARDS)


async def told(bench: Bench, *arguments: str) -> Any:
    done = await run(bench, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
async def full(bench: Bench) -> Bench:
    """Each group has a message that waits."""
    await bench.run(**{LANE: lane(shards=SHARDS)})
    client = await bench.client()
    names = ShardNames(LANE, bench.vhost.redis_prefix)
    for group in GROUPS:
        client.send("in", b"one", group, exchange=names.exchange)
    await client.confirmed()
    await eventually(lambda: sum(bench.status(name)["held"] for name in NAMES) == len(GROUPS))
    return bench


async def test_each_shard_shows_its_part(full: Bench) -> None:
    assert [each["lane"] for each in (await told(full, "status", LANE))["lanes"]] == NAMES
    listed = (await told(full, "groups", "list", LANE))["shards"]
    assert list(listed) == NAMES
    assert sorted(row["group"] for part in listed.values() for row in part["groups"]) == sorted(GROUPS)
    shown = await run(full, "groups", "list", LANE)
    assert [line.rstrip(":") for line in shown.stdout.splitlines() if line.endswith(":")] == NAMES
    assert (await told(full, "groups", "list", NAMES[0]))["total"] == listed[NAMES[0]]["total"]


async def test_a_command_about_a_group_goes_to_its_shard(full: Bench) -> None:
    for group in GROUPS[:4]:
        assert (await told(full, "groups", "why", LANE, group))["group"] == group
        await told(full, "groups", "pause", LANE, group)
    assert sum(full.status(name)["groups_paused"] for name in NAMES) == 4
    assert (await told(full, "groups", "purge", LANE, GROUPS[0]))["messages"] == 1
    unknown = await run(full, "groups", "why", LANE, "nobody")
    assert (unknown.returncode, all(name in unknown.stderr for name in NAMES)) == (1, True)


async def test_a_group_that_two_shards_know_is_the_one_with_messages(full: Bench) -> None:
    client = await full.client()
    for name in NAMES[:2]:  # past the exchange
        client.send(name.replace(LANE, "in"), b"one", "twice")
    await eventually(lambda: sum(full.status(name)["held"] for name in NAMES) == len(GROUPS) + 2)
    both = await run(full, "groups", "why", LANE, "twice")
    assert (both.returncode, all(name in both.stderr for name in NAMES[:2])) == (1, True)
    client.send("in@2", b"two", "twice")
    await eventually(lambda: sum(full.status(name)["held"] for name in NAMES) == len(GROUPS) + 3)
    assert (await told(full, "groups", "why", LANE, "twice"))["behind"] == 2


async def test_what_is_for_the_lane_is_done_in_each_shard(full: Bench) -> None:
    assert list((await told(full, "groups", "pause", LANE, "--all"))["shards"]) == NAMES
    assert all(full.status(name)["paused"] for name in NAMES)
    await told(full, "groups", "resume", LANE, "--all")
    assert not any(full.status(name)["paused"] for name in NAMES)
    for name in NAMES:
        await full.joined("c", name)
    assert list((await told(full, "consumers", "drain", LANE, "c"))["shards"]) == NAMES
    assert all(full.status(name)["consumers_drained"] == 1 for name in NAMES)
    assert [
        len(part["consumers"]) for part in (await told(full, "consumers", "list", LANE))["shards"].values()
    ] == [1] * SHARDS
    assert list((await told(full, "rebalance", LANE, "--dry-run"))["shards"]) == NAMES


async def test_what_one_shard_refuses_the_others_do(full: Bench) -> None:
    await full.joined("c", NAMES[2])
    drained = await run(full, "consumers", "drain", LANE, "c", "--json")
    assert drained.returncode == 1
    assert [name for name in NAMES if name in drained.stderr] == NAMES[:2]
    assert list(json.loads(drained.stdout)["shards"]) == NAMES[2:]
    assert full.status(NAMES[2])["consumers_drained"] == 1


async def test_what_goes_on_for_ever_takes_one_shard(full: Bench) -> None:
    watched = await run(full, "groups", "list", LANE, "--watch")
    assert (watched.returncode, all(name in watched.stderr for name in NAMES)) == (2, True)


async def test_shards_are_removed_one_by_one_and_what_they_share_with_the_lane(full: Bench) -> None:
    client = await full.client()
    whole = await run(full, "lane", "remove", LANE, "--yes", "--force")
    assert (whole.returncode, all(name in whole.stderr for name in NAMES)) == (1, True)
    await full.stop(NAMES[0])
    one = await run(full, "lane", "remove", NAMES[0], "--yes", "--force")
    assert (one.returncode, NAMES[1] in one.stderr) == (1, True)
    for name in NAMES[1:]:
        await full.stop(name)
    for name in NAMES:
        await client.purge(name.replace(LANE, "in"))
        removed = await run(full, "lane", "remove", name, "--yes")
        assert removed.returncode == 0, removed.stderr
    shown = json.loads((await run(full, "lane", "remove", LANE, "--dry-run", "--json")).stdout)
    way = ShardNames(LANE, full.vhost.redis_prefix)
    assert sorted(shown["exchanges"]) == sorted([way.exchange, *way.kept])
    assert (await run(full, "lane", "remove", LANE, "--yes")).returncode == 0
    left = {each["name"] for each in full.vhost.management(f"exchanges/{full.vhost.name}")}
    assert {name for name in left if name.startswith(way.prefix)} == {
        way.ring(SHARDS, fingerprint("x-group-id"))
    }
