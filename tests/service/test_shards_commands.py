"""Operators name a lane, and its shards do what is meant."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from dispatcher.pipeline.plan_file import PlanFile, write_plan
from dispatcher.service.shards import fingerprint
from dispatcher.wire.shards import ShardNames, shard_name
from tests.amqp.samples import text
from tests.service.harness import LANE, ROOT, Bench, document, lane
from tests.service.program import Ended, program
from tests.waiting import TIMEOUT_S, eventually

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
    await published(bench)
    return bench


async def published(bench: Bench) -> None:
    client = await bench.client()
    names = ShardNames(LANE, bench.vhost.redis_prefix)
    for group in GROUPS:
        client.send("in", b"one", group, exchange=names.exchange)
    await client.confirmed()
    await eventually(lambda: sum(bench.status(name)["held"] for name in NAMES) == len(GROUPS))


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


async def test_a_group_that_nobody_knows_is_paused_in_each_shard_and_goes_on_from_all(full: Bench) -> None:
    group = "not here yet"
    assert (await run(full, "groups", "pause", LANE, group)).returncode == 1
    assert list((await told(full, "groups", "pause", LANE, group, "--new"))["shards"]) == NAMES
    for name in NAMES:
        await full.joined("c", name)
    known = await told(full, "groups", "why", LANE, group)  # nothing tells the shards apart
    assert list(known["shards"]) == NAMES
    await eventually(lambda: not any(full.status(name)["held"] for name in NAMES))
    client, way = await full.client(), ShardNames(LANE, full.vhost.redis_prefix)
    client.send("in", b"one", group, exchange=way.exchange)
    await client.confirmed()
    await eventually(lambda: sum(full.status(name)["held"] for name in NAMES) == 1)
    assert (await told(full, "groups", "why", LANE, group))["reason"] == "paused"
    resumed = (await told(full, "groups", "resume", LANE, group))["shards"]
    assert {name: result["changed"] for name, result in resumed.items()} == dict.fromkeys(NAMES, True)
    assert not any(full.status(name)["groups_paused"] for name in NAMES)
    assert (await run(full, "groups", "resume", LANE, "nobody")).returncode == 1


async def test_a_pin_that_a_group_has_left_behind_ends_with_the_other(full: Bench) -> None:
    client = await full.client()
    for name in NAMES[:2]:
        client.send(name.replace(LANE, "in"), b"one", "twice")  # past the exchange
        await full.joined("c", name)
        await full.joined("d", name)
    for name in NAMES[:2]:
        await full.acked(name.replace(LANE, "in"), name)
        await told(full, "groups", "pin", name, "twice", "c")
    undone = (await told(full, "groups", "pin", LANE, "twice", "--undo"))["shards"]
    assert {name: result["changed"] for name, result in undone.items()} == dict.fromkeys(NAMES[:2], True)
    assert (await run(full, "groups", "pin", LANE, "nobody", "--undo")).returncode == 1


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


async def test_a_group_is_found_although_another_shard_has_no_leader(full: Bench) -> None:
    groups = {name: (await listed(full, name))["groups"] for name in NAMES}
    holder = next(name for name in NAMES if GROUPS[0] in {row["group"] for row in groups[name]})
    for name in NAMES:
        if name != holder:
            await full.stop(name)
    assert (await told(full, "groups", "why", LANE, GROUPS[0]))["group"] == GROUPS[0]
    elsewhere = await run(full, "groups", "why", LANE, "nobody", "--timeout", "100ms")
    assert elsewhere.returncode == 1
    assert [name for name in NAMES if f"lane {name} " in elsewhere.stderr] == [
        n for n in NAMES if n != holder
    ]


async def listed(bench: Bench, name: str) -> Any:
    return await bench.ask("groups.list", name, limit=100)


async def test_a_watched_list_shows_all_shards_again_and_again(full: Bench, tmp_path: Path) -> None:
    file, vhost = tmp_path / "dispatcher.yaml", full.vhost
    lanes = {LANE: lane(shards=SHARDS)}
    file.write_text(yaml.safe_dump(document(vhost.amqp_url, vhost.redis_url, vhost.redis_prefix, lanes)))
    command = [sys.executable, "-m", "dispatcher", "groups", "list", LANE, "--watch", "-c", str(file)]
    watching = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    assert watching.stdout is not None
    try:
        for name in NAMES * 2:
            async with asyncio.timeout(TIMEOUT_S):
                await watching.stdout.readuntil(f"{name}:".encode())
        watching.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(watching.wait(), TIMEOUT_S) == 0
    finally:
        if watching.returncode is None:
            watching.kill()
            await watching.wait()
    refused = await run(full, "groups", "list", LANE, "--watch", "--json")
    assert refused.returncode == 2


async def test_what_is_dead_is_listed_and_released_in_each_shard(full: Bench) -> None:
    client = await full.client()
    for number, name in enumerate(NAMES[:2], 1):
        group = text("x-dispatch-group", f"dead {number}")
        client.send(full.names(name).dead, b"dead", None, group, text("x-dispatch-reason", "poison"))
    await client.confirmed()
    dead = (await told(full, "dead", "list", LANE))["shards"]
    assert {name: [row["group"] for row in part["messages"]] for name, part in dead.items()} == {
        NAMES[0]: ["dead 1"], NAMES[1]: ["dead 2"], NAMES[2]: [],
    }  # fmt: skip
    dropped = await told(full, "dead", "drop", LANE, "--group", "dead 2")
    assert {name: part["dropped"] for name, part in dropped["shards"].items()}[NAMES[1]] == 1
    assert [await client.ready(full.names(name).dead) for name in NAMES] == [1, 0, 0]
    assert (await run(full, "dead", "drop", LANE, "--group", "dead 2")).returncode == 1


async def test_the_history_of_each_shard_is_sent_again(bench: Bench) -> None:
    keys: dict[str, Any] = {"shards": SHARDS, "history": {"max_age": "7d"}}
    await bench.run(**{LANE: lane(**keys)})
    await published(bench)
    replayed = await program(bench.vhost, "replay", LANE, "--all", "--json", **keys)
    assert replayed.returncode == 0, replayed.stderr
    shards = json.loads(replayed.stdout)["shards"]
    assert list(shards) == NAMES
    assert sum(part["messages"] for part in shards.values()) == len(GROUPS)


@pytest.mark.parametrize(("of", "is_done"), [(NAMES[1], True), ("other", False)])
async def test_a_plan_is_carried_out_in_its_shard(
    full: Bench, tmp_path: Path, of: str, is_done: bool
) -> None:
    file = tmp_path / "plan.json"
    write_plan(file, {}, PlanFile(of, None, datetime.now(UTC), []))
    done = await run(full, "rebalance", LANE, "--plan", str(file), "--dry-run", "--json")
    assert (done.returncode == 0) is is_done, done.stderr


@pytest.mark.parametrize("whole", [True, False])
async def test_a_lane_is_removed_with_its_shards(full: Bench, whole: bool) -> None:
    """Or each shard before it, once nobody leads one."""
    client = await full.client()
    await full.stop(NAMES[0])
    for refused in (LANE, NAMES[0]):
        led = await run(full, "lane", "remove", refused, "--yes", "--force")
        assert (led.returncode, NAMES[1] in led.stderr) == (1, True)
    way = ShardNames(LANE, full.vhost.redis_prefix)
    assert {way.exchange, way.entrance(1)} <= exchanges(full)
    for name in NAMES[1:]:
        await full.stop(name)
    for name in NAMES:
        await client.purge(name.replace(LANE, "in"))
        if not whole:
            removed = await run(full, "lane", "remove", name, "--yes")
            assert removed.returncode == 0, removed.stderr
    shown = await told(full, "lane", "remove", LANE, "--dry-run")
    assert sorted(shown["exchanges"]) == sorted([way.exchange, *way.kept])
    assert list(shown.get("shards", [])) == (NAMES if whole else [])
    assert (await run(full, "lane", "remove", LANE, "--yes")).returncode == 0
    assert {name for name in exchanges(full) if name.startswith(way.prefix)} == {
        way.ring(SHARDS, fingerprint("x-group-id"))
    }


def exchanges(bench: Bench) -> set[str]:
    return {each["name"] for each in bench.vhost.management(f"exchanges/{bench.vhost.name}")}
