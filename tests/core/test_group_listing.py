"""Listings of groups are made in parts, and show what a listing in one piece would."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from dispatcher.core.bounds import GROUPS_PER_PAGE_MAX
from dispatcher.core.model import GroupState
from dispatcher.core.views.group_listing import GROUPS_RANKED_MAX, GroupListing
from dispatcher.core.views.group_states import AskedState
from dispatcher.core.views.views import Views
from dispatcher.core.waiting import count_waiting
from dispatcher.errors import CommandRefused
from tests.spec.lane_bench import LaneBench
from tests.spec.parking_bench import blocked


def letters(number: int) -> str:
    """A name of a group: the bench reads the number of a message behind it."""
    return "".join(chr(97 + int(digit)) for digit in f"{number:04}")


def a_lane(groups: int, seed: int = 1) -> LaneBench:
    """Groups of all depths, some of which have an owner; their messages come over time."""
    random = Random(seed)
    bench = LaneBench(weights=(1, 1))
    for number in random.sample(range(groups), groups):
        name = letters(number)
        depth = random.randint(1, 9)
        bench.arrive(*(f"{name}{n}" for n in range(depth)), inbound=random.randrange(2))
    bench.join("one", prefetch=groups // 2)
    bench.join("two", prefetch=groups // 4)
    return bench


def listed(bench: LaneBench, at_a_time: int = 7, **arguments: Any) -> list[tuple[str, int]]:
    """(group, messages) of a page."""
    views = Views(bench.lane.state)
    listing = views.listing(arguments)
    while not listing.look_at(at_a_time):
        pass
    rows = views.listed(listing)["groups"]
    return [(row["group"], row["held"] + row["in_flight"]) for row in rows]


def everything(bench: LaneBench) -> list[tuple[str, int]]:
    """(group, messages) of every group, by name."""
    return sorted(
        (group.id.decode(), group.in_flight + count_waiting(group))
        for group in bench.lane.state.groups.values()
    )


def test_a_part_looks_at_so_many_groups_and_no_more() -> None:
    bench = a_lane(100)
    listing = GroupListing(bench.lane.state, {})
    assert [listing.look_at(30) for _ in range(4)] == [False, False, False, True]
    assert listing.total == 100
    listing = GroupListing(bench.lane.state, {})
    listing.look_at(30)
    assert listing.total == 30


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("limit", [1, 5, 60, 400])
def test_the_deepest_groups_are_the_first(limit: int, seed: int) -> None:
    bench = a_lane(300, seed)
    wanted = sorted(everything(bench), key=lambda row: (-row[1], row[0]))
    assert listed(bench, limit=limit) == wanted[:limit]
    assert listed(bench, limit=limit, offset=10) == wanted[10 : 10 + limit]


def test_a_listing_of_one_state() -> None:
    bench = LaneBench()
    bench.join("one", prefetch=2)
    bench.arrive("a1", "b1", "c1")
    bench.join("two", prefetch=1)
    for command, arguments in (
        ("groups.pause", {"group": "a"}),
        ("groups.pin", {"group": "b", "consumer": "one"}),
        ("groups.purge", {"group": "c"}),
        ("consumers.drain", {"consumer": "two"}),
    ):
        bench.command(command, **arguments)

    def those(state: str) -> set[str]:
        return {group for group, _ in listed(bench, state=state)}

    assert those("paused") == {"a"}
    assert those("pinned") == {"b"}
    assert those("operation") == {"c"}
    assert those("drained") == {group for group in "abc" if bench.holder(f"{group}1") == "two"} != set()
    assert those("stopped") == those("parked") == set()
    assert those("owned") | those("free") | those("draining") == {"a", "b", "c"}
    bench = blocked()
    assert those("parked") == {"a"}


def test_every_state_of_a_group_may_be_asked_for() -> None:
    shown = set(blocked().lane.state.explanation.shown_as)
    assert {state.value for state in GroupState} | shown == set(AskedState)


def test_what_is_parked_counts_for_the_depth() -> None:
    """Of the first group nine are parked and one is in flight; nothing of it waits here."""
    bench = blocked()
    bench.arrive("b1", "b2", "b3")
    views = Views(bench.lane.state)
    listing = views.listing({})
    listing.look_at(10)
    facts = ("group", "held", "in_flight", "parked")
    rows = [tuple(row[fact] for fact in facts) for row in views.listed(listing)["groups"]]
    assert rows[0] == ("a", 0, 1, 9)
    assert rows[1][0] == "b"


def test_by_age_the_first_is_whose_message_waits_longest() -> None:
    bench = LaneBench()
    bench.arrive("b1", "a1")
    bench.arrive("c1")
    bench.arrive("a2")
    assert [name for name, _ in listed(bench, sort="age")] == ["a", "b", "c"]
    bench.join("one", prefetch=1)
    assert [name for name, _ in listed(bench, sort="age")] == ["a", "c", "b"]


def test_by_name_every_group_is_found_page_by_page() -> None:
    bench = a_lane(250)
    seen: list[tuple[str, int]] = []
    while page := listed(bench, sort="group", limit=40, after=seen[-1][0] if seen else None):
        seen += page
    assert seen == everything(bench)


def test_a_state_is_filtered_and_counted() -> None:
    bench = a_lane(40)
    views = Views(bench.lane.state)
    listing = views.listing({"state": "owned", "limit": 3})
    assert listing.look_at(1_000)
    result = views.listed(listing)
    owned = [group for group in bench.lane.state.groups.values() if group.owner is not None]
    assert result["total"] == len(owned) > 3
    assert {row["state"] for row in result["groups"]} == {"owned"}


def test_an_owner_and_a_pattern_are_filtered_and_counted() -> None:
    bench = a_lane(40)
    owned = {group.id.decode() for group in bench.lane.state.by_id["two"].groups}
    assert {name for name, _ in listed(bench, owner="two")} == owned
    assert 0 < len(owned) < 40
    assert listed(bench, owner="nobody") == []
    assert [name for name, _ in listed(bench, match="aa?b", sort="group")] == ["aaab", "aabb", "aacb", "aadb"]
    both = {name for name in owned if name.endswith("b")}
    assert {name for name, _ in listed(bench, owner="two", match="*b")} == both
    listing = GroupListing(bench.lane.state, {"match": "aa?b", "limit": 1})
    assert listing.look_at(1_000)
    assert listing.total == 4


def test_a_bracket_in_a_pattern_stands_for_itself() -> None:
    bench = LaneBench()
    bench.arrive("a[b]1", "ab1")
    bench.arrive("ab1")
    assert [name for name, _ in listed(bench, match="a[b]*")] == ["a[b]"]


def test_the_oldest_is_that_of_any_inbound_queue() -> None:
    bench = LaneBench(weights=(1, 1))
    bench.arrive("a1", inbound=1)
    bench.step(after_ms=500)
    bench.arrive("a2", inbound=0)
    views = Views(bench.lane.state)
    assert (
        views.group({"group": "a"})["oldest_ms"]
        == bench.now_ms - bench.lane.state.groups[b"a"].backlogs[1].messages[0].received_at_ms
        >= 500
    )


def test_groups_that_end_meanwhile_are_left_out() -> None:
    bench = LaneBench("sequenced")
    bench.arrive(*(f"{letters(number)}1" for number in range(20)))
    listing = GroupListing(bench.lane.state, {})
    listing.look_at(5)
    bench.join("one", prefetch=20)
    bench.settle("one", *(f"{letters(number)}1" for number in range(20)))
    bench.arrive("new1")
    assert listing.look_at(100)
    assert listing.total == 5


def test_what_fills_a_look_ahead_is_known_after_a_listing() -> None:
    bench = LaneBench(look_ahead=10)
    bench.arrive("a1", "b1", "b2", "b3", "b4", "b5", "c1", "c2", "c3", "c4")
    views = Views(bench.lane.state)
    assert views.is_full()
    listing = views.listing({"limit": 1})
    assert listing.look_at(100)
    views.listed(listing)
    assert views.status()["inbound"][0]["full_of"] == "5 messages of group b, 0 messages in flight"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"limit": -1}, "limit must be at least 1"),
        ({"offset": -1}, "offset at least 0"),
        ({"limit": GROUPS_PER_PAGE_MAX + 1}, f"at most {GROUPS_PER_PAGE_MAX} groups"),
        ({"offset": GROUPS_RANKED_MAX}, f"only the first {GROUPS_RANKED_MAX}"),
        ({"sort": "size"}, "sort by depth, age, group"),
        ({"state": "odd"}, "no group state 'odd'"),
        ({"after": "g"}, "goes with sorting by group"),
        ({"after": 7, "sort": "group"}, "after: must be text"),
        ({"after": "\ud800", "sort": "group"}, "can't encode"),
        ({"limit": 0}, "limit must be at least 1"),
        ({"limit": float("inf")}, "limit: must be a whole number"),
        ({"offset": "7"}, "offset: must be a whole number"),
        ({"offset": 10**26}, "offset: must be at most"),
        ({"limit": True}, "limit: must be a whole number"),
        ({"state": ["owned"]}, "state: must be text"),
    ],
)
def test_what_can_not_be_listed_is_refused(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises((CommandRefused, ValueError), match=problem):
        GroupListing(LaneBench().lane.state, arguments)
