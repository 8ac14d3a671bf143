"""The gaps of a ledger, by name: computed from ordinals and leaderships, never guessed.

A gap is a stretch of a lane's time in which something may have happened that has no record. Where the
ledger begins and ends is a boundary: nothing is said about what lies outside.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from enum import StrEnum
from itertools import groupby, pairwise
from typing import Final, NamedTuple

from dispatcher.ledger.schema import ENDED, NO_ROOM, Event
from dispatcher.pipeline.leaderships import RecordedLeadership
from dispatcher.pipeline.ledger_files import BadFile, Found, first_end

#: Later than every instant of a ledger, in µs; Spark's timestamps take it.
END_OF_TIME_US: Final = 253_370_764_800_000_000


class GapKind(StrEnum):
    """Why records are missing. The last three are boundaries."""

    ORDINALS = "ordinals"  # a file was deleted, can't be read, or could not be written
    NO_END = "no_end"  # the leader was killed
    NO_START = "no_start"  # a leadership begins in the middle
    NO_LEDGER = "no_ledger"  # another leadership came between, and has no records
    DROPPED = "dropped"  # the dispatcher dropped records: no room
    TOLD_AGAIN = "told_again"  # the leader was killed, and the next one had its journal
    BEGINS = "begins"  # the first that the ledger has
    GOES_ON = "goes_on"  # the last that it has: not ended so far, or killed


#: Nothing of what the ledger reaches over is missing here.
BOUNDARIES: Final = frozenset({GapKind.TOLD_AGAIN, GapKind.BEGINS, GapKind.GOES_ON})


class Gap(NamedTuple):
    """Since and until are instants of a lane: the turn, then µs since 1970."""

    lane: str
    kind: GapKind
    writer: str
    first_ordinal: int | None
    last_ordinal: int | None
    since: tuple[int, int]
    until: tuple[int, int]
    text: str


#: By lane, writer and first missing ordinal: when the last event before happened, and the first one after.
MissingTimes = dict[tuple[str, str, int], tuple[int | None, int | None]]


class Window(NamedTuple):
    """What of a ledger is looked at, in µs since 1970; until is not included."""

    since_us: int | None = None
    until_us: int | None = None


def find_gaps(
    leaderships: Iterable[RecordedLeadership],
    bad: Iterable[BadFile],
    missing_times: MissingTimes,
    window: Window,
) -> list[Gap]:
    """All gaps and boundaries."""
    found: list[Gap] = []
    unreadable = [each for each in bad if each.writer is not None]
    for _, of_lane in groupby(leaderships, key=lambda each: each.lane):
        turns = list(of_lane)
        for place, leadership in enumerate(turns):
            former = turns[place - 1] if place else None
            found += _between(leadership, former, window)
            found += _beginning(leadership, former)
            found += _ordinals(leadership, missing_times)
            found += _dropped(leadership)
            found += _ending(leadership, turns[place + 1 :], unreadable, window)
    return found


def missing_times(ledger: str, found: Found, leaderships: Iterable[RecordedLeadership]) -> MissingTimes:
    """What `find_gaps` must know of missing ordinals."""
    times: MissingTimes = {}
    for each in leaderships:
        mine = [file for file in found.files if (file.lane, file.writer) == (each.lane, each.writer)]
        for first, last in missing_ordinals(each):
            since_us = max(file.last_us for file in mine if file.last < first)
            until_us = first_end(ledger, [file for file in mine if file.first > last])
            times[each.lane, each.writer, first] = since_us, until_us
    return times


def missing_ordinals(leadership: RecordedLeadership) -> list[tuple[int, int]]:
    """Ranges between the first and the last ordinal that there is."""
    return [(before[1] + 1, after[0] - 1) for before, after in pairwise(leadership.ranges)]


def _between(
    leadership: RecordedLeadership, former: RecordedLeadership | None, window: Window
) -> Iterator[Gap]:
    """Whether another leadership came before this one and after the one before."""
    if former is None:
        if window.since_us is None:
            yield _gap(
                leadership, GapKind.BEGINS, (leadership.turn, 0), (leadership.turn, leadership.first_us or 0),
                "the ledger begins here: it says nothing about earlier times",
            )  # fmt: skip
        return
    if leadership.started is None:
        return  # told by `_beginning`
    before = leadership.started.detail.get("former_epoch")
    since, until = (leadership.turn - 1, 0), (leadership.turn - 1, END_OF_TIME_US)
    if not isinstance(before, int):
        text = "Redis did not know who led before: another leadership may be missing"
        yield _gap(leadership, GapKind.NO_LEDGER, since, until, text)
    elif not leadership.follows(former):
        text = f"the leadership before had lane epoch {before}, and has no records"
        yield _gap(leadership, GapKind.NO_LEDGER, since, until, text)
    elif former.lane_epoch == leadership.lane_epoch:
        text = f"two writers have lane epoch {before}: which of them came first is not known"
        yield _gap(leadership, GapKind.NO_LEDGER, (former.turn, 0), (leadership.turn, END_OF_TIME_US), text)


def _beginning(leadership: RecordedLeadership, former: RecordedLeadership | None) -> Iterator[Gap]:
    if former is None or leadership.started is not None or not leadership.ranges:
        return
    last = leadership.ranges[0][0] - 1
    missing = f"its first {last:,} records are missing" if last else "its first record is none of a start"
    yield _gap(
        leadership, GapKind.NO_START, (leadership.turn - 1, 0), (leadership.turn, leadership.first_us or 0),
        f"a leadership begins in the middle: {missing}", 1, last or None,
    )  # fmt: skip


def _ordinals(leadership: RecordedLeadership, times: MissingTimes) -> Iterator[Gap]:
    for first, last in missing_ordinals(leadership):
        since_us, until_us = times.get((leadership.lane, leadership.writer, first), (None, None))
        since_us = since_us if since_us is not None else leadership.first_us or 0
        until = (leadership.turn, until_us) if until_us is not None else (leadership.turn, END_OF_TIME_US)
        yield _gap(
            leadership, GapKind.ORDINALS, (leadership.turn, since_us), until,
            f"records {first:,} to {last:,} are missing, {_span(since_us, until_us)}", first, last,
        )  # fmt: skip


def _dropped(leadership: RecordedLeadership) -> Iterator[Gap]:
    for fact in leadership.facts:
        if fact.event != Event.RECORDS_DROPPED or fact.reason not in (NO_ROOM, ENDED):
            continue
        since_us = fact.detail.get("since_us")
        if not isinstance(since_us, int):
            since_us = leadership.first_us or 0
        yield _gap(
            leadership, GapKind.DROPPED, (leadership.turn, since_us), (leadership.turn, fact.time_us),
            f"{fact.messages or 0:,} messages were not recorded, {_span(since_us, fact.time_us)}: "
            + ("no room" if fact.reason == NO_ROOM else "the process that writes had ended"),
        )  # fmt: skip


def _ending(
    leadership: RecordedLeadership, later: list[RecordedLeadership], bad: list[BadFile], window: Window
) -> Iterator[Gap]:
    if leadership.ended is not None:
        return
    since = (leadership.turn, leadership.last_us or 0)
    last = leadership.ranges[-1][1] if leadership.ranges else 0
    lost = [each for each in bad if each.writer == leadership.writer and (each.first or 0) > last]
    if lost:
        first = min(each.first or 0 for each in lost)
        text = f"records from {first:,} on are missing: their files can't be read"
        yield _gap(leadership, GapKind.ORDINALS, since, (leadership.turn, END_OF_TIME_US), text, first)
    if not later:
        if window.until_us is None:
            text = f"the ledger ends at {_shown(leadership.last_us or 0)}; the lane goes on, or was killed"
            yield _gap(leadership, GapKind.GOES_ON, since, (leadership.turn, END_OF_TIME_US), text)
    elif not lost:
        is_told = later[0].tells_again(leadership)
        kind = GapKind.TOLD_AGAIN if is_told else GapKind.NO_END
        text = f"the leader was killed: its decisions after {_shown(leadership.last_us or 0)} are "
        text += "told by the next one, from Redis, without their times" if is_told else "missing"
        yield _gap(leadership, kind, since, (leadership.turn, END_OF_TIME_US), text)


def _gap(
    leadership: RecordedLeadership, kind: GapKind, since: tuple[int, int], until: tuple[int, int], text: str,
    first: int | None = None, last: int | None = None,
) -> Gap:  # fmt: skip
    return Gap(leadership.lane, kind, leadership.writer, first, last, since, until, text)


def _span(since_us: int, until_us: int | None) -> str:
    return f"{_shown(since_us)} to {_shown(until_us) if until_us is not None else 'the end'}"


def _shown(time_us: int) -> str:
    return datetime.fromtimestamp(time_us / 1e6, UTC).isoformat(sep=" ", timespec="milliseconds")[:23]
