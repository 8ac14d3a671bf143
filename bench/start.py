"""How soon a dispatcher leads a lane with very many groups: `python -m bench.start`.

Every group gets a message and so an owner; then the dispatcher is stopped and killed in turns, and started
again each time, while its consumers stay. Measured is from the start of the process to its answer that it
leads the lane, beside the same with one group; and how long `dispatcher status` takes as a whole process.
Exit code 1 when a bound is exceeded.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Final, NoReturn

from rich.console import Console

from bench.command import Command
from bench.memory import Subject, fill
from bench.relay.consumers import ProtocolConsumer
from bench.relay.contenders import CONSUMERS, LANE, Place
from bench.relay.meter import Meter
from bench.relay.rounds import Stage
from dispatcher.errors import DispatcherError
from dispatcher.wire.protocol import LaneNames

START_S_MAX: Final = 3.0
STATUS_S_MAX: Final = 0.4


@dataclass(frozen=True, slots=True)
class Started:
    """Medians over the rounds, in seconds."""

    groups: int
    start_s: float
    cpu_s: float  # of the process until then
    status_s: float


async def measure(stage: Stage, groups: int, rounds: int) -> Started:
    """Raises DispatcherError."""
    async with stage.place() as place:
        subject = Subject(place)
        with subject.running():
            consumers = await _own_all(place, subject, groups)
            found = [await asyncio.to_thread(_start_again, subject, kill=bool(n % 2)) for n in range(rounds)]
            for consumer in consumers:
                await consumer.close()
    start_s, cpu_s, status_s = (median(column) for column in zip(*found, strict=True))
    return Started(groups, start_s, cpu_s, status_s)


async def _own_all(place: Place, subject: Subject, groups: int) -> list[ProtocolConsumer]:
    """Give every group an owner."""
    names = LaneNames(LANE, place.redis_prefix)
    consumers = [
        ProtocolConsumer(Meter(sys.maxsize), names, f"consumer-{number}") for number in range(CONSUMERS)
    ]
    for consumer in consumers:
        await consumer.open(place.amqp_url)
    await fill(place, groups, groups, 256)
    await subject.until_settled(groups)
    return consumers


def _start_again(subject: Subject, *, kill: bool) -> tuple[float, float, float]:
    process = subject.process
    if kill:
        process.kill9()
    else:
        process.stop()
    began = time.monotonic()
    process.start()
    start_s, cpu_s = time.monotonic() - began, process.cpu_s()
    began = time.monotonic()
    command = [sys.executable, "-m", "dispatcher", "status", "-c", str(process.file)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise DispatcherError(f"{' '.join(command)}: exit code {ended.returncode}: {ended.stderr}")
    return start_s, cpu_s, time.monotonic() - began


def arguments(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.start", description=__doc__)
    parser.add_argument("--groups", type=int, default=1_000_000, help="that have an owner (1000000)")
    parser.add_argument("--rounds", type=int, default=5, help="of which the medians are taken (5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to FILE")
    options = parser.parse_args(given)
    if min(options.groups, options.rounds) < 1:
        parser.error("--groups and --rounds must be at least 1")
    return options


def report(console: Console, row: Started) -> None:
    console.print(
        f"{row.groups:,} groups: leads after {row.start_s:.2f} s ({row.cpu_s:.2f} of CPU), "
        f"status answers in {row.status_s:.2f} s"
    )


def exceeded(row: Started) -> list[str]:
    """Bounds that do not hold."""
    found = []
    if row.start_s > START_S_MAX:
        found.append(f"{row.start_s:.2f} s until it leads {row.groups:,} groups: more than {START_S_MAX:g}")
    if row.status_s > STATUS_S_MAX:
        found.append(f"{row.status_s:.2f} s for `dispatcher status`: more than {STATUS_S_MAX:g}")
    return found


def main() -> NoReturn:
    options = arguments(sys.argv[1:])
    console, command = Console(), Command("bench.start")

    async def both(stage: Stage) -> list[Started]:
        rows = []
        for groups in (1, options.groups):
            rows.append(await measure(stage, groups, options.rounds))
            report(console, rows[-1])
        return rows

    rows = command.run(both)
    command.end(options.json, {"started": [asdict(row) for row in rows]}, exceeded(rows[-1]))


if __name__ == "__main__":
    main()
