"""Where every message is that an operator took out of a lane: in the target, in the dead queue, or counted.

A message ends in exactly one of these ways: a consumer settled it, it is in the dead queue, it arrived in the
target of a `move` or `reroute`, or a `purge` or `drop` deleted it and said so. A deleted one is seen nowhere,
so what was deleted is known by its number: as many of a group must be missing as were counted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

from dispatcher.judge.judge import (
    Story,
    TakenUpTo,
    is_ghost,
    is_over_by,
    line_of,
    owned_as,
    precedes,
    say,
    say_number,
    taken_up_to_of,
    that_count,
)
from dispatcher.judge.record import UNGROUPED, HandlingRecord, MessageKey
from tests.chaos.decisions import DECIDING, DROP, PURGE, SENDING, Decision

NAMED_MAX = 5


class Arrived(NamedTuple):
    """One message in the target, in its order."""

    message: MessageKey
    origin: str


class Books(NamedTuple):
    """What there is to balance for one lane."""

    record: list[HandlingRecord]  # by start
    story: Story
    sent: Mapping[MessageKey, float]
    decisions: list[Decision]
    dead: frozenset[MessageKey]
    arrived: list[Arrived]
    take_overs: list[float]  # when a leadership ended or began
    stops: bool  # `on_exhausted: stop`


class Balance(NamedTuple):
    """`gone`: what needs no handling, because an operator took it."""

    gone: frozenset[MessageKey]
    violations: list[str]


class _Group:
    """One group, or a bucket of them: what was decided about it, and what is missing of it."""

    def __init__(self, decisions: list[Decision]) -> None:
        self.decisions = decisions
        self.missing: set[MessageKey] = set()
        self.open_to_doubt: set[MessageKey] = set()  # sent, and not settled for certain
        self.arrived: list[Arrived] = []

    def of(self, commands: Iterable[str]) -> list[Decision]:
        """Those that changed anything."""
        return [d for d in self.decisions if d.command in commands and (d.messages != 0 or d.doubtful)]

    def counted(self, command: str) -> int | None:
        """How many messages such commands deleted; None: nobody knows of one of them."""
        counts = [decision.messages for decision in self.of([command])]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None


def balance(books: Books) -> Balance:
    """What is accounted for, and what is wrong with the accounts."""
    story, counting = books.story, that_count(books.record, books.story)
    last = {handling.message: handling for handling in counting}
    settled = {h.message: h for h in counting if h.confirmed and not h.failed}
    arrived = {one.message for one in books.arrived}
    groups = _groups(books)
    for message in books.sent.keys() | story.published | last.keys():
        group = groups.get(_key(message, story))
        if group is None or message.group == UNGROUPED or message in books.dead | arrived | story.poison:
            continue
        if message not in settled:
            group.open_to_doubt.add(message)
        handling = last.get(message)
        if handling is None or handling.end is None or handling.failed:
            group.missing.add(message)
    known = story.published | last.keys()
    found = _settled_and_elsewhere(books, settled)
    for key, group in groups.items():
        group.missing &= known
        found += _deleted(key, group, books, last)
        found += _in_target(key, group, books)
    found += [
        f"wrongly moved: {say_number(message)}, of which nobody said so"
        for message in arrived
        if _key(message, story) not in groups or not groups[_key(message, story)].of(SENDING)
    ]
    if books.stops:
        found += _passed_a_stop(books, groups)
    gone = arrived.union(*(group.missing for group in groups.values()))
    return Balance(frozenset(gone), found)


def _groups(books: Books) -> dict[str, _Group]:
    by_key: dict[str, list[Decision]] = defaultdict(list)
    for decision in books.decisions:
        by_key[decision.group].append(decision)
    groups = {key: _Group(decisions) for key, decisions in by_key.items()}
    for one in books.arrived:
        if (group := groups.get(_key(one.message, books.story))) is not None:
            group.arrived.append(one)
    return groups


def _key(message: MessageKey, story: Story) -> str:
    return owned_as(message.group, story.buckets)


def _settled_and_elsewhere(books: Books, settled: dict[MessageKey, HandlingRecord]) -> list[str]:
    """G-4: what somebody settled is in no other place, and nothing is in two."""
    story = books.story
    if story.forgotten:
        return []
    arrived = {one.message for one in books.arrived}
    found = [
        f"doubled: {say(settled[message])} was settled for good, and is {place}"
        for place, there in (("in the target", arrived), ("in the dead queue", books.dead))
        for message in there & settled.keys() - story.repeated
    ]
    found += [
        f"doubled: {say_number(message)} is in the dead queue and in the target"
        for message in arrived & books.dead - story.repeated
    ]
    moved_by: dict[str, float] = defaultdict(float)
    for decision in books.decisions:
        if decision.command in SENDING:
            moved_by[decision.group] = max(moved_by[decision.group], decision.until)
    return found + [
        f"doubled: {say(h)} is in the target since {moved_by[_key(h.message, story)]:.3f} at the latest"
        for h in books.record
        if h.message in arrived - story.repeated
        and not is_ghost(h, story)
        and h.start > moved_by[_key(h.message, story)]
    ]


def _deleted(key: str, group: _Group, books: Books, last: dict[MessageKey, HandlingRecord]) -> list[str]:
    """G-3, G-4: as many are missing as were purged and dropped."""
    story, missing = books.story, group.missing
    purged, dropped = group.counted(PURGE), group.counted(DROP)
    deleting = group.of([PURGE, DROP])
    found = [
        f"lost: {say_number(m)}, which came after everything that was decided about {key}"
        for m in missing
        if not any(decision.until >= books.sent.get(m, 0.0) for decision in deleting)
    ]
    found += _too_early(key, group, books, last)
    if purged is None or dropped is None:
        return found
    if len(missing) > purged + dropped:
        found.append(
            f"lost: {len(missing)} messages of {key} are nowhere, {purged} were purged, {dropped} dropped: "
            f"{_names(missing)}"
        )
    never_begun = missing - last.keys()
    poison = sum(not decision.of_failed for decision in group.of([DROP]))
    if len(never_begun) > purged + poison:
        found.append(
            f"lost: nobody began {len(never_begun)} messages of {key}, {purged} were purged: "
            f"{_names(never_begun)}"
        )
    repeated = sum(_key(message, story) == key for message in story.repeated)
    if not story.forgotten and purged > len(group.open_to_doubt) + repeated:
        found.append(
            f"doubled: {purged} messages of {key} were purged, and all but {len(group.open_to_doubt)} "
            "are settled, dead, or in the target"
        )
    return found


def _too_early(key: str, group: _Group, books: Books, last: dict[MessageKey, HandlingRecord]) -> list[str]:
    """G-1: nobody began what comes behind a message that was purged later."""
    story = books.story
    since = min((decision.since for decision in group.of([PURGE, DROP])), default=0.0)
    taken_up_to: TakenUpTo = taken_up_to_of(story)
    lines: dict[tuple[str, str, str], list[MessageKey]] = defaultdict(list)
    for message in group.missing - last.keys() - story.repeated:
        lines[line_of(message)].append(message)
    return [
        f"out of order: {say(h)} before {say_number(message)}, which nobody had taken out by then"
        for h in books.record
        if h.start < since and h.message not in story.repeated and not is_ghost(h, story)
        for message in lines.get(line_of(h.message), [])
        if precedes(message, h.message, taken_up_to)
    ]


def _in_target(key: str, group: _Group, books: Books) -> list[str]:
    """O-28 to O-31: each once but for what a take-over repeats, as many as were counted, in order."""
    story, sending = books.story, group.of(SENDING)
    origins: dict[MessageKey, Counter[str]] = defaultdict(Counter)
    for one in group.arrived:
        origins[one.message][one.origin] += 1
    take_overs = sum(
        decision.since <= at <= decision.until for decision in sending for at in books.take_overs
    )
    found = []
    for message, copies in origins.items():
        if len(copies) > 1 and message not in story.repeated and not story.forgotten:
            found.append(f"doubled: {say_number(message)} is in the target with origins {sorted(copies)}")
        if max(copies.values()) > 1 and not take_overs:
            found.append(f"doubled: {say_number(message)} is in the target twice, and nobody took over")
    there = sum(len(copies) for copies in origins.values())
    counts = [decision.messages for decision in sending]
    if not story.forgotten and None not in counts:
        said = sum(count or 0 for count in counts)
        doubtful = sum(decision.doubtful for decision in sending)
        if not said <= there <= said + doubtful:
            found.append(f"miscounted: {there} messages of {key} are in the target, {said} were counted")
    return found + _out_of_order(key, group, story, len(sending) + take_overs)


def _out_of_order(key: str, group: _Group, story: Story, runs_max: int) -> list[str]:
    """G-1 in the target: every operation, and every leader that goes on with one, begins again."""
    taken_up_to = taken_up_to_of(story)
    lines: dict[tuple[str, str, str], list[MessageKey]] = defaultdict(list)
    for one in group.arrived:
        line = lines[line_of(one.message)]
        if one.message not in story.repeated and one.message not in line:
            line.append(one.message)
    found = []
    for line in lines.values():
        falls = [pair for pair in pairwise(line) if precedes(pair[1], pair[0], taken_up_to)]
        if len(falls) >= runs_max:
            first, second = falls[-1]
            found.append(
                f"out of order: in the target {say_number(second)} of {key} is behind {say_number(first)}"
            )
    return found


def _passed_a_stop(books: Books, groups: dict[str, _Group]) -> list[str]:
    """D-9: nothing of a group begins behind what it has stopped at, until an operator says so."""
    story, found = books.story, []
    at: dict[str, HandlingRecord] = {}  # by group, what it has stopped at
    for handling in books.record:
        if handling.message.group == UNGROUPED or is_ghost(handling, story):
            continue
        key = _key(handling.message, story)
        failed = at.pop(key, None)
        if (
            failed is not None
            and failed.message != handling.message
            and not is_over_by(failed, handling.start, story)
            and not any(gap.until >= (failed.end or 0.0) for gap in story.forgotten)
            and not any(
                decision.since <= handling.start and (failed.end or 0.0) <= decision.until
                for decision in (groups[key].of(DECIDING) if key in groups else [])
            )
        ):
            found.append(f"passed over: {say(handling)} behind {say(failed)}, about which nobody decided")
        if handling.failed:
            at[key] = handling
    return found


def _names(messages: Iterable[MessageKey]) -> str:
    named = sorted(messages)
    more = f" and {len(named) - NAMED_MAX} more" if len(named) > NAMED_MAX else ""
    return ", ".join(map(say_number, named[:NAMED_MAX])) + more
