"""Reads a total record and says everything in it that the guarantees don't allow (contract section 3).

A `life` is one process of a consumer. What a life had in hand when it was killed may be handed over again,
with a higher attempt (G-4); everything else must have happened once, in order and without overlap.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from tests.recovery.record import UNGROUPED, Handling, Number


class Story(NamedTuple):
    """What happened besides the record: what was published for sure, and whose life was ended when."""

    published: frozenset[Number]
    killed_at: dict[str, float]  # life → just before it was killed
    left_at: dict[str, float]  # life → when it was asked to stop
    keeps_owner: bool  # `exclusive`
    #: (from, to): Redis was emptied while no dispatcher was alive. Nobody knows of settles in that time whose
    #: original had not been acked yet, nor who owned the groups of which nobody had anything in hand.
    forgotten: tuple[tuple[float, float], ...] = ()


def violations(record: list[Handling], story: Story) -> list[str]:
    """Everything that is wrong, in words. `record` is sorted by start."""
    found = lost(record, story) + doubled(record, story)
    by_group: dict[str, list[Handling]] = defaultdict(list)
    for handling in record:
        if handling.message.group != UNGROUPED:
            by_group[handling.message.group].append(handling)
    for handlings in by_group.values():
        found += out_of_order(handlings, story)
        found += overlapping(handlings, story)
        found += epochs_going_back(handlings)
        found += numbers_with_gaps(handlings)
        if story.keeps_owner:
            found += owners_changed(handlings, story)
    return found


def lost(record: list[Handling], story: Story) -> list[str]:
    """G-3: every message that the broker took was handled to its end by the last consumer that got it."""
    last: dict[Number, Handling] = {}
    for handling in record:
        last[handling.message] = handling
    found = [f"lost: {message} was never handled" for message in story.published - last.keys()]
    found += [
        f"lost: {_say(h)} began, did not end, and nobody got it again" for h in last.values() if h.end is None
    ]
    return found


def doubled(record: list[Handling], story: Story) -> list[str]:
    """G-4: again only what a killed life had in hand, not confirmed, with a higher attempt."""
    by_message: dict[Number, list[Handling]] = defaultdict(list)
    for handling in record:
        by_message[handling.message].append(handling)
    found = []
    for handlings in by_message.values():
        for first, second in pairwise(handlings):
            if _forgotten_by(first, second.start, story):
                continue
            if second.attempt <= first.attempt:
                found.append(f"doubled: {_say(first)}, then {_say(second)}: the attempt does not rise")
            if not _over_by(first, second.start, story):
                found.append(f"doubled: {_say(first)}, then {_say(second)}: the first one's consumer lives")
            if first.confirmed:
                found.append(f"doubled: {_say(first)} was settled for good, then {_say(second)}")
    return found


def out_of_order(handlings: Iterable[Handling], story: Story) -> list[str]:
    """G-1 for one group: by inbound queue in the order of publishing; what is handed over again comes before
    everything later."""
    found = []
    highest: dict[str, Handling] = {}
    for handling in handlings:
        queue = handling.message.queue
        before = highest.get(queue)
        if before is not None and _position(handling) < _position(before):
            if (_over_by(before, handling.start, story) and not before.confirmed) or _forgotten_by(
                before, handling.start, story
            ):
                highest[queue] = handling  # it goes back to where the dead one's unsettled messages begin
            else:
                found.append(f"out of order: {_say(handling)} after {_say(before)}")
                continue
        highest[queue] = handling
    return found


def overlapping(handlings: list[Handling], story: Story) -> list[str]:
    """G-2 for one group: nobody begins while another life may be at work on it."""
    found = []
    at_work: dict[str, Handling] = {}  # by life, the one that ends last
    for handling in handlings:
        for life, other in list(at_work.items()):
            if life == handling.life:
                continue
            if _over_by(other, handling.start, story) or (other.end or handling.start + 1) <= handling.start:
                del at_work[life]
            else:
                found.append(f"overlap: {_say(handling)} while {_say(other)}")
        mine = at_work.get(handling.life)
        if mine is None or mine.end is not None:
            at_work[handling.life] = handling
    return found


def epochs_going_back(handlings: list[Handling]) -> list[str]:
    """For one group: epochs never fall, and one epoch has one consumer (contract section 2)."""
    found = []
    for first, second in pairwise(handlings):
        if second.epoch < first.epoch:
            found.append(f"epoch going back: {_say(first)}, then {_say(second)}")
        if second.epoch == first.epoch and second.life != first.life:
            found.append(f"epoch shared: {_say(first)} and {_say(second)}")
    return found


def numbers_with_gaps(handlings: list[Handling]) -> list[str]:
    """For one group: within an epoch a consumer begins 1, 2, 3 … (contract section 5)."""
    found = []
    last: dict[tuple[str, int], Handling] = {}
    for handling in handlings:
        key = (handling.life, handling.epoch)
        before = last.get(key)
        if handling.group_seq != (before.group_seq + 1 if before is not None else 1):
            found.append(f"gap in the group's numbers: {before and _say(before)}, then {_say(handling)}")
        last[key] = handling
    return found


def owners_changed(handlings: list[Handling], story: Story) -> list[str]:
    """G-6 for one group: only the end of its owner's life moves it, or the end of the group."""
    return [
        f"owner changed: {_say(first)}, then {_say(second)}"
        for first, second in pairwise(handlings)
        if first.life != second.life
        and not first.message.closes
        and not _gone_by(first.life, second.start, story)
        and not any(first.start <= end <= second.start for _, end in story.forgotten)
    ]


def _gone_by(life: str, at: float, story: Story) -> bool:
    ended_at = story.killed_at.get(life, story.left_at.get(life))
    return ended_at is not None and ended_at <= at


def _over_by(handling: Handling, at: float, story: Story) -> bool:
    """Nothing of this handling counts any more: its process was killed, or told that the message is lost."""
    killed_at = story.killed_at.get(handling.life)
    if killed_at is not None and killed_at <= at:
        return True
    return handling.cancelled is not None and handling.cancelled <= at


def _forgotten_by(handling: Handling, at: float, story: Story) -> bool:
    """It ended at a time of which nothing may be remembered."""
    return handling.end is not None and any(a <= handling.end <= b <= at for a, b in story.forgotten)


def _position(handling: Handling) -> tuple[int, int]:
    return handling.message.publish, handling.message.number


def _say(handling: Handling) -> str:
    m, h = handling.message, handling
    end = f"{h.end:.3f}" if h.end is not None else "no end"
    return (
        f"[{m.group}#{m.publish}.{m.number} of {m.queue} at {h.life} seq={h.seq} group_seq={h.group_seq} "
        f"epoch={h.epoch} attempt={h.attempt} {h.start:.3f}–{end}{' confirmed' if h.confirmed else ''}]"
    )
