"""docs/semantics.md, O-14 to O-17: which groups are remembered."""

from __future__ import annotations

import gc
import tracemalloc
from collections import Counter
from zlib import crc32

import pytest

from dispatcher.core.effects import Snapshot
from dispatcher.core.events import RedeliveriesEnded
from dispatcher.core.lane import Lane
from dispatcher.core.options import LaneOptions, policy
from dispatcher.core.tables import IncarnationRow, OwnerRow
from tests.spec.lane_bench import LaneBench, clause, names


def bucket(group: str, count: int) -> bytes:
    return b"bucket:%d/%d" % (crc32(group.encode()) % count, count)


def in_one_bucket(count: int, wanted: int) -> list[str]:
    """Ids that share bucket 0 of so many."""
    ids = (f"{chr(97 + n % 26)}{'x' * (n // 26)}" for n in range(10_000))
    return [group for group in ids if bucket(group, count) == b"bucket:0/%d" % count][:wanted]


# -- lru --


def test_o14_the_group_that_rests_longest_is_forgotten() -> None:
    clause("O-14", "the group that has been idle longest first")
    bench = LaneBench(groups_remembered=2)
    bench.join("one")
    bench.arrive("a1")
    bench.settle("one", "a1")
    bench.arrive("b1")
    bench.settle("one", "b1")
    bench.arrive("a2")
    bench.settle("one", "a2")
    bench.arrive("c1")
    assert set(bench.lane.state.groups) == {b"a", b"c"}
    bench.join("two")
    bench.arrive("b2", "a3")
    assert bench.holder("b2") == "two", "it was forgotten"


def test_o14_a_group_that_has_something_is_never_forgotten() -> None:
    """What ActiveMQ's default does with more than 1,024 groups: order is lost for the oldest (C18)."""
    clause("O-14", "A group that has such messages is never forgotten")
    bench = LaneBench(groups_remembered=2)
    bench.join("slow", prefetch=3)
    bench.arrive("a1", "b1", "c1", "a2", "d1")
    bench.join("quick", prefetch=100)
    assert bench.holder("d1") == "quick"
    bench.arrive("a3", "b2")
    assert set(bench.lane.state.groups) == {b"a", b"b", b"c", b"d"}, "for that time more than 2"
    bench.settle("quick", "d1")
    assert set(bench.lane.state.groups) == {b"a", b"b", b"c"}
    bench.settle("slow", "a1", "b1", "c1")
    assert [bench.holder(name) for name in ("a2", "a3", "b2")] == ["slow"] * 3
    bench.settle("slow", "a2", "a3", "b2")
    assert len(bench.lane.state.groups) == 2


def test_o14_after_a_take_over_none_is_forgotten_before_all_has_come_back() -> None:
    clause("O-14", "After a take-over none is forgotten before all unacknowledged messages have come back")
    now_ms = 1_800_000_000_000
    snapshot = Snapshot(
        lane_epoch=7, complete=True, broker_restarted=False,
        owners={b"a": OwnerRow(1, 5), b"b": OwnerRow(1, 6), b"c": OwnerRow(1, 7)},
        incarnations={1: IncarnationRow("one", "one-1", "one-1.1", 1, 10, "live")},
    )  # fmt: skip
    options = LaneOptions(policy=policy("exclusive"), inbounds=(("in", 1),), groups_remembered=1)
    lane = Lane(options, snapshot, now_ms)
    lane.start(now_ms)
    assert not lane.step([], now_ms + 5_000).owners, "a queue of many replicas may take its time"
    assert lane.next_deadline_ms() != now_ms + 5_001, "time alone changes nothing"
    assert len(lane.step([RedeliveriesEnded(0)], now_ms + 6_000).owners) == 2


def test_o14_very_many_groups_are_forgotten_over_some_steps() -> None:
    bench = LaneBench(groups_remembered=10, look_ahead=60_000)
    bench.join("one", prefetch=2_000)
    groups = [f"g{chr(97 + n % 26)}{'x' * (n // 26)}" for n in range(1_500)]
    bench.arrive(*(f"{group}1" for group in groups))
    bench.settle("one", *(f"{group}1" for group in groups))
    steps = 0
    while bench.lane.next_deadline_ms() == bench.now_ms + 1:
        bench.step()
        steps += 1
    assert len(bench.lane.state.groups) == 10
    assert 1 < steps < 10, "no commit grows without bound"


# -- buckets --


def test_o15_a_group_follows_the_owner_of_its_bucket() -> None:
    clause("O-15", "groups share N buckets by the CRC-32 of their ids")
    first, second, third = in_one_bucket(2, 3)
    bench = LaneBench(buckets=2)
    bench.join("one")
    bench.arrive(f"{first}1")
    bench.join("two")
    bench.arrive(f"{second}1", f"{third}1")
    assert bench.holder(f"{second}1") == bench.holder(f"{third}1") == "one", "A18: C follows A's owner"
    for n in range(50):
        bench.arrive(f"{chr(65 + n % 26)}{'y' * (n // 26)}1")
    assert set(bench.lane.state.groups) == {b"bucket:0/2", b"bucket:1/2"}


def test_o15_a_bucket_is_the_unit_of_order() -> None:
    clause("O-15", "The rules of this page about the order, the owner, closing and moving of a group")
    first, second = in_one_bucket(4, 2)
    bench = LaneBench("sequenced", buckets=4)
    bench.join("one", prefetch=2)
    bench.join("two", prefetch=2)
    assert names(bench.arrive(f"{first}1", f"{second}1", f"{second}2")) == [f"{first}1", f"{second}1"]
    assert bench.settle("one", f"{first}1") == []
    assert names(bench.settle("one", f"{second}1")) == [f"{second}2"]


def test_o15_numbers_count_for_each_id() -> None:
    clause("O-15", "`x-dispatch-group-seq` and `x-dispatch-epoch` count for each id")
    first, second = in_one_bucket(4, 2)
    bench = LaneBench(buckets=4)
    bench.join("one")
    bench.arrive(f"{first}1", f"{second}1", f"{first}2", f"{second}2")
    numbers = {name: bench.latest(name) for name in (f"{first}1", f"{first}2", f"{second}1", f"{second}2")}
    assert [numbers[f"{group}{n}"].group_seq for group in (first, second) for n in (1, 2)] == [1, 2, 1, 2]
    assert numbers[f"{first}1"].epoch == numbers[f"{first}2"].epoch
    assert numbers[f"{second}1"].epoch == numbers[f"{second}2"].epoch
    bench.settle("one", f"{first}1", f"{first}2")
    bench.arrive(f"{first}3", f"{second}3")
    assert bench.latest(f"{first}3").group_seq == 1, "nothing of it was in flight: its numbers were forgotten"
    assert bench.latest(f"{first}3").epoch > numbers[f"{first}2"].epoch
    assert bench.latest(f"{second}3").group_seq == 3


def test_o15_copies_carry_the_id_and_the_first_of_a_bucket_is_marked() -> None:
    clause("O-15", "`x-dispatch-group` stays the id as it came")
    first, second = in_one_bucket(4, 2)
    bench = LaneBench(buckets=4)
    bench.join("one")
    bench.arrive(f"{first}1", f"{second}1")
    assert [copy.message.group_id for copy in bench.sent] == [first.encode(), second.encode()]
    assert [copy.first for copy in bench.sent] == [True, False]


def test_o15_operators_name_a_bucket_by_any_id_in_it() -> None:
    clause("O-15", "Operators see buckets as `bucket:3/1024`, and may name one by any id in it")
    first, second = in_one_bucket(4, 2)
    bench = LaneBench(buckets=4)
    bench.join("one")
    bench.arrive(f"{first}1")
    bench.settle("one", f"{first}1")
    bench.join("two")
    bench.command(group=second, to="two")
    assert bench.replies[-1].result["moves"][0]["group"] == "bucket:0/4"
    bench.command("groups.close", group="bucket:0/4")
    assert bench.replies[-1].result == {"group": "bucket:0/4", "owner": "two", "waits_for": 0}
    bench.command("groups.close", group="bucket:0/8")
    assert bench.replies[-1].error, "that is an id in some other bucket, which nobody owns"


def test_o15_memory_does_not_grow_with_ids() -> None:
    clause("O-15", "Memory doesn't grow with the number of ids")
    bench = LaneBench(buckets=16)
    bench.join("one", prefetch=100)
    sizes = []
    tracemalloc.start()
    for round_ in range(6):
        for n in range(60):
            name = f"{chr(97 + n % 26)}{'z' * (n // 26)}{'y' * round_}"
            bench.arrive(f"{name}1")
            bench.settle("one", f"{name}1")
        bench.sent.clear()
        bench.acked.clear()
        for inbound in bench.lane.state.inbounds:
            inbound.settled.unproven.clear()
        gc.collect()
        sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert len(bench.lane.state.groups) <= 16
    assert all(not group.lines for group in bench.lane.state.groups.values())  # type: ignore[attr-defined]
    assert sizes[-1] - sizes[1] < 4_000, sizes


def test_o15_ids_spread_evenly_over_buckets() -> None:
    filled = Counter(bucket(f"order-{n}", 100) for n in range(100_000))
    assert len(filled) == 100
    assert max(filled.values()) < 1_200


# -- none --


@pytest.mark.parametrize("name", ["exclusive", "sequenced"])
def test_o16_without_a_map_consumers_take_turns(name: str) -> None:
    clause("O-16", "group ids mean nothing, whatever the policy")
    assert not policy(name, grouped=False).keeps_owner
    bench = LaneBench(name, grouped=False)
    bench.join("one")
    bench.join("two")
    bench.join("three")
    bench.arrive(*(f"a{n}" for n in range(1, 10)))
    holders = [bench.holder(f"a{n}") for n in range(1, 10)]
    assert holders == holders[:3] * 3
    assert len(set(holders[:3])) == 3
    assert not bench.lane.state.groups
    assert {copy.group_seq for copy in bench.sent} == {0}
