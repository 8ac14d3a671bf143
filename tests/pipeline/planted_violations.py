"""Lanes with violations, and lanes with what looks like one and is none."""

from __future__ import annotations

import json
from pathlib import Path

from dispatcher.ledger.rows import row
from tests.pipeline.ledgers import MS, START_US, HandOver, Leader, Numbers, in_order

#: Lane, group, rule, arrival, arrival of the other.
Violation = tuple[str, str, str, int, int]


def numbered(*hands: HandOver) -> list[HandOver]:
    numbers = Numbers()
    return [numbers.number(hand) for hand in hands]


def hand(arrival: int, at: int, until: int | None, incarnation: str = "i1", **values: object) -> HandOver:
    """Of group g; times in ms since the ledger begins."""
    ended = START_US + until * MS if until is not None else None
    return HandOver(
        "g",
        arrival,
        incarnation,
        dispatched=START_US + at * MS,
        ended=ended,
        **values,  # type: ignore[arg-type]
    )


def lane(folder: Path, name: str, hands: list[HandOver], **options: object) -> None:
    leader = Leader(folder, name, **options)  # type: ignore[arg-type]
    leader.hand(*(each for each in hands if each.ended is not None))
    leader.tell(*(each.begun() for each in hands if each.ended is None))
    leader.end()


def plant_kept(folder: Path) -> None:
    lane(folder, "plain", numbered(*in_order("g", 5), *in_order("h", 5, first=9)))
    # Taken back before others got it.
    lane(folder, "taken-back", numbered(
        hand(1, 0, 9, outcome="taken_back"), hand(2, 1, 9, outcome="taken_back"),
        hand(1, 9, 12, "i2", attempt=2), hand(2, 10, 13, "i2", attempt=2),
    ))  # fmt: skip
    # Every queue has an order of its own.
    lane(folder, "two-queues", numbered(
        hand(5, 0, 5, inbound="high"), hand(1, 1, 5, inbound="low"), hand(6, 2, 5, inbound="high"),
        hand(2, 3, 5, inbound="low"),
    ))  # fmt: skip
    # An operator released what had failed, long after what followed.
    lane(folder, "released", numbered(
        hand(1, 0, 1, outcome="failed", reason="no"), hand(2, 1, 2), hand(1, 5, 6, attempt=2),
    ))  # fmt: skip
    # 1 was in the same hands when 2 failed, and came back when these died: both go again.
    lane(folder, "released-after-death", numbered(
        hand(1, 0, 3, outcome="taken_back"), hand(2, 1, 2, outcome="failed", reason="no"),
        hand(1, 3, 4, "i2", attempt=2), hand(2, 5, 6, "i2", attempt=2),
    ))  # fmt: skip
    # The next one begins in the step that ends the one before.
    lane(folder, "same-step", numbered(hand(1, 0, 5), hand(2, 5, 7, "i2"), hand(3, 7, 8, "i1")))
    ungrouped = [hand(2, 0, 5), hand(1, 1, 5, "i2")]
    for each in numbered(*ungrouped):
        each.group = None
    lane(folder, "ungrouped", ungrouped)
    concurrent = numbered(hand(2, 0, 5), hand(1, 1, 5, "i2"))
    for each in concurrent:
        each.group_seq = 0
    lane(folder, "concurrent", concurrent, policy="concurrent")
    moved = numbered(hand(1, 0, 9), hand(2, 4, 6, "i2"))
    leader = Leader(folder, "moved")
    leader.tell(row(START_US + 3 * MS, "groups_moving", detail=json.dumps({"groups": 1, "pause": "none"})))
    leader.hand(*moved)
    leader.end()


def plant_violations(folder: Path) -> set[Violation]:
    lane(folder, "swapped", numbered(hand(1, 0, 1), hand(3, 1, 2), hand(2, 2, 3), hand(4, 3, 4)))
    # 3 came too late, also if 5 failed and is released behind it.
    lane(folder, "released-too-late", numbered(
        hand(5, 0, 1, outcome="failed", reason="no"), hand(3, 1, 2), hand(5, 3, 4, attempt=2),
    ))  # fmt: skip
    lane(folder, "settled-before", numbered(
        hand(1, 0, 9, outcome="taken_back"), hand(2, 1, 8), hand(1, 9, 12, "i2", attempt=2),
    ))  # fmt: skip
    lane(folder, "overlap", numbered(hand(1, 0, 9), hand(2, 4, 6, "i2"), hand(3, 9, 10, "i2")))
    # i1's long one hides i2's, which is the one that i1's next one overlaps with.
    lane(folder, "hidden-rival", numbered(
        hand(1, 0, 20), hand(2, 5, 15, "i2"), hand(3, 10, 12, "i1"), hand(4, 16, 17, "i1"),
    ))  # fmt: skip
    # Never ended, and the ledger is whole.
    lane(folder, "still-held", numbered(hand(1, 0, None), hand(2, 4, 6, "i2")))
    lane(folder, "within-one-queue", numbered(
        hand(5, 0, 1, inbound="high"), hand(2, 1, 2, inbound="low"), hand(6, 2, 3, inbound="high"),
        hand(1, 3, 4, inbound="low"),
    ))  # fmt: skip
    days(folder)
    told_again(folder)
    return {
        ("swapped", "g", "order", 2, 3), ("settled-before", "g", "order", 1, 2),
        ("released-too-late", "g", "order", 3, 5),
        ("overlap", "g", "overlap", 2, 1), ("hidden-rival", "g", "overlap", 2, 1),
        ("hidden-rival", "g", "overlap", 3, 2), ("still-held", "g", "overlap", 2, 1),
        ("within-one-queue", "g", "order", 1, 2), ("days", "g", "overlap", 2, 1),
        ("days", "g", "order", 1, 3), ("told-again-wrong", "swapped", "order", 1, 2),
        ("told-again-wrong", "shared", "overlap", 2, 1), ("told-again-wrong", "late", "overlap", 2, 1),
    }  # fmt: skip


def told_again(folder: Path) -> None:
    """What a leader did wrong just before it was killed is known from the journal."""
    numbers, leader = Numbers(), Leader(folder, "told-again-wrong")
    leader.close()
    second = Leader(folder, "told-again-wrong", 8, 7, START_US + 1_000 * MS)
    swapped = [numbers.number(HandOver("swapped", n)) for n in (2, 1)]
    shared = [numbers.number(HandOver("shared", n, f"i{n}")) for n in (1, 2)]
    late = numbers.number(HandOver("late", 1))
    second.tell_again(
        leader, (swapped[0], 21, 22), (swapped[1], 22, 23), (shared[0], 21, 24), (shared[1], 23, 24),
        (late, 25, None),
    )  # fmt: skip
    new = Numbers(numbers.seqs, epoch=8 << 20)
    second.hand(new.number(HandOver("late", 2, "i2", START_US + 2_000 * MS, START_US + 2_001 * MS)))
    second.tell(row(START_US + 3_000 * MS, "settled", **late.values()))
    second.end()


def days(folder: Path) -> None:
    """The records of one message lie in three files, of two leaders and three days."""
    day = 86_400_000
    long, rival = numbered(hand(1, 0, 2 * day), hand(2, day, day + 5, "i2"))
    long.outcome = "taken_back"
    first = Leader(folder, "days", lane_epoch=7)
    first.tell(long.begun())
    first.close(START_US + day * MS)
    first.hand(rival)
    first.end("the connection was lost")
    second = Leader(folder, "days", 8, 7, START_US + 2 * day * MS - MS)
    second.tell(long.over(by_another_leader=True))
    numbers = Numbers(epoch=8 << 20)
    second.hand(*map(numbers.number, [
        hand(3, 2 * day, 2 * day + 1, "i3"), hand(1, 2 * day + 1, 2 * day + 2, "i3", attempt=2),
    ]))  # fmt: skip
    second.end()
