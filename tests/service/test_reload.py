"""A changed configuration file, applied by SIGHUP or `dispatcher reload` (docs/semantics.md, L-1 to L-3)."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from typing import Any

import pytest
import yaml

from dispatcher.service.reloading import Change, change_of, changes, refusals
from dispatcher.settings import LaneSettings, Settings
from dispatcher.settings import file as config
from tests.service.conftest import Starter
from tests.service.harness import ROOT, Bench, DispatcherProcess, lane
from tests.spec.lane_bench import clause
from tests.waiting import eventually, wait_until

#: Messages a second, for as long as it takes to change the lane.
RATE = 1_000
GROUPS = 30


def parse(**document: Any) -> Settings:
    document.setdefault("lanes", {"orders": lane("a", "b")})
    return config.parse(yaml.safe_dump(document), {})


def orders(**keys: Any) -> LaneSettings:
    return parse(lanes={"orders": {**lane("a", "b"), **keys}}).lanes["orders"]


@pytest.mark.parametrize(
    ("keys", "change"),
    [
        ({}, Change.UNCHANGED),
        ({"inbound": [{"queue": "a", "declare": True, "weight": 7}, {"queue": "b"}]}, Change.AT_ONCE),
        ({"ack_timeout": "1m", "on_ack_timeout": "evict"}, Change.ANEW),
        ({"reconnect_grace": "5s", "liveness_interval": "1s"}, Change.AT_ONCE),
        ({"rebalance": {"pause": "lane"}}, Change.AT_ONCE),
        ({"rebalance": {"on_join": True}}, Change.ANEW),
        ({"inbound": [{"queue": "b"}, {"queue": "a"}]}, Change.ANEW),
        ({"group_map": {"buckets": 16}}, Change.ANEW),
        ({"look_ahead": 20}, Change.ANEW),
        ({"look_ahead": 20, "reconnect_grace": "5s"}, Change.ANEW),
    ],
)
def test_how_a_key_changes(keys: dict[str, Any], change: Change) -> None:
    clause("L-3", "For any other change the lane gets a new leadership")
    assert change_of(orders(), orders(**keys)) is change
    assert change_of(orders(**keys), orders()) is change


def test_lanes_are_started_and_stopped() -> None:
    old, new = (parse(lanes={name: lane(name) for name in names}) for names in (("a", "b"), ("c", "b")))
    assert changes(old, new) == {"c": Change.STARTED, "b": Change.UNCHANGED, "a": Change.STOPPED}


def test_what_needs_a_restart_is_named() -> None:
    new = parse(
        rabbitmq={"url": "amqp://other/", "heartbeat": "20s"}, redis={"timeout": "5s"},
        http={"listen": "127.0.0.1:1"}, prefix="other",
        lanes={"orders": {**lane("a", "b"), "heartbeat": "1s"}},
    )  # fmt: skip
    paths = [
        "rabbitmq.url",
        "rabbitmq.heartbeat",
        "redis.timeout",
        "http.listen",
        "prefix",
        "lanes.orders.heartbeat",
    ]
    assert refusals(parse(), new) == [
        f"{path}: can't change while the dispatcher runs: restart it" for path in paths
    ]
    assert refusals(parse(), parse()) == []


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 3), (2, 1)])
def test_another_number_of_shards_needs_a_restart(before: int, after: int) -> None:
    old, new = (parse(lanes={"orders": lane("a", shards=count)}) for count in (before, after))
    assert refusals(old, new) == ["lanes.orders.shards: can't change while the dispatcher runs: restart it"]


def test_another_header_of_shards_needs_a_restart() -> None:
    old, new = (
        parse(lanes={"orders": lane("a", shards=2, group_header=[header])}) for header in ("one", "other")
    )
    told = ["lanes.orders.group_header: can't change while the dispatcher runs: restart it"]
    assert refusals(old, new) == told


def rewrite(process: DispatcherProcess, **lanes: dict[str, Any]) -> None:
    """Change the lanes in its file; what is not named stays."""
    document = yaml.safe_load(process.config.read_text())
    quick = {"heartbeat": "1s", "liveness_interval": "200ms"}
    document["lanes"] |= {name: {**quick, **keys} for name, keys in lanes.items()}
    process.config.write_text(yaml.safe_dump(document))


def drop(process: DispatcherProcess, name: str) -> None:
    document = yaml.safe_load(process.config.read_text())
    del document["lanes"][name]
    process.config.write_text(yaml.safe_dump(document))


def hang_up(process: DispatcherProcess, event: str) -> dict[str, Any]:
    """SIGHUP; what the log says of it."""
    told = len(process.logged(event))
    os.kill(process.pid, signal.SIGHUP)
    wait_until(lambda: len(process.logged(event)) > told, what=f"{event}: {process.log()[-1000:]}")
    return process.logged(event)[-1]


async def reload(process: DispatcherProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dispatcher", "reload", *arguments, "-c", str(process.config)]
    return await asyncio.to_thread(
        subprocess.run, command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )


def weighed(first: int, second: int, **keys: Any) -> dict[str, Any]:
    queues = (("a", first), ("b", second))
    return {"inbound": [{"queue": q, "weight": w, "declare": True} for q, w in queues], **keys}


async def test_under_load_nothing_is_lost_doubled_or_out_of_order(
    dispatcher_process: Starter, bench: Bench
) -> None:
    clause("L-3", "that is a fail-over, for which G-1 to G-7 hold")
    one = dispatcher_process(orders=weighed(1, 1))
    one.ready()
    client = await bench.client()
    consumers = [await bench.joined(f"c{number}", prefetch=20) for number in range(3)]

    def got() -> int:
        return sum(len(consumer.received) for consumer in consumers)

    sent, is_over = 0, False

    async def load() -> None:
        nonlocal sent
        while not is_over:
            client.send("ab"[sent % 2], b"%d" % sent, f"g{sent % GROUPS}")
            sent += 1
            if sent % 20 == 0:
                await asyncio.sleep(20 / RATE)  # sleeps: this is the load

    loading = asyncio.create_task(load())
    edits: list[tuple[dict[str, Any], str]] = [
        (weighed(5, 1), "changed"),
        (weighed(5, 1, look_ahead=100, group_map={"buckets": 16}), "led anew"),
        (weighed(1, 9, look_ahead=100, group_map={"buckets": 16}), "changed"),
        (weighed(1, 9, group_map={"lru": 1_000}), "led anew"),
    ]
    for lanes, change in edits:
        before = got()
        rewrite(one, orders=lanes)
        record = await asyncio.to_thread(hang_up, one, "configuration_reloaded")
        assert record["lanes"] == {"orders": change}
        await eventually(lambda before=before: got() > before + 100)
    is_over = True
    await loading
    await client.confirmed()
    await eventually(lambda: got() == sent)
    copies = [copy for consumer in consumers for copy in consumer.received]
    assert sorted(int(copy.body) for copy in copies) == list(range(sent))
    assert {copy.attempt for copy in copies} == {1}
    assert not one.logged("lane_failed")
    assert not one.logged("lane_interrupted")
    for group in range(GROUPS):  # all of a group come through one inbound queue
        of_it = sorted((c for c in copies if c.group == b"g%d" % group), key=lambda copy: copy.at)
        bodies = [int(copy.body) for copy in of_it]
        assert bodies == sorted(bodies), f"g{group}"
    weights = [row["weight"] for row in (await bench.ask("status"))["inbound"]]
    assert weights == [1, 9]


async def test_lanes_come_and_go_and_a_bad_file_changes_nothing(
    dispatcher_process: Starter, bench: Bench
) -> None:
    clause("L-1", "applies as a whole, or not at all. All reasons for a refusal are named")
    one = dispatcher_process(orders=weighed(1, 1), old=lane("old"))
    one.ready()
    client = await bench.client()
    consumer = await bench.joined("c1", hold=True)
    client.send("a", b"0", "g")
    await consumer.has(1)
    good = one.config.read_text()

    rewrite(
        one, orders={"inbound": [{"queue": "missing", "weight": 9}, {"queue": "gone"}]}, parcels=lane("new")
    )
    refused = await reload(one, "orders")
    assert refused.returncode == 1
    assert [line.partition(": there is no queue")[0] for line in refused.stderr.splitlines()] == [
        "dispatcher: lanes.orders.inbound[0].queue", "dispatcher: lanes.orders.inbound[1].queue",
    ]  # fmt: skip
    one.config.write_text(good.replace("weight: 1", "weight: 0") + "nonsense: 1\n")
    problems = (await asyncio.to_thread(hang_up, one, "configuration_refused"))["problems"]
    assert len(problems) == 3, "both weights and the unknown key"
    one.config.write_text(good)
    rewrite(one, orders=weighed(9, 9) | {"cost": {"measured": "/nowhere/model.json"}})
    refused = await reload(one, "orders")
    assert refused.returncode == 1
    assert refused.stderr.count("\n") == 1
    assert refused.stderr.startswith(
        "dispatcher: lanes.orders.cost: measured: /nowhere/model.json can't be read: No such file or "
        "directory"
    )
    assert [row["weight"] for row in (await bench.ask("status"))["inbound"]] == [1, 1]
    assert sorted(one.ready().splitlines()) == ["old: leading", "orders: leading"]

    one.config.write_text(good)
    rewrite(one, parcels=lane("new"))
    drop(one, "old")
    done = await reload(one)
    assert done.returncode == 0, done.stderr
    words = [line.partition(" at ")[0] for line in done.stdout.splitlines()]
    assert words == ["orders: unchanged", "parcels: started", "old: stopped"]
    await asyncio.to_thread(
        wait_until, lambda: sorted(one.ready().splitlines()) == ["orders: leading", "parcels: leading"]
    )
    assert await client.consumers("old") == 0
    newcomer = await bench.joined("c1", "parcels")
    client.send("new", b"1", "g")
    await newcomer.has(1)
    consumer.release()
    await eventually(lambda: not consumer.in_hand)
    assert [copy.attempt for copy in consumer.received] == [1]
