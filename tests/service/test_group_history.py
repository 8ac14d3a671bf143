"""What is remembered of groups: the newest, of all groups together only so much."""

from __future__ import annotations

from dispatcher.core.effects import Effects
from dispatcher.core.orders import LogEvent
from dispatcher.core.tables import OwnerRow
from dispatcher.service.group_history import (
    DEAD_LETTERED_KEPT,
    DEAD_LETTERS_SHOWN,
    EVENTS_KEPT,
    EVENTS_SHOWN,
    GroupHistory,
)

CONSUMERS = {1: "c1", 2: "c2"}


def history() -> GroupHistory:
    clock = iter(range(1_700_000_000_000, 1_700_009_000_000, 10))
    return GroupHistory(lambda: next(clock), CONSUMERS.get)


def test_owners_and_what_the_log_says_the_newest_first() -> None:
    known = history()
    known.committed(Effects(owners={b"a": OwnerRow(1, 7), b"b": OwnerRow(1, 8)}))
    failed = LogEvent("message_failed", {"group": "a", "consumer": "c1", "reason": "no stock", "calls": None})
    known.committed(Effects(actions=[failed, LogEvent("lane_paused", {"in_flight": 3})]))
    known.committed(Effects(owners={b"a": OwnerRow(2, 9)}))
    known.committed(Effects(owners={b"a": None}))
    rows = known.of(b"a", b"a")
    assert [(row["event"], row["consumer"], row["detail"]) for row in rows] == [
        ("owner_changed", None, ""), ("owner_changed", "c2", ""), ("message_failed", "c1", "reason no stock"),
        ("owner_changed", "c1", ""),
    ]  # fmt: skip
    assert rows[-1]["at"] == "2023-11-14T22:13:20.000+00:00"
    assert known.of(b"z", b"z") == []


def test_with_buckets_what_is_said_of_the_id_and_of_its_bucket() -> None:
    known = history()
    known.committed(Effects(owners={b"bucket:0/1": OwnerRow(1, 7)}))
    known.committed(Effects(actions=[LogEvent("message_failed", {"group": "a"})]))
    assert [row["event"] for row in known.of(b"a", b"bucket:0/1")] == ["message_failed", "owner_changed"]


def test_dead_letters_are_counted_by_group_and_few_groups_are_kept() -> None:
    known = history()
    for group in ("a", "b", "a"):
        known.committed(Effects(actions=[LogEvent("message_dead_lettered", {"group": group})]))
    known.committed(Effects(actions=[LogEvent("message_dead_lettered", {"group": None})]))
    assert [known.dead_lettered(group) for group in (b"a", b"b", b"c")] == [2, 1, 0]
    for number in range(DEAD_LETTERED_KEPT - 1):
        known.committed(Effects(actions=[LogEvent("message_dead_lettered", {"group": f"n{number}"})]))
    assert [known.dead_lettered(group) for group in (b"a", b"b", b"n0")] == [2, 0, 1]


def test_the_latest_dead_letters_have_their_reasons_the_newest_first() -> None:
    known = history()
    for number in range(DEAD_LETTERS_SHOWN + 1):
        fields = {"group": f"g{number}", "reason": f"r{number}", "attempt": 2, "calls": 3}
        known.committed(Effects(actions=[LogEvent("message_dead_lettered", fields)]))
    fields = {"group": None, "reason": "no group", "attempt": 0, "calls": None}
    known.committed(Effects(actions=[LogEvent("message_dead_lettered", fields)]))
    ungrouped, newest, *others = known.dead_letters()
    assert len(others) == DEAD_LETTERS_SHOWN - 2
    assert ungrouped.items() >= fields.items()
    assert newest == {"group": "g50", "reason": "r50", "attempt": 2, "calls": 3, "at": newest["at"]}
    assert newest["at"].startswith("2023-11-14T")


def test_it_is_bounded() -> None:
    known = history()
    for number in range(EVENTS_SHOWN + 5):
        known.committed(Effects(owners={b"a": OwnerRow(1, number)}))
    assert len(known.of(b"a", b"a")) == EVENTS_SHOWN
    known.committed(Effects(actions=[LogEvent("group_paused", {"group": "a"})]))
    for number in range(EVENTS_KEPT):
        known.committed(Effects(owners={b"%d" % number: OwnerRow(1, 1)}))
    assert [row["event"] for row in known.of(b"a", b"a")] == ["group_paused"], "moves don't displace words"
