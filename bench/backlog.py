"""What a skewed backlog costs: `python -m bench.backlog`.

An inbound queue holds many times the look-ahead. A lane with four consumers works it off: once with groups
that have equally many messages, once with as many groups by Zipf, whose first one has an eighth of all
messages. So the look-ahead of the skewed one fills with messages of few groups, and most acks are for
deliveries with unsettled ones before them. Measured are messages a second and the longest pause between two
hand-overs, over all rounds. Handlers may take their time (`--work`); then no dispatcher could be faster with
the skewed backlog than the handlers of its first group, one after the other. Exit code 1 when it is worked
off at less than 80 % of the even one's rate, or of that limit where it is lower, or nothing was handed over
for a second.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import math
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, NoReturn

from rich.console import Console
from rich.table import Table

from bench.blocked import consuming
from bench.command import Command
from bench.memory import Subject
from bench.relay.consumers import SETTLE_S, ProtocolConsumer
from bench.relay.contenders import CONSUMERS, INBOUND, LANE, declare, delete_queues
from bench.relay.load import NUMBER_BYTES, Publisher
from bench.relay.meter import Meter
from bench.relay.rounds import Stage, until_done
from bench.relay.shapes import UNIFORM, ZIPF, Shape
from dispatcher.client.ranges import SeqRanges
from dispatcher.wire.protocol import LaneNames

#: As many as changed files in a real history had.
GROUPS: Final = 2_221
PART_MIN: Final = 0.8
PAUSE_S_MAX: Final = 1.0
KINDS: Final = ("classic", "quorum")


@dataclass(frozen=True, slots=True)
class WorkedOff:
    """A backlog that was handed over and settled."""

    per_second: float
    pause_s: float  # the longest between two hand-overs


class PausesMeter(Meter):
    """Measures the longest time between two arrivals."""

    def __init__(self, expected: int) -> None:
        super().__init__(expected)
        self.pause_s = 0.0
        self._latest_at = 0.0

    def arrived(self, bodies: list[bytes]) -> None:
        now = time.monotonic()
        if self.count:
            self.pause_s = max(self.pause_s, now - self._latest_at)
        self._latest_at = now
        super().arrived(bodies)


class WorkingConsumer(ProtocolConsumer):
    """Handles the messages of a group one after the other, each for so long, and groups in parallel."""

    def __init__(
        self, meter: Meter, names: LaneNames, consumer: str, *, work_s: float, groups: Sequence[int]
    ) -> None:
        self._received: list[bytes] = []  # since the latest settle
        super().__init__(_Copied(meter, self._received), names, consumer)
        self._work_s = work_s
        self._groups = groups  # of each message, by its number
        self._free_at: dict[int, float] = {}  # when the handler of a group's latest message ends
        self._working: list[tuple[float, int]] = []  # when the handlers end, and of which copies; a heap

    def _settle(self) -> None:
        now = time.monotonic()
        copies = [seq for low, high in self._acked for seq in range(low, high + 1)]
        for seq, body in zip(copies, self._received, strict=True):
            group = self._groups[int.from_bytes(body[:NUMBER_BYTES], "big")]
            self._free_at[group] = max(now, self._free_at.get(group, now)) + self._work_s
            heapq.heappush(self._working, (self._free_at[group], seq))
        self._received.clear()
        ended = []
        while self._working and self._working[0][0] <= now:
            ended.append(heapq.heappop(self._working)[1])
        self._acked[:] = SeqRanges.of(ended).pairs()
        super()._settle()
        self._count = len(self._working)
        if self._working:
            self._timer = asyncio.get_running_loop().call_later(SETTLE_S, self._settle)


class _Copied(Meter):
    """Hands what arrives on to another meter, and to a list."""

    def __init__(self, meter: Meter, received: list[bytes]) -> None:
        super().__init__(sys.maxsize)
        self._meter = meter
        self._received = received

    def arrived(self, bodies: list[bytes]) -> None:
        self._received += bodies
        self._meter.arrived(bodies)

    def fail(self, why: str) -> None:
        self._meter.fail(why)


async def worked_off(stage: Stage, spread: str, options: argparse.Namespace) -> WorkedOff:
    """One run. Raises DispatcherError when it gets stuck."""
    shape, messages = Shape(GROUPS, spread), options.messages
    async with stage.place() as place:
        meter, subject = PausesMeter(messages), Subject(place)
        if options.queue != "classic":
            await delete_queues(place.amqp_url, [INBOUND])
            await declare(place.amqp_url, [INBOUND], options.queue)
        publisher = Publisher(INBOUND, shape=shape)
        await publisher.open(place.amqp_url)
        await publisher.fill(messages)
        await publisher.close()
        groups, names = shape.group_numbers(messages), LaneNames(LANE, place.redis_prefix)
        consumers: list[ProtocolConsumer] = [
            WorkingConsumer(meter, names, f"consumer-{number}", work_s=options.work, groups=groups)
            for number in range(CONSUMERS)
        ]
        with subject.running():
            async with consuming(place, consumers):
                await until_done(meter)
        return WorkedOff(meter.rate, meter.pause_s)


async def measure(stage: Stage, options: argparse.Namespace) -> dict[str, list[WorkedOff]]:
    """All rounds, by how the groups share the messages."""
    found: dict[str, list[WorkedOff]] = {UNIFORM: [], ZIPF: []}
    for number in range(options.rounds):
        for spread in (UNIFORM, ZIPF) if number % 2 else (ZIPF, UNIFORM):
            found[spread].append(await worked_off(stage, spread, options))
    return found


def medians(rounds: dict[str, list[WorkedOff]]) -> dict[str, WorkedOff]:
    """Of the rates; of the pauses the longest."""
    return {
        spread: WorkedOff(
            statistics.median(each.per_second for each in runs), max(each.pause_s for each in runs)
        )
        for spread, runs in rounds.items()
    }


def limit(spread: str, options: argparse.Namespace) -> float:
    """Messages a second at which the handlers of the largest group, one after the other, keep up."""
    numbers = Shape(GROUPS, spread).group_numbers(options.messages)
    longest_s = max(Counter(numbers).values()) * options.work
    return options.messages / longest_s if longest_s else math.inf


def part(found: dict[str, WorkedOff], limit: float) -> float:
    """The rate with the skewed backlog, as a part of what could be expected."""
    return found[ZIPF].per_second / min(found[UNIFORM].per_second, limit)


def report(console: Console, found: dict[str, WorkedOff], limit: float) -> None:
    table = Table(caption=f"a backlog of {GROUPS:,} groups, worked off", caption_justify="left")
    for title in ("groups", "messages/s", "longest pause s"):
        table.add_column(title, justify="left" if title == "groups" else "right")
    for spread, each in found.items():
        table.add_row(spread, f"{each.per_second:,.0f}", f"{each.pause_s:.2f}")
    console.print(table)
    of = "the limit of its largest group" if limit < found[UNIFORM].per_second else "the even one"
    console.print(f"the skewed one: {part(found, limit):.2f} of {of}", highlight=False)


def exceeded(found: dict[str, WorkedOff], limit: float) -> list[str]:
    """Bounds that do not hold."""
    problems = []
    if part(found, limit) < PART_MIN:
        problems.append(f"the skewed backlog: {part(found, limit):.2f} of what it could, not {PART_MIN}")
    problems += [
        f"{spread}: nothing was handed over for {each.pause_s:.1f} s"
        for spread, each in found.items()
        if each.pause_s > PAUSE_S_MAX
    ]
    return problems


def arguments(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.backlog", description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000, help="in the queue (100000)")
    parser.add_argument("--rounds", type=int, default=3, help="of each (3)")
    parser.add_argument("--work", type=float, default=0.0, help="how long a handler takes, in seconds (0)")
    parser.add_argument("--queue", choices=KINDS, default="classic", help="type of the inbound queue")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to FILE")
    options = parser.parse_args(given)
    if options.messages < 2 or options.rounds < 1 or options.work < 0:
        parser.error("--messages must be at least 2, --rounds at least 1, --work not negative")
    return options


def main() -> NoReturn:
    options = arguments(sys.argv[1:])
    command = Command("bench.backlog")
    rounds = command.run(lambda stage: measure(stage, options))
    found = medians(rounds)
    at_most = limit(ZIPF, options)
    report(Console(), found, at_most)
    document = {spread: [asdict(each) for each in runs] for spread, runs in rounds.items()}
    command.end(options.json, document, exceeded(found, at_most))


if __name__ == "__main__":
    main()
