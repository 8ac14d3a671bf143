"""What a stream knows after a batch, apart from hand-overs: files, leaderships, clocks.

All of it is small: writers with ranges of ordinals, not files; a few facts of each.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from dispatcher.ledger.schema import Event
from dispatcher.pipeline.gaps import Gap, MissingTimes, Window, find_gaps, missing_ordinals
from dispatcher.pipeline.leaderships import Fact, RecordedLeadership, extents, leaderships
from dispatcher.pipeline.ledger_files import BadFile, Found, LedgerFile

#: The last leaderships of each lane: what a gap is, and who came after whom.
_WRITERS_PER_LANE: Final = 100
_BAD_MAX: Final = 10_000
#: Incarnations that may settle once more for a later leader: those of the last weeks, at a life a minute.
_ENDED_MAX: Final = 100_000
#: Facts that say more than the last of their kind.
_LASTING: Final = (Event.LANE_STARTED, Event.LANE_ENDED, Event.TOLD_AGAIN)


class Span(NamedTuple):
    """Records of a writer that follow each other, and the times in them, in µs."""

    first: int
    last: int
    first_us: int
    last_us: int
    first_end_us: int | None  # of the first that is not the beginning of something
    epoch_max: int | None


@dataclass
class Writer:
    """One leadership of a lane, as far as it has been read."""

    lane: str
    name: str
    lane_epoch: int
    spans: list[Span] = field(default_factory=list)  # in order, never touching
    facts: list[Fact] = field(default_factory=list)

    def covers(self, ordinal: int) -> bool:
        return any(span.first <= ordinal <= span.last for span in self.spans)

    def missing_of(self, first: int, last: int) -> list[tuple[int, int]]:
        """The parts of a range that have not been read."""
        found, at = [], first
        for span in self.spans:
            if span.last < at or span.first > last:
                continue
            if span.first > at:
                found.append((at, span.first - 1))
            at = max(at, span.last + 1)
        return [*found, (at, last)] if at <= last else found

    def add(self, span: Span) -> None:
        """Records that were read, and are not among those that were before."""
        made: list[Span] = []
        for each in sorted([*self.spans, span]):
            if made and each.first == made[-1].last + 1:
                former = made.pop()
                ends = [us for us in (former.first_end_us, each.first_end_us) if us is not None]
                made.append(Span(
                    former.first, each.last, min(former.first_us, each.first_us),
                    max(former.last_us, each.last_us), min(ends, default=None),
                    max(former.epoch_max or 0, each.epoch_max or 0),
                ))  # fmt: skip
            else:
                made.append(each)
        self.spans = made


WriterKey = tuple[str, str]


@dataclass
class StreamState:
    """Of the whole ledger."""

    writers: dict[WriterKey, Writer] = field(default_factory=dict)  # by lane and name
    bad: list[BadFile] = field(default_factory=list)
    clocks: dict[str, int] = field(default_factory=dict)  # by lane: the latest time told, in µs
    gaps_raised: set[tuple[Any, ...]] = field(default_factory=set)
    #: By lane and incarnation: up to which number the ends of its hand-overs were told.
    ended: dict[WriterKey, int] = field(default_factory=dict)

    def writer(self, file: LedgerFile) -> Writer:
        key = file.lane, file.writer
        if key not in self.writers:
            self.writers[key] = Writer(file.lane, file.writer, file.lane_epoch)
        return self.writers[key]

    def found(self) -> Found:
        """As if the ledger had one file for each range that was read."""
        files = [
            LedgerFile(
                "", each.lane, each.lane, each.name, each.lane_epoch, span.first, span.last, span.first_us,
                span.last_us, span.epoch_max or 0,
            )
            for each in self.writers.values() for span in each.spans
        ]  # fmt: skip
        return Found("", files, self.bad, [])

    def leaderships(self) -> list[RecordedLeadership]:
        """All that are known, by lane and turn."""
        facts = [fact for each in self.writers.values() for fact in each.facts]
        found = self.found()
        return leaderships(found, facts, extents(found))

    def gaps(self, known: list[RecordedLeadership]) -> list[Gap]:
        """All gaps and boundaries."""
        times: MissingTimes = {}
        for leadership in known:
            writer = self.writers.get((leadership.lane, leadership.writer))
            for first, _ in missing_ordinals(leadership):
                spans = writer.spans if writer else []
                until = (span.first_end_us for span in spans if span.first > first)
                times[leadership.lane, leadership.writer, first] = (
                    max((span.last_us for span in spans if span.last < first), default=None),
                    min((us for us in until if us is not None), default=None),
                )
        return find_gaps(known, self.bad, times, Window())

    def told_end(self, lane: str, incarnation: str, seq: int) -> None:
        """The end of that incarnation's hand-over was told; all before it were, or are kept."""
        highest = max(self.ended.pop((lane, incarnation), 0), seq)
        self.ended[lane, incarnation] = highest  # the latest ones come last

    def forget(self, forget_us: int) -> None:
        """Forget useless entries: leaderships long gone, facts that are older than hand-overs that count."""
        by_lane: dict[str, list[Writer]] = defaultdict(list)
        for writer in self.writers.values():
            by_lane[writer.lane].append(writer)
            horizon_us = self.clocks.get(writer.lane, 0) - forget_us
            writer.facts = [
                each for each in writer.facts if each.event in _LASTING or each.time_us >= horizon_us
            ]
        for writers in by_lane.values():
            for old in sorted(writers, key=lambda each: (each.lane_epoch, each.name))[:-_WRITERS_PER_LANE]:
                del self.writers[old.lane, old.name]
        del self.bad[:-_BAD_MAX]
        for key in list(self.ended)[:-_ENDED_MAX]:
            del self.ended[key]

    # -- as a file --

    def write(self, path: Path) -> None:
        value = {
            "writers": [
                [each.lane, each.name, each.lane_epoch, each.spans, each.facts]
                for each in self.writers.values()
            ],
            "bad": self.bad,
            "clocks": self.clocks,
            "gaps_raised": sorted(self.gaps_raised, key=str),
            "ended": [[*key, seq] for key, seq in self.ended.items()],
        }
        path.write_text(json.dumps(value))

    @classmethod
    def read(cls, path: Path) -> StreamState:
        value = json.loads(path.read_text())
        writers = [
            Writer(lane, name, epoch, [Span(*each) for each in spans], [Fact(*each) for each in facts])
            for lane, name, epoch, spans, facts in value["writers"]
        ]
        return cls(
            {(each.lane, each.name): each for each in writers},
            [BadFile(*each) for each in value["bad"]],
            value["clocks"],
            {tuple(each) for each in value["gaps_raised"]},
            {(lane, incarnation): seq for lane, incarnation, seq in value["ended"]},
        )


def add_facts(state: StreamState, facts: Iterable[Fact]) -> None:
    for fact in facts:
        state.writers[fact.lane, fact.writer].facts.append(fact)
