"""A lane that starts with another group map keeps the order of its groups (O-17)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from zlib import crc32

import pytest

from dispatcher.core.options import policy
from tests.core.world import World, world
from tests.spec.lane_bench import clause

MAPS: dict[str, dict[str, Any]] = {
    "exact": {},
    "lru": {"groups_remembered": 1},
    "3 buckets": {"buckets": 3},
    "2 buckets": {"buckets": 2},
}


def remap(lane: World, **changes: Any) -> World:
    """The dispatcher dies, and the next one has another map."""
    lane.crash()
    plain: dict[str, Any] = {"groups_remembered": None, "buckets": None}
    lane.options = replace(lane.options, **(plain | changes))
    lane.take_over()
    return lane.run()


@pytest.mark.parametrize("before", MAPS)
@pytest.mark.parametrize("after", MAPS)
@pytest.mark.parametrize("name", ["exclusive", "sequenced"])
def test_what_is_in_flight_comes_before_anything_newer(name: str, before: str, after: str) -> None:
    clause(
        "O-17", "messages in flight are settled before newer messages of their groups go to other consumers"
    )
    lane = world(name, **MAPS[before])
    members = [lane.join(member, prefetch=2) for member in ("one", "two", "three")]
    for group in "abcdef":
        lane.publish(group, count=3)
    lane.run()
    remap(lane, **MAPS[after])  # the truth beside it checks order and overlap at every hand-over
    for _ in range(20):
        for member in members:
            member.ack(list(member.in_hand)[:1])
        lane.run()
    assert not lane.broker.inbounds[0].originals, "and everything is through"


@pytest.mark.parametrize(
    ("before", "after", "kept"),
    [("exact", "lru", True), ("lru", "exact", True), ("exact", "2 buckets", False),
     ("2 buckets", "3 buckets", False), ("3 buckets", "exact", False), ("3 buckets", "3 buckets", True)],
)  # fmt: skip
def test_owners_are_kept_if_their_keys_still_mean_the_same(before: str, after: str, kept: bool) -> None:
    clause("O-17", "leaves the groups without owners, any other keeps them")
    lane = world(**MAPS[before])
    one = lane.join("one")
    lane.publish("a")
    lane.run()
    one.ack(list(one.in_hand))
    lane.run()
    remap(lane, **MAPS[after])
    lane.wait(100)
    assert bool(lane.store.owners) is kept, "nothing of the old map is left in Redis"
    two = lane.join("two")
    lane.publish("f")  # in every map another group, so that the first one owns more
    lane.publish("a")
    lane.run()
    holders = {copy.group: member.name for member in (one, two) for copy in member.in_hand.values()}
    assert (holders[b"a"] == "one") is kept


def test_the_groups_of_the_test_above_differ() -> None:
    assert all(crc32(b"a") % count != crc32(b"f") % count for count in (2, 3))


def test_a_lane_that_groups_no_more_hands_out_what_waits_at_once() -> None:
    lane = world()
    lane.join("one", prefetch=1)
    lane.publish("a", count=3)
    lane.run()
    two = lane.join("two")
    lane.crash()
    lane.options = replace(lane.options, policy=policy("exclusive", grouped=False))
    lane.take_over()
    lane.run()
    assert len(two.in_hand) == 2
