"""Ledgers made for tests: lanes as the dispatcher would tell of them, with the faults that are planted."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dispatcher.ledger.files import FileWriter
from dispatcher.ledger.rows import Row, columns, row
from dispatcher.ledger.schema import Event
from dispatcher.ledger.store import Store

START_US = int(datetime(2026, 11, 22, 23, 59, 50, tzinfo=UTC).timestamp()) * 1_000_000
MS = 1_000
NAMES = ("lane", "incarnation", "seq")


@dataclass
class HandOver:
    """One, with all that its records need. Times in µs."""

    group: str | None
    arrival: int
    incarnation: str = "i1"
    dispatched: int = 0
    ended: int | None = None
    outcome: str = "settled"
    epoch: int = 1
    group_seq: int = 0
    attempt: int = 1
    inbound: str = "in"
    seq: int = 0
    arrival_epoch: int = 7
    received: int | None = None
    wait_cause: str | None = None
    size: int = 100
    cost: int = 1
    reason: str | None = None
    calls: int | None = None
    kind: str | None = None  # its type

    def values(self) -> dict[str, Any]:
        return {
            "inbound": self.inbound, "arrival_epoch": self.arrival_epoch, "arrival": self.arrival,
            "group": self.group, "group_seq": self.group_seq, "epoch": self.epoch,
            "consumer": f"c-{self.incarnation}", "incarnation": self.incarnation, "seq": self.seq,
            "attempt": self.attempt, "calls": self.calls, "dispatch_id": b"%016d" % self.arrival,
            "size": self.size, "cost": self.cost, "reason": self.reason, "type": self.kind,
        }  # fmt: skip

    def times(self) -> dict[str, Any]:
        received = self.received if self.received is not None else self.dispatched - 2 * MS
        return {
            "received_at": received, "dispatched_at": self.dispatched, "committed_at": self.dispatched + MS,
            "confirmed_at": self.dispatched + 2 * MS, "wait_cause": self.wait_cause,
        }  # fmt: skip

    def begun(self) -> Row:
        """As a file says it that is closed before the end."""
        return row(self.dispatched, Event.DISPATCHED, **self.values(), **self.times())

    def told_again(self, since: int | None, until: int | None, told_us: int) -> Row:
        """As the next leader has it from the journal: between which commits it was handed over."""
        values = self.values() | {"size": None, "cost": None, "type": None}
        event = Event.DISPATCHED if until is None else self.outcome
        return row(told_us, event, **values, detail=json.dumps({"commits": [since, until]}))

    def over(self, *, by_another_leader: bool = False) -> Row:
        """As it is told when it ends."""
        assert self.ended is not None
        times = {} if by_another_leader else self.times()
        values = self.values()
        if by_another_leader:
            values |= {"size": None, "cost": None, "type": None}
        return row(self.ended, self.outcome, **values, **times)


@dataclass
class Numbers:
    """Gives hand-overs the numbers that the dispatcher would give them."""

    seqs: dict[str, int] = field(default_factory=dict)
    epochs: dict[str | None, tuple[int, int, str]] = field(default_factory=dict)
    epoch: int = 7 << 20

    def number(self, hand: HandOver) -> HandOver:
        hand.seq = self.seqs[hand.incarnation] = self.seqs.get(hand.incarnation, 0) + 1
        epoch, last, holder = self.epochs.get(hand.group, (0, 0, ""))
        if holder != hand.incarnation:
            self.epoch += 1
            epoch, last = self.epoch, 0
        self.epochs[hand.group] = epoch, last + 1, hand.incarnation
        hand.epoch, hand.group_seq = (epoch, last + 1) if hand.group is not None else (self.epoch, 0)
        return hand


class Leader:
    """One leadership's files: `tell` records, `close` files."""

    def __init__(
        self, folder: Path, lane: str = "orders", lane_epoch: int = 7, former_epoch: int | None = None,
        started_us: int = START_US, **options: Any,
    ) -> None:  # fmt: skip
        self.writer = f"{lane_epoch}-{lane_epoch:08x}"
        self.files = FileWriter(Store(str(folder)), lane=lane, writer=self.writer, lane_epoch=lane_epoch)
        detail = {
            "lane": lane, "policy": "exclusive", "former_epoch": former_epoch, "rebalance_pause": "group",
            "inbounds": [{"queue": "in", "weight": 1}], **options,
        }  # fmt: skip
        self.now_us = started_us
        self.tell(row(started_us, Event.LANE_STARTED, detail=json.dumps(detail)))

    def tell(self, *rows: Row) -> None:
        if rows:
            self.files.add(columns(list(rows)), self.now_us)
            self.now_us = max(self.now_us, *(each[0] for each in rows))

    def hand(self, *hands: HandOver) -> None:
        """Hand-overs that ended."""
        self.tell(*(hand.over() for hand in hands))

    def tell_again(
        self, former: Leader, *hands: tuple[HandOver, int | None, int | None], missing: int = 0
    ) -> None:
        """What that leader's files don't have."""
        self.tell(*(hand.told_again(since, until, self.now_us) for hand, since, until in hands))
        facts = {
            "writer": former.writer,
            "ordinal": former.files.last,
            "commits": [21, 30],
            "missing": missing,
        }
        self.tell(row(self.now_us, Event.TOLD_AGAIN, messages=len(hands), detail=json.dumps(facts)))

    def close(self, now_us: int | None = None) -> None:
        """Write a file; the next one is begun at `now_us`."""
        self.files.close()
        self.now_us = now_us or self.now_us

    def end(self, reason: str | None = None) -> None:
        self.tell(row(self.now_us, Event.LANE_ENDED, reason=reason))
        self.files.close()


def in_order(
    group: str, count: int, *, first: int = 1, since: int = START_US, **values: Any
) -> list[HandOver]:
    """Hand-overs of one group to one consumer, one every ms, without numbers."""
    return [
        HandOver(group, first + n, dispatched=since + n * MS, ended=since + n * MS + MS // 2, **values)
        for n in range(count)
    ]
