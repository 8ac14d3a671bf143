"""docs/semantics.md, O-24: what pauses, pins and drains have in common; and what is refused of them."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.core.views.views import Views
from tests.spec.flag_bench import refused, said
from tests.spec.lane_bench import LaneBench, clause, names

NO_GROUP = "no group 'z' is known here: it has no waiting messages and no owner"
NO_CONSUMER = "no consumer 'x'; `dispatcher consumers list` shows who is there"


def test_o24_they_hold_under_the_next_leader() -> None:
    clause(
        "O-24", "committed with their commands, last until they are undone, and hold under every later leader"
    )
    bench = LaneBench()
    bench.join("one")
    bench.join("two")
    bench.arrive("a1", "b1", "%1")
    said(bench, "groups.pause", group="a")
    said(bench, "groups.pin", group="b", consumer="one")
    said(bench, "groups.pin", group="%25", consumer="one")
    said(bench, "consumers.drain", consumer="two")
    said(bench, "groups.pause", all=True)
    times = [bench.flags[key].pop("paused_at_ms") for key in (b"group:a", b"lane")]
    assert times[0] < times[1] == bench.now_ms
    assert bench.flags == {
        b"group:a": {"paused": True}, b"group:b": {"pin": "one"}, b"group:%": {"pin": "one"},
        b"consumer:two": {"drained": True}, b"lane": {"paused": True},
    }  # fmt: skip
    later = LaneBench(flags=bench.flags)
    later.join("two")
    later.arrive("a1", "b1", "c1")
    said(later, "groups.resume", all=True)
    assert later.sent == []
    assert Views(later.lane.state).consumers()["drained_absent"] == []
    said(later, "consumers.drain", consumer="two", undo=True)
    assert names(later.sent) == ["c1"]
    assert names(later.join("one")) == ["b1"]
    said(later, "groups.resume", group="a")
    assert names(later.sent[-1:]) == ["a1"]
    said(later, "groups.pin", group="b", undo=True)
    said(later, "groups.pin", group="%25", undo=True)
    assert later.flags == {}
    assert b"%" not in later.lane.state.groups, "of which nothing is left but its pin"


def test_o24_a_leader_writes_them_back() -> None:
    clause("O-24", "A leader whose Redis comes back empty writes them back")
    flags: dict[bytes, dict[str, Any]] = {
        b"lane": {"paused": True}, b"group:a": {"paused": True, "pin": "one"},
        b"consumer:two": {"drained": True},
    }  # fmt: skip
    bench = LaneBench(flags=flags)
    assert bench.lane.checkpoint(everything=True).operator_rows == flags
    assert bench.lane.checkpoint().operator_rows == {}, "what Redis has is not written again"


def _changes_told(bench: LaneBench) -> list[str]:
    """What the log says beside who said what."""
    return [event for event, _ in bench.told if event != "operator_command"]


def test_o24_said_twice_they_change_nothing() -> None:
    clause("O-24", "Repeating a command changes nothing")
    bench = LaneBench()
    bench.join("one")
    bench.arrive("a1")
    for command, arguments in (
        ("groups.pause", {"group": "a"}), ("groups.pause", {"all": True}),
        ("groups.pin", {"group": "a", "consumer": "one"}), ("consumers.drain", {"consumer": "one"}),
        ("groups.resume", {"group": "a"}), ("groups.resume", {"all": True}),
        ("groups.pin", {"group": "a", "undo": True}), ("consumers.drain", {"consumer": "one", "undo": True}),
    ):  # fmt: skip
        assert said(bench, command, **arguments)["changed"]
        flags, told = dict(bench.flags), len(_changes_told(bench))
        assert not said(bench, command, **arguments)["changed"]
        assert (bench.flags, len(_changes_told(bench))) == (flags, told)
    assert _changes_told(bench)[-8:] == [
        "group_paused", "lane_paused", "group_pinned", "consumer_drained",
        "group_resumed", "lane_resumed", "group_unpinned", "consumer_undrained",
    ]  # fmt: skip


def test_o24_buckets() -> None:
    clause("O-24", "With `buckets` they apply to buckets")
    bench = LaneBench(buckets=1)
    bench.join("one")
    bench.arrive("a1")
    bucket = said(bench, "groups.pause", group="zzz")["group"]
    assert bucket.startswith("bucket:0/1")
    assert bench.arrive("a2", "b1") == []
    other_map = LaneBench(flags=bench.flags)
    assert other_map.flags == {}, "a lane with another map has no such group"
    assert said(bench, "groups.resume", group="a")["changed"]
    assert names(bench.sent[-2:]) == ["a2", "b1"]


@pytest.mark.parametrize(
    ("command", "arguments", "error"),
    [
        ("groups.pause", {}, "name a group"),
        ("groups.pause", {"group": "a", "all": True}, "name a group or say all, not both"),
        ("groups.pause", {"all": "yes"}, "all: must be true or false"),
        ("groups.pause", {"group": "z"}, f"{NO_GROUP}; `groups pause --new` pauses one before that"),
        ("groups.pause", {"all": True, "new": True}, "new is for a group, not for all"),
        ("groups.pause", {"group": "a", "new": 1}, "new: must be true or false"),
        ("groups.resume", {"group": "z"}, NO_GROUP),
        ("groups.pin", {"group": "a"}, "name a consumer or say undo, one of them"),
        ("groups.pin", {"group": "a", "consumer": "one", "undo": True},
         "name a consumer or say undo, one of them"),
        ("groups.pin", {"group": "z", "consumer": "one"}, NO_GROUP),
        ("groups.pin", {"group": "a", "consumer": "x"}, NO_CONSUMER),
        ("groups.pin", {"group": "a", "consumer": "two"},
         "consumer 'two' is drained; `dispatcher consumers drain --undo` ends that"),
        ("groups.pin", {"group": "a", "consumer": "three"},
         "consumer 'three' is about to end; `dispatcher consumers list` shows who stays"),
        ("groups.pin", {"group": "b", "consumer": "one"},
         "the group is in transition (draining); try again when it is settled"),
        ("consumers.drain", {}, "name a consumer"),
        ("consumers.drain", {"consumer": "x"}, NO_CONSUMER),
        ("consumers.drain", {"consumer": "x", "undo": True}, NO_CONSUMER),
        ("consumers.drain", {"consumer": 7}, "consumer: must be text"),
        ("rebalance", {"group": "a", "to": "two"},
         "consumer 'two' is drained; `dispatcher consumers drain --undo` ends that"),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_refused_changes_nothing(command: str, arguments: dict[str, Any], error: str) -> None:
    bench = LaneBench()
    bench.join("three")
    bench.arrive("b1")
    bench.leave("three")
    bench.join("one")
    bench.arrive("a1")
    bench.join("two")
    said(bench, "consumers.drain", consumer="two")
    assert refused(bench, command, **arguments) == error
