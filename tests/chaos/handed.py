"""What is wrong with the record of a hand-over lane, by what docs/semantics.md promises for it (X-1 to
X-8): nothing is lost; a message is begun for the first time in its group's order, except for what X-7 names;
and it is begun again only if its reader lost it, or a dispatcher or server was in trouble since it was sent.

A life is one connection of a reader. What a reader begins after its connection has ended counts as nothing:
RabbitMQ has given that back by then.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

from dispatcher.judge.judge import Forgotten, line_of, place_of, say, say_number
from dispatcher.judge.record import UNGROUPED, HandlingRecord, MessageKey

#: What RabbitMQ passes on from a queue to where rejected messages go it doesn't wait to have on disk.
REJECTED_LOST_S = 5.0


class Life(NamedTuple):
    """One connection of a reader."""

    who: str
    since: float
    until: float  # RabbitMQ has ended it, or its process was killed
    remembers: bool = False  # it drops what it has done before, over whichever connection
    served_until: float = -math.inf  # its node was given up at `until`: its queue there may have taken acks

    @property
    def acks_until(self) -> float:
        """After this no ack counts; from `until` on one may count or not."""
        return max(self.until, self.served_until)


class HandedBooks(NamedTuple):
    """What is known of one hand-over lane."""

    record: list[HandlingRecord]  # by start
    lives: Mapping[str, Life]
    sent: Mapping[MessageKey, float]
    published: frozenset[MessageKey]  # confirmed to their producers
    repeated: frozenset[MessageKey]  # RabbitMQ may have these twice
    dead: frozenset[MessageKey]
    gone: frozenset[MessageKey]  # an operator took them
    take_overs: list[float]  # when a leadership began or ended
    killed: list[tuple[float, float]]  # RabbitMQ, and until when it was away
    stopped: list[tuple[float, float]]
    hurt: list[tuple[float, float]]  # a node of a cluster, until it was well again
    forgotten: tuple[Forgotten, ...] = ()


def that_counts(record: list[HandlingRecord], lives: Mapping[str, Life]) -> list[HandlingRecord]:
    """Without what was begun after its connection had ended."""
    return [handling for handling in record if handling.start < lives[handling.life].until]


def that_may_be_done(record: list[HandlingRecord], lives: Mapping[str, Life]) -> list[HandlingRecord]:
    """The same, and what a reader has begun then that acks it when it comes again."""
    return [h for h in record if lives[h.life].remembers or h.start < lives[h.life].acks_until]


def handed_violations(books: HandedBooks) -> list[str]:
    """Everything that is wrong, in words."""
    found = _lost(books) + _wrongly_dead(books)
    found += _disorder(books._replace(record=that_may_be_done(books.record, books.lives)))
    return found + _begun_again(books._replace(record=that_counts(books.record, books.lives)))


def _may_be_told(handling: HandlingRecord, lives: Mapping[str, Life]) -> bool:
    """RabbitMQ may have heard of its end, or will."""
    life = lives[handling.life]
    return handling.end is not None and (life.remembers or handling.end <= life.acks_until)


def _lost(books: HandedBooks) -> list[str]:
    """X-1, X-6: somebody has done it to its end, over a connection that could still ack it, or will ack it
    when it comes again; or it is dead."""
    done, begun, rejected = set[MessageKey](), set[MessageKey](), dict[MessageKey, float]()
    for handling in that_may_be_done(books.record, books.lives):
        begun.add(handling.message)
        if handling.end is not None and _may_be_told(handling, books.lives):
            if handling.failed:
                rejected[handling.message] = handling.end
            else:
                done.add(handling.message)
    excused = {number for number, at in rejected.items() if _perhaps_lost_by_the_broker(at, books)}
    missing = books.published - done - books.dead - books.gone - excused
    return (
        [f"lost: {say_number(n)} was never handled" for n in missing - begun]
        + [f"lost: {say_number(n)} was begun, and nobody did it" for n in (missing & begun) - rejected.keys()]
        + [f"lost: {say_number(n)} was rejected and is not dead" for n in missing & rejected.keys()]
    )


def _perhaps_lost_by_the_broker(at: float, books: HandedBooks) -> bool:
    """It passes rejected messages on without waiting for a confirm."""
    away = [*books.killed, *books.hurt]
    return any(since - REJECTED_LOST_S <= at <= until for since, until in away)


def _wrongly_dead(books: HandedBooks) -> list[str]:
    """X-5: somebody has rejected it, over a connection that could still tell RabbitMQ."""
    may_be_done = that_may_be_done(books.record, books.lives)
    failed = {h.message for h in may_be_done if h.failed and _may_be_told(h, books.lives)}
    return [f"wrongly dead: {say_number(number)} was not rejected" for number in books.dead - failed]


def _begun_again(books: HandedBooks) -> list[str]:
    by_message: dict[MessageKey, list[HandlingRecord]] = defaultdict(list)
    for handling in books.record:
        by_message[handling.message].append(handling)
    found = []
    for message, handlings in by_message.items():
        if message in books.repeated:
            continue
        for first, second in pairwise(handlings):
            if any(gap.again_from <= second.start for gap in books.forgotten):
                continue
            if not _may_be_again(first, second, books):
                found.append(f"doubled: {say(first)}, then {say(second)}, and nobody was in trouble")
            is_same = (books.lives[first.life].who, first.seq) == (books.lives[second.life].who, second.seq)
            if not (is_same or second.attempt > first.attempt or _goes_on_twice(first, second, books)):
                found.append(
                    f"doubled: {say(first)}, then {say(second)}: neither its number nor a higher attempt"
                )
    return found


def _may_be_again(first: HandlingRecord, second: HandlingRecord, books: HandedBooks) -> bool:
    """X-4: its reader's connection has ended; X-6: a dispatcher's leadership has, or RabbitMQ was away."""
    sent_at = books.sent[first.message]
    return (
        books.lives[first.life].until <= second.start
        or any(sent_at <= at <= second.start for at in books.take_overs)
        or _hit(first.message, second.start, books)
    )


def _goes_on_twice(first: HandlingRecord, second: HandlingRecord, books: HandedBooks) -> bool:
    """X-6: one of them was read back from a queue, and a leadership ended meanwhile."""
    sent_at, at = books.sent[first.message], second.start
    was_torn = any(sent_at <= end <= at for end in books.take_overs)
    return (was_torn and max(first.attempt, second.attempt) > 1) or _hit(first.message, at, books)


def _hit(message: MessageKey, at: float, books: HandedBooks) -> bool:
    """RabbitMQ was away between its being sent and then."""
    sent_at = books.sent[message]
    return any(since <= at and sent_at <= until for since, until in [*books.killed, *books.stopped])


def _disorder(books: HandedBooks) -> list[str]:
    """G-1 for the first time that each message is begun."""
    lines: dict[tuple[str, str, str], list[MessageKey]] = defaultdict(list)
    for message in books.published - books.gone - books.dead:
        lines[line_of(message)].append(message)
    first_at = dict[MessageKey, HandlingRecord]()
    for handling in books.record:
        first_at.setdefault(handling.message, handling)
    begun: dict[tuple[str, str, str], set[MessageKey]] = defaultdict(set)
    passed: dict[tuple[str, str, str], int] = defaultdict(int)
    for line in lines.values():
        line.sort(key=place_of)
    found = []
    for handling in first_at.values():
        if handling.message.group == UNGROUPED:
            continue
        key = line_of(handling.message)
        line = lines.get(key, [])
        begun[key].add(handling.message)
        while passed[key] < len(line) and line[passed[key]] in begun[key]:
            passed[key] += 1
        for earlier in line[passed[key] :]:
            if place_of(earlier) >= place_of(handling.message):
                break
            if earlier in begun[key] or _may_pass(handling, earlier, first_at.get(earlier), books):
                continue
            found.append(f"out of order: {say(handling)} before {say_number(earlier)} was begun")
            break
    return found


def _may_pass(
    later: HandlingRecord, earlier: MessageKey, begun: HandlingRecord | None, books: HandedBooks
) -> bool:
    """X-7, for one that came behind `earlier`, whose first handling is `begun`."""
    sent_at, later_sent_at = books.sent[earlier], books.sent[later.message]
    if any(since <= later.start and later_sent_at <= until for since, until in books.killed):
        return True
    if any(gap.since <= later.start and sent_at <= gap.until for gap in books.forgotten):
        return True
    return begun is not None and any(
        sent_at <= at <= later.start and _is_away(books.lives[begun.life].who, at, books)
        for at in books.take_overs
    )


def _is_away(who: str, at: float, books: HandedBooks) -> bool:
    """It had no connection then, so its queue may have been read back."""
    mine = [life.until for life in books.lives.values() if life.who == who and life.since <= at]
    return max(mine, default=math.inf) <= at
