"""Did everything happen, once, in order, and never twice at a time? Reads all records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from dispatcher.demo.records import HandlingRecord
from dispatcher.demo.table import ApplyOutcome
from dispatcher.demo.workload import RowChange


@dataclass(slots=True)
class CheckResult:
    """Counts of what must not happen, and of what may; `examples` has one line for each kind found."""

    messages: int
    lost: int = 0  # never handled to the end
    doubled: int = 0  # handled again although nobody had died with it
    out_of_order: int = 0  # handled before an earlier one of its group, or refused by the table
    overlaps: int = 0  # begun while another message of its group was being handled, or with an old epoch
    differences: int = 0  # rows of the table that are not as expected
    handed_over_again: int = 0  # with an attempt above 1
    begun_again: int = 0  # of these: begun by the one that they were taken back from
    groups: int = 0
    groups_moved: int = 0  # handled by more than one consumer
    examples: dict[str, str] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Whether nothing happened that must not."""
        return not (self.lost or self.doubled or self.out_of_order or self.overlaps or self.differences)

    def count(self, what: str, example: str) -> None:
        """One more of a kind."""
        setattr(self, what, getattr(self, what) + 1)
        self.examples.setdefault(what, example)


def check(
    changes: Sequence[RowChange],
    handlings: Iterable[HandlingRecord],
    killed_at_ns: Mapping[str, int],
    rows: Mapping[bytes, bytes],
    expected: Mapping[bytes, bytes],
) -> CheckResult:
    """Compare what was recorded with what was sent, and the table with what it must be.

    `killed_at_ns` says when which consumers were killed. Only what they had, and what was taken back from a
    consumer that was told so, may be handed over again.
    """
    checked = CheckResult(len(changes))
    by_group: dict[bytes, list[HandlingRecord]] = defaultdict(list)
    done = set()
    for handling in handlings:
        by_group[changes[handling.number].group].append(handling)
        if handling.group != changes[handling.number].group:
            checked.count("lost", f"message {handling.number} came with the group {handling.group!r}")
        if handling.is_done:
            done.add(handling.number)
    for number, change in enumerate(changes):
        if number not in done:
            checked.count("lost", f"message {number} of {change.group!r} was never handled to the end")
    numbers: dict[bytes, list[int]] = defaultdict(list)
    for number, change in enumerate(changes):
        numbers[change.group].append(number)
    for group, found in by_group.items():
        found.sort(key=lambda handling: handling.begun_ns)
        _check_order(checked, group, found, numbers[group], killed_at_ns)
        _check_overlaps(checked, group, found, killed_at_ns)
        checked.groups_moved += len({handling.consumer for handling in found}) > 1
    checked.groups = len(by_group)
    _check_rows(checked, rows, expected)
    return checked


def _check_order(
    checked: CheckResult,
    group: bytes,
    found: list[HandlingRecord],
    numbers: list[int],
    killed_at_ns: Mapping[str, int],
) -> None:
    """Each message follows its predecessor; one that was handled before comes again only from the dead."""
    place = {number: index for index, number in enumerate(numbers)}
    last = -1  # place of the message that was handled last
    last_done = -1  # the same, of those whose handling nobody may repeat
    earlier: dict[int, HandlingRecord] = {}
    for handling in found:
        number, here = handling.number, place[handling.number]
        before = earlier.get(number)
        if before is not None:
            if _came_again_rightly(before, handling, killed_at_ns):
                checked.begun_again += 1
                if here <= last_done:
                    checked.count("out_of_order", f"{group!r}: message {number} came again behind newer ones")
            else:
                checked.count(
                    "doubled",
                    f"message {number} of {group!r}: by {before.consumer} (attempt {before.attempt}), "
                    f"then by {handling.consumer} (attempt {handling.attempt})",
                )
        elif here != last + 1:
            checked.count("out_of_order", f"{group!r}: message {number} is not the one that comes next")
        if handling.outcome is ApplyOutcome.CONFLICT:
            checked.count("out_of_order", f"{group!r}: the table refused message {number}")
        elif handling.outcome is ApplyOutcome.AGAIN and before is None:
            checked.count(
                "doubled",
                (f"message {number} of {group!r} had been applied, and no record says by which consumer"),
            )
        elif handling.outcome is ApplyOutcome.STALE:
            checked.count("overlaps", f"{group!r}: message {number} was written with an old epoch")
        checked.handed_over_again += handling.attempt > 1
        earlier[number] = handling
        last = here
        if handling.is_done and handling.consumer not in killed_at_ns:
            last_done = here


def _came_again_rightly(
    before: HandlingRecord, handling: HandlingRecord, killed_at_ns: Mapping[str, int]
) -> bool:
    was_taken = before.consumer in killed_at_ns or before.outcome is ApplyOutcome.LOST
    return was_taken and handling.attempt > before.attempt


def _check_overlaps(
    checked: CheckResult, group: bytes, found: list[HandlingRecord], killed_at_ns: Mapping[str, int]
) -> None:
    """No message of a group begins before the one before it has ended, and epochs never go back."""
    for before, handling in pairwise(found):
        ended_ns = before.ended_ns
        if ended_ns is None:  # it ended with its consumer
            ended_ns = killed_at_ns.get(before.consumer)
        if ended_ns is None or handling.begun_ns < ended_ns:
            checked.count(
                "overlaps",
                f"{group!r}: message {handling.number} began at {handling.consumer} while "
                f"{before.consumer} had message {before.number}",
            )
        elif handling.epoch < before.epoch:
            checked.count("overlaps", f"{group!r}: message {handling.number} came with an older epoch")


def _check_rows(checked: CheckResult, rows: Mapping[bytes, bytes], expected: Mapping[bytes, bytes]) -> None:
    for key in rows.keys() | expected.keys():
        there, wanted = rows.get(key, b""), expected.get(key, b"")
        if there != wanted:
            checked.count("differences", f"row {key!r} is {there!r}, but must be {wanted!r}")


def shares(handlings: Iterable[HandlingRecord], inbound_of: Sequence[int], queues: int) -> list[float] | None:
    """Which part of the messages came from each inbound queue while there was a choice.

    That is until some consumer had none left of some queue: from then on it gets only the other's. None
    when there never was a choice.
    """
    begun = sorted(handlings, key=lambda handling: handling.begun_ns)
    last_ns: dict[tuple[str, int], int] = {}
    for handling in begun:
        last_ns[handling.consumer, inbound_of[handling.number]] = handling.begun_ns
    if len({queue for _, queue in last_ns}) < queues:
        return None
    end_ns = min(last_ns.values())
    counts = [0] * queues
    for handling in begun:
        counts[inbound_of[handling.number]] += handling.begun_ns <= end_ns
    return [count / sum(counts) for count in counts]
