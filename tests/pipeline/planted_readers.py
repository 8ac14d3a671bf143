"""Hand-over lanes, as the ledger tells of them, each with the verdicts that are right: a message counts
as settled when its consumer's queue has it."""

from __future__ import annotations

from pathlib import Path

from dispatcher.ledger.rows import row
from dispatcher.ledger.schema import Event
from tests.pipeline.ledgers import MS, START_US, HandOver, Leader, Numbers, in_order

SECOND = 1_000 * MS
#: Lane, group, rule, arrival, arrival of the other.
DISORDERED = ("readers-disorder", "g", "order", 3, 4)
READERS = [{"id": "c-i1", "prefetch": 10}, {"id": "c-i2", "prefetch": 10}]


def _leader(folder: Path, lane: str, *told: int | None) -> Leader:
    return Leader(folder, lane, *told, handover=READERS)


def _back(leader: Leader, at: int, *hands: HandOver) -> None:
    """These were in their consumer's queue, which was read to its end."""
    leader.tell(
        row(at, Event.CONSUMER_TAKEN_BACK, consumer=f"c-{hands[0].incarnation}",
            incarnation=hands[0].incarnation),
        *(row(at, Event.READ_BACK, **hand.values()) for hand in hands),
    )  # fmt: skip


def _again(numbers: Numbers, at: int, *hands: HandOver) -> list[HandOver]:
    return [
        numbers.number(
            HandOver(hand.group, hand.arrival, "i2", dispatched=at, ended=at + MS, attempt=2, cost=0)
        )
        for hand in hands
    ]


def read_back(folder: Path) -> dict[str, str]:
    """All was settled, and something was still in the queue of the one that is gone."""
    numbers, leader = Numbers(), _leader(folder, "readers-back")
    hands = [numbers.number(hand) for hand in in_order("g", 4)]
    leader.hand(*hands)
    at = START_US + SECOND
    _back(leader, at, *hands[2:])
    leader.hand(*_again(numbers, at, *hands[2:]))
    leader.tell(row(at + SECOND, Event.DEAD_LETTERED, reason="rejected", **{
        name: hands[1].values()[name] for name in ("inbound", "arrival_epoch", "arrival", "group")
    }))  # fmt: skip
    leader.end()
    return {"g": "kept"}


def disordered(folder: Path) -> dict[str, str]:
    """What goes on does so in the wrong order."""
    numbers, leader = Numbers(), _leader(folder, "readers-disorder")
    hands = [numbers.number(hand) for hand in in_order("g", 4)]
    leader.hand(*hands)
    at = START_US + SECOND
    _back(leader, at, *hands[2:])
    leader.hand(*_again(numbers, at, hands[3], hands[2]))
    leader.end()
    return {"g": "violated"}


def given_out_anew(folder: Path) -> dict[str, str]:
    """Everything was forgotten: the group has another consumer, and nobody has read the first one's queue."""
    numbers, leader = Numbers(), _leader(folder, "readers-anew")
    hands = [numbers.number(hand) for hand in in_order("g", 2)]
    others = [numbers.number(hand) for hand in in_order("other", 2, first=10)]
    leader.hand(*hands, *others)
    late = in_order("g", 2, first=3, since=START_US + SECOND, incarnation="i2")
    leader.hand(*map(numbers.number, late))
    leader.tell(row(START_US + 2 * SECOND, Event.CONSUMER_TAKEN_BACK, consumer="c-i1", incarnation="i1"))
    leader.end()
    return {"g": "unknown", "other": "kept"}


def shared(folder: Path) -> dict[str, str]:
    """Several read the queue of one consumer."""
    numbers, leader = Numbers(), _leader(folder, "readers-shared")
    before, after = in_order("before", 2), in_order("after", 2, first=10, since=START_US + SECOND)
    other = in_order("other", 2, first=20, since=START_US + SECOND, incarnation="i2")
    leader.hand(*map(numbers.number, before))
    leader.tell(row(START_US + SECOND // 2, "consumer_queue_shared", consumer="c-i1", detail="{}"))
    leader.hand(*map(numbers.number, [*after, *other]))
    leader.end()
    return {"before": "kept", "after": "unknown", "other": "kept"}


def sent_again(folder: Path) -> dict[str, str]:
    """A later leader has sent a copy again: it may stand behind one that came after it."""
    numbers, leader = Numbers(), _leader(folder, "readers-again")
    first, second = (numbers.number(hand) for hand in in_order("g", 2))
    other = numbers.number(HandOver("other", 9, dispatched=START_US, ended=START_US + MS))
    leader.hand(other)
    leader.tell(first.begun(), second.begun())
    leader.end("the connection was lost")
    later = _leader(folder, "readers-again", 8, 7, START_US + SECOND)
    first.ended = second.ended = START_US + SECOND
    later.tell(first.over(by_another_leader=True), second.over(by_another_leader=True))
    later.end()
    return {"g": "unknown", "other": "kept"}


READER_CASES = {
    "readers-back": read_back, "readers-disorder": disordered, "readers-anew": given_out_anew,
    "readers-shared": shared, "readers-again": sent_again,
}  # fmt: skip
