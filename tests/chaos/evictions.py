"""Consumers that do not settle in time, and those that operators end (docs/semantics.md, C-8 and C-9).

Who was evicted when is in the dispatchers' logs; whether that was right, and who should have been, is in what
consumers, producers and proxies wrote down. Nobody but a dispatcher knows when exactly it handed a message
over, so that is bounded from both sides. It was not before its producer sent it, nor before its last attempt
began, nor before anything with a smaller seq, nor before its consumer's prefetch had room. And it was before
its consumer began it.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Final, NamedTuple

from dispatcher.judge.judge import Forgotten, say
from dispatcher.judge.record import HandlingRecord, Incarnation, MessageKey
from tests.chaos.leaderships import Leadership, said
from tests.chaos.parts import Eviction, Process
from tests.chaos.stage import PREFETCH

OPERATOR, ACK_TIMEOUT = "operator", "ack_timeout"
#: Between clocks, and between what happens and what is written down.
SLACK_S: Final = 0.5
#: A leader begins to lead a little before it says so.
LED_SLACK_S: Final = 2.0
#: How much later than `ack_timeout` an eviction is told at the latest, by a leader that nothing hinders, on a
#: machine on which everything runs at once. Two looks (`liveness_interval` is 500 ms at most here), one way
#: through the control queue and one commit are what it takes.
LATE_S: Final = 4.0
#: RabbitMQ hears nothing of a consumer that stands still, and ends its connection: not before.
CONNECTED_S: Final = 14.0
#: Redis is there again, and everything is written back, also where nobody says so.
RESTORED_S: Final = 15.0
#: What the consumer that is written from docs/protocol.md alone asks for.
PREFETCH_OF_BARE: Final = 50
Interval = tuple[float, float]


class Told(NamedTuple):
    """A dispatcher says that it evicts an incarnation."""

    at: float
    who: str
    incarnation: str  # the first of its uuid, as records have it
    by: str


class Life(NamedTuple):
    """One incarnation, and what it handled."""

    process: Process
    incarnation: Incarnation
    handlings: list[HandlingRecord]


class Times(NamedTuple):
    """What else has to be known of a lane to judge its evictions."""

    timeout_s: float | None  # None: nobody is evicted for being late
    sent: Mapping[MessageKey, float]
    began: Mapping[tuple[MessageKey, int], float]  # by message and attempt
    led: list[Leadership]
    hindered: Mapping[str, list[Interval]]  # by dispatcher: it was, or a server
    forgotten: tuple[Forgotten, ...]


def told_of(logs: Iterable[str], lane: str) -> list[Told]:
    """In the order of their times; what one leader began and the next one goes on with is there twice."""
    return sorted(
        Told(at, record["consumer"], record["incarnation"][:8], record["by"])
        for at, record in said(logs, lane)
        if record["event"] == "consumer_evicted"
    )


def taken_back_of(logs: Iterable[str], lane: str) -> list[tuple[float, str]]:
    """When dispatchers took consumers back, with their names."""
    return sorted(
        (at, record["consumer"])
        for at, record in said(logs, lane)
        if record["event"] == "consumer_taken_back"
    )


def first_told(told: list[Told]) -> list[Told]:
    """Of each incarnation."""
    first: dict[tuple[str, str], Told] = {}
    for one in told:
        first.setdefault((one.who, one.incarnation), one)
    return list(first.values())


def asked_for(one: Told, evictions: list[Eviction]) -> bool:
    """An operator may have wanted it."""
    return any(
        order.who == one.who
        and order.incarnation in (one.incarnation, None)
        and order.since - SLACK_S <= one.at <= order.until + SLACK_S
        for order in evictions
    )


def judged(lives: list[Life], told: list[Told], orders: list[Eviction], times: Times) -> list[str]:
    """Everything that C-8 and C-9 do not allow, in words."""
    found = []
    by_name = {(life.process.who, life.incarnation.name): life for life in lives}
    for one in first_told(told):
        life = by_name.get((one.who, one.incarnation))
        if one.by != ACK_TIMEOUT and asked_for(one, orders):
            pass
        elif one.by == OPERATOR or times.timeout_s is None:
            found.append(f"evicted by nobody: {_say(one)}, and no operator wanted that")
        elif life is not None and not _was_late(life, one, times, times.timeout_s):
            found.append(f"evicted early: {_say(one)}, and had settled everything within {times.timeout_s} s")
        if life is not None:
            found += _went_on(life, one, times)
    if times.timeout_s is not None:
        at = {(one.who, one.incarnation): one.at for one in reversed(first_told(told))}
        for life in lives:
            evicted_at = at.get((life.process.who, life.incarnation.name), math.inf)
            found += _not_evicted(life, evicted_at, times, times.timeout_s)
    return found


# -- not too early --


def _was_late(life: Life, one: Told, times: Times, timeout_s: float) -> bool:
    """By what is known it may have had a message for `ack_timeout`. What it never began counts as well: its
    place among the seqs says when it was handed over at the earliest."""
    if not life.handlings or any(gap.until >= life.handlings[0].start for gap in times.forgotten):
        return True
    told_at, led_at = one.at, -math.inf
    if one.by == ACK_TIMEOUT:  # else it was under a leader before
        before_it = (led.since - LED_SLACK_S for led in times.led if led.since <= told_at)
        led_at = max(before_it, default=-math.inf)
    enough_s = timeout_s - SLACK_S
    settled_by = _settled_by(life.handlings)
    before, floor = life.handlings[0].seq, -math.inf
    for handling, at in handed_over_from(life, times):
        if handling.seq > before + 1 and told_at - max(floor, led_at) >= enough_s:
            return True  # one that it never began
        floor = at
        out_until = min(told_at, settled_by.get(handling.seq, math.inf))
        if out_until - max(floor, led_at) >= enough_s:
            return True
        before = handling.seq
    return told_at - max(floor, led_at) >= enough_s


def handed_over_from(life: Life, times: Times) -> list[tuple[HandlingRecord, float]]:
    """What an incarnation began, by seq, each with the earliest time at which that may have got it."""
    prefetch = PREFETCH_OF_BARE if life.process.kind == "bare" else PREFETCH
    done: list[float] = []
    floor, found = -math.inf, []
    for handling in sorted(life.handlings, key=lambda handling: handling.seq):
        floor = max(floor, times.sent.get(handling.message, -math.inf))
        former = times.began.get((handling.message, handling.attempt - 1))
        if former is not None and former <= handling.start:  # what was written down of attempts may be lost
            floor = max(floor, former)
        if len(done) >= prefetch:
            floor = max(floor, done[len(done) - prefetch])
        found.append((handling, floor))
        insort(done, min(_or_never(handling.end), _or_never(handling.cancelled)))
    return found


def first_attempts(record: list[HandlingRecord]) -> dict[tuple[MessageKey, int], float]:
    """When each attempt of each message was begun first."""
    began: dict[tuple[MessageKey, int], float] = {}
    for handling in record:
        began.setdefault((handling.message, handling.attempt), handling.start)
    return began


def _settled_by(handlings: list[HandlingRecord]) -> dict[int, float]:
    """When RabbitMQ had the settle of each seq at the latest. Of a failed one nobody notes that: it had it
    with those that were ended later."""
    found, known = {}, math.inf
    for handling in sorted(handlings, key=lambda handling: _or_never(handling.end), reverse=True):
        if handling.confirmed_at is not None:
            known = found[handling.seq] = handling.confirmed_at
        elif handling.failed:
            found[handling.seq] = known
    return found


# -- not for ever --


def _not_evicted(life: Life, evicted_at: float, times: Times, timeout_s: float) -> list[str]:
    """It had a message for longer than `ack_timeout`, and a leader that nothing hindered was there to see."""
    for handling in life.handlings:
        for since, until in _seen(handling, life, times):
            due = since + timeout_s + LATE_S
            if until >= due and evicted_at > due:
                return [f"not evicted: {say(handling)} was not settled between {since:.3f} and {until:.3f}"]
    return []


def _seen(handling: HandlingRecord, life: Life, times: Times) -> Iterable[Interval]:
    """How long somebody led whom nothing hindered, while it was unsettled at one that was connected."""
    incarnation, process = life.incarnation, life.process
    ends = (handling.end, handling.cancelled, incarnation.over, process.killed_at, process.left_at)
    until = min([handling.start + CONNECTED_S, *map(_or_never, ends)])
    since = handling.start
    if since + LATE_S > until:
        return
    for connection in process.proxy.connections:
        welcomes = [at for at in incarnation.welcomes if connection.opened <= at <= connection.closed]
        for one, after in pairwise([*times.led, Leadership(math.inf, math.inf)]):
            begin = max(since, one.since, min(welcomes, default=math.inf))
            end = min(until, one.until, after.since, connection.closed)
            yield from _between((begin, end), times.hindered[one.who])


def _between(whole: Interval, hindered: list[Interval]) -> Iterable[Interval]:
    """What is left of an interval."""
    since, until = whole
    for begin, end in sorted(hindered):
        if begin >= until:
            break
        if begin > since:
            yield since, begin
        since = max(since, end)
    if since < until:
        yield since, until


# -- over for good --


def _went_on(life: Life, one: Told, times: Times) -> list[str]:
    """C-9: it gets nothing more, and no join brings it back."""
    if any(gap.until >= one.at for gap in times.forgotten):
        return []
    found = []
    for handling in life.handlings:
        later = times.sent.get(handling.message, -math.inf)
        for attempt in range(1, handling.attempt):
            later = max(later, times.began.get((handling.message, attempt), -math.inf))
        if handling.start > later > one.at + SLACK_S:
            found.append(f"handed over after its eviction: {say(handling)}, and {_say(one)}")
    for connection in life.process.proxy.connections:
        if connection.opened > one.at + SLACK_S and any(
            connection.opened <= at <= connection.closed for at in life.incarnation.welcomes
        ):
            found.append(f"welcomed after its eviction: over {connection.opened:.3f}, and {_say(one)}")
    return found


def _say(one: Told) -> str:
    return f"{one.incarnation} of {one.who} was evicted by {one.by} at {one.at:.3f}"


def _or_never(at: float | None) -> float:
    return math.inf if at is None else at
