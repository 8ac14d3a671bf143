"""Did everything happen, once, in order, and never twice at a time? And is the table right?"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from dispatcher.demo.table import ApplyOutcome
from dispatcher.demo.workload import RowChange, message_key
from dispatcher.judge.judge import Story, violations
from dispatcher.judge.record import HandlingRecord
from dispatcher.settings import LaneDefaults


class TableFault(StrEnum):
    """What the table itself refused or shows, although its consumer handled the message in its turn."""

    CONFLICT = "refused by the table"
    STALE = "written with an old epoch"
    UNRECORDED = "applied, and in no record"


_FAULTS = {ApplyOutcome.CONFLICT: TableFault.CONFLICT, ApplyOutcome.STALE: TableFault.STALE}


@dataclass(slots=True)
class CheckResult:
    """Counts of what must not happen, and of what may; `examples` has one line for each kind found."""

    messages: int
    found: Counter[str] = field(default_factory=Counter)  # by BreachKind or TableFault
    rows_differing: int = 0  # rows of the table that are not as expected
    handed_over_again: int = 0  # with an attempt above 1
    begun_again: int = 0  # messages that a consumer had begun before
    groups: int = 0
    groups_moved: int = 0  # handled by more than one consumer
    examples: dict[str, str] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Whether nothing happened that must not."""
        return not (self.found.total() or self.rows_differing)

    def count(self, kind: str, example: str) -> None:
        """One more of a kind."""
        self.found[kind] += 1
        self.examples.setdefault(kind, example)


def steal_after_s() -> float | None:
    """After what time a lane with the default settings lets a waiting group change its owner."""
    steal_after_ms = LaneDefaults().steal_after_ms
    return None if steal_after_ms is None else steal_after_ms / 1000


def check(
    changes: Sequence[RowChange],
    handlings: Iterable[HandlingRecord],
    killed_at: Mapping[str, float],
    rows: Mapping[bytes, bytes],
    expected: Mapping[bytes, bytes],
) -> CheckResult:
    """Compare the record with the sent messages, and the table with its expected rows.

    `killed_at`: when which consumers were killed, in seconds on the clock of the records.
    """
    checked = CheckResult(len(changes))
    record = sorted(handlings, key=lambda handling: handling.start)
    published = frozenset(message_key(number, change.group) for number, change in enumerate(changes))
    story = Story(published, dict(killed_at), left_at={}, keeps_owner=True, steal_after_s=steal_after_s())
    for breach in violations(record, story):
        checked.count(breach.kind, str(breach))
    _check_outcomes(checked, record)
    _count_moves(checked, record)
    _check_rows(checked, rows, expected)
    return checked


def _check_outcomes(checked: CheckResult, record: list[HandlingRecord]) -> None:
    """Check the table's answers to the consumers that wrote."""
    begun = set()
    for handling in record:
        message = handling.message
        fault = _FAULTS.get(ApplyOutcome(handling.outcome)) if handling.outcome else None
        if handling.outcome == ApplyOutcome.AGAIN and message not in begun:
            fault = TableFault.UNRECORDED
        if fault is not None:
            checked.count(fault, f"message {message.number} of {message.group} by {handling.life}: {fault}")
        checked.begun_again += message in begun
        checked.handed_over_again += handling.attempt > 1
        begun.add(message)


def _count_moves(checked: CheckResult, record: list[HandlingRecord]) -> None:
    lives = defaultdict(set)
    for handling in record:
        lives[handling.message.group].add(handling.life)
    checked.groups = len(lives)
    checked.groups_moved = sum(len(of_group) > 1 for of_group in lives.values())


def _check_rows(checked: CheckResult, rows: Mapping[bytes, bytes], expected: Mapping[bytes, bytes]) -> None:
    for key in rows.keys() | expected.keys():
        there, wanted = rows.get(key, b""), expected.get(key, b"")
        if there != wanted:
            checked.rows_differing += 1
            checked.examples.setdefault("rows", f"row {key!r} is {there!r}, but must be {wanted!r}")


def shares(handlings: Iterable[HandlingRecord], inbound_of: Sequence[int], queues: int) -> list[float] | None:
    """Which part of the messages came from each inbound queue while there was a choice.

    There is a choice until some consumer has no messages left of one queue: from then on it gets only the
    other's. None when there never was a choice.
    """
    begun = sorted(handlings, key=lambda handling: handling.start)
    last: dict[tuple[str, int], float] = {}
    for handling in begun:
        last[handling.life, inbound_of[handling.message.number]] = handling.start
    if len({queue for _, queue in last}) < queues:
        return None
    end = min(last.values())
    counts = [0] * queues
    for handling in begun:
        counts[inbound_of[handling.message.number]] += handling.start <= end
    return [count / sum(counts) for count in counts]
