"""What the dispatcher takes of memory while very many messages wait: `python -m bench.memory`.

A queue is filled while a dispatcher leads its lane and nobody consumes; then slow consumers come. The peak
is the kernel's (VmHWM) over the process' whole life. In the end every group of a lane is given an owner, to
see what a group costs that has nothing in flight. Exit code 1 when a bound is exceeded.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, NoReturn

import redis
from rich.console import Console
from rich.table import Table

from bench.command import Command
from bench.relay.consumers import ProtocolConsumer
from bench.relay.contenders import CONSUMERS, INBOUND, LANE, Place
from bench.relay.load import Publisher
from bench.relay.meter import Meter
from bench.relay.rounds import Stage
from bench.relay.shapes import Shape
from dispatcher.client import GroupConsumer, Message
from dispatcher.demo.dispatcher_process import DispatcherProcess
from dispatcher.errors import DispatcherError
from dispatcher.redis_store.scripts import LaneKeys
from dispatcher.wire.protocol import LaneNames

PEAK_MB_MAX: Final = 300
GROUP_BYTES_MAX: Final = 400
#: Of fewer the allocator's own room would be counted.
GROUPS_JUDGED_MIN: Final = 100_000
SIZES: Final = "256,4096,65536,1048576"
#: What is never fetched costs us nothing, and RabbitMQ much: of large bodies fewer wait.
FILLED_BYTES_MAX: Final = 2 << 30
FEW_GROUPS: Final = 1_000
#: A slow consumer: so many messages at a time, each for so long.
WORK_S: Final = 0.05
CONCURRENCY: Final = 8
PREFETCH: Final = 50
#: Before groups are counted everything is filled that is bounded: the look-ahead, with a group for each
#: message in it, and 40,000 fingerprints of settled originals. Where the groups are too few to be judged, as
#: many messages as there are groups are enough.
WARM_UP: Final = 60_000
BUCKETS: Final = 1_024
#: With buckets a million ids may take this more, in MB: what the allocator happens to hold.
BUCKETS_MB_MAX: Final = 16
POLL_S: Final = 0.2
STUCK_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Waiting:
    """Peaks of one dispatcher process, in MB (10⁶ bytes)."""

    messages: int
    body_bytes: int
    groups: int
    idle_mb: float  # it leads, and nothing is there
    no_consumers_mb: float
    slow_consumers_mb: float
    settled: int  # by the slow consumers


@dataclass(frozen=True, slots=True)
class Tracked:
    """Bytes for each group that has an owner and nothing in flight; with buckets, MB for all of their ids."""

    groups: int
    dispatcher_bytes: float
    redis_bytes: float
    buckets_mb: float


def memory_bytes(pid: int, field: str) -> int:
    """A field of the process' status: VmRSS, or VmHWM for the peak."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise DispatcherError(f"the system does not say {field}")


class Subject:
    """A dispatcher that leads a lane, and what it says about itself."""

    def __init__(self, place: Place, **options: object) -> None:
        lane = {"policy": "exclusive", "inbound": [{"queue": INBOUND}], **options}
        self.process = DispatcherProcess(
            {
                "rabbitmq": {"url": place.amqp_url}, "redis": {"url": place.redis_url},
                "prefix": place.redis_prefix, "lanes": {LANE: lane},
            }
        )  # fmt: skip

    @contextmanager
    def running(self) -> Iterator[None]:
        try:
            self.process.start()
            yield
        finally:
            self.process.close()

    def mb(self, field: str) -> float:
        return memory_bytes(self.process.pid, field) / 1e6

    async def metric(self, name: str) -> int:
        """A counter or gauge of the process."""
        return int(await asyncio.to_thread(self.process.metric, name))

    async def settled(self) -> int:
        """How many messages were settled so far."""
        return await self.metric("dispatcher_settled_total")

    async def until_settled(self, count: int) -> None:
        """Wait for so many settles. Raises DispatcherError when there are none for a while."""
        seen, since = 0, asyncio.get_running_loop().time()
        while True:
            settled = await self.settled()
            if settled >= count:
                return
            now = asyncio.get_running_loop().time()
            if settled > seen:
                seen, since = settled, now
            elif now > since + STUCK_S:
                raise DispatcherError(f"stuck after {settled} of {count} messages")
            await asyncio.sleep(POLL_S)


async def fill(
    place: Place, messages: int, groups: int, body_bytes: int, group_prefix: bytes = b"group"
) -> None:
    publisher = Publisher(INBOUND, shape=Shape(groups), group_prefix=group_prefix, body_bytes=body_bytes)
    await publisher.open(place.amqp_url)
    await publisher.fill(messages)
    await publisher.close()


async def consume_slowly(place: Place, seconds: float) -> None:
    """Four consumers of the SDK that take their time."""

    async def work(_: Message) -> None:
        await asyncio.sleep(WORK_S)

    async def consume(number: int) -> None:
        consumer = GroupConsumer(place.amqp_url, LANE, f"slow-{number}", PREFETCH, prefix=place.redis_prefix)
        async with consumer:
            await consumer.run(work, concurrency=CONCURRENCY)

    tasks = [asyncio.create_task(consume(number)) for number in range(CONSUMERS)]
    await asyncio.wait(tasks, timeout=seconds)
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, Exception):
            raise outcome


async def waiting(stage: Stage, messages: int, body_bytes: int, groups: int, seconds: float) -> Waiting:
    """Fill a queue under a dispatcher without consumers, then with slow ones."""
    async with stage.place() as place:
        subject = Subject(place)
        with subject.running():
            idle_mb = subject.mb("VmHWM")
            await fill(place, messages, groups, body_bytes)
            no_consumers_mb = subject.mb("VmHWM")
            await consume_slowly(place, seconds)
            row = Waiting(
                messages, body_bytes, groups, idle_mb, no_consumers_mb, subject.mb("VmHWM"),
                await subject.settled(),
            )  # fmt: skip
        return row


async def tracked(stage: Stage, groups: int) -> Tracked:
    """Give every group an owner, and see what that takes here and in Redis; then the same with buckets."""
    grown, owners = await _grown(stage, groups)
    in_buckets, _ = await _grown(stage, groups, group_map={"buckets": BUCKETS})
    return Tracked(groups, grown / groups, owners, in_buckets / 1e6)


async def _grown(stage: Stage, groups: int, **options: object) -> tuple[float, float]:
    """Bytes that the process takes more after a message of each group, and Redis for each owner.

    The groups before them, of the warm-up, are others: both times every message is its group's first.
    """
    warm_up = WARM_UP if groups >= GROUPS_JUDGED_MIN else groups
    async with stage.place() as place:
        subject = Subject(place, **options)
        consumers = [
            ProtocolConsumer(Meter(sys.maxsize), LaneNames(LANE, place.redis_prefix), f"consumer-{number}")
            for number in range(CONSUMERS)
        ]
        with subject.running():
            for consumer in consumers:
                await consumer.open(place.amqp_url)
            await fill(place, warm_up, warm_up, 256, b"early")
            await subject.until_settled(warm_up)
            before_mb = subject.mb("VmRSS")
            await fill(place, groups, groups, 256)
            await subject.until_settled(warm_up + groups)
            grown = (subject.mb("VmRSS") - before_mb) * 1e6
            for consumer in consumers:
                await consumer.close()
        return grown, _owners_bytes(place)


def _owners_bytes(place: Place) -> float:
    """Of each owner that is kept."""
    owners = LaneKeys.of(place.redis_prefix, LANE).owners
    with redis.Redis.from_url(place.redis_url) as client:
        used, kept = client.memory_usage(owners, samples=0), client.hlen(owners)
    return float(used or 0) / max(1, int(kept))


def arguments(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.memory", description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000, help="that wait (1000000)")
    parser.add_argument("--groups", type=int, default=1_000_000, help="of the lanes with many (1000000)")
    parser.add_argument("--sizes", default=SIZES, help=f"of bodies, in bytes ({SIZES})")
    parser.add_argument("--seconds", type=float, default=15, help="with slow consumers (15)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to FILE")
    options = parser.parse_args(given)
    try:
        options.sizes = [int(size) for size in options.sizes.split(",")]
    except ValueError:
        parser.error("--sizes: numbers of bytes with commas between them")
    if min(options.messages, options.groups, *options.sizes) < 1 or options.seconds <= 0:
        parser.error("--messages, --groups and --sizes must be at least 1, --seconds more than 0")
    return options


async def measure(
    stage: Stage, options: argparse.Namespace, console: Console
) -> tuple[list[Waiting], Tracked]:
    rows = []
    for body_bytes in options.sizes:
        messages = min(options.messages, FILLED_BYTES_MAX // body_bytes)
        for groups in dict.fromkeys((FEW_GROUPS, min(options.groups, messages))):
            row = await waiting(stage, messages, body_bytes, groups, options.seconds)
            rows.append(row)
            what = f"{row.messages:,} messages of {body_bytes} B in {groups:,} groups"
            console.print(f"{what}: peak {row.slow_consumers_mb:.0f} MB")
    return rows, await tracked(stage, options.groups)


def report(console: Console, rows: list[Waiting], groups: Tracked) -> None:
    table = Table(caption="peak resident memory of the dispatcher in MB", caption_justify="left")
    for title in ("waiting", "body B", "groups", "idle", "no consumers", "slow consumers", "settled"):
        table.add_column(title, justify="right")
    for row in rows:
        table.add_row(
            f"{row.messages:,}", f"{row.body_bytes:,}", f"{row.groups:,}", f"{row.idle_mb:.0f}",
            f"{row.no_consumers_mb:.0f}", f"{row.slow_consumers_mb:.0f}", f"{row.settled:,}",
        )  # fmt: skip
    console.print(table)
    console.print(
        f"each of {groups.groups:,} tracked groups: {groups.dispatcher_bytes:.0f} bytes in the dispatcher, "
        f"{groups.redis_bytes:.0f} in Redis; in {BUCKETS:,} buckets all of them take "
        f"{groups.buckets_mb:.1f} MB more than before"
    )


def exceeded(rows: list[Waiting], groups: Tracked) -> list[str]:
    """Bounds that do not hold."""
    found = [
        f"{row.slow_consumers_mb:.0f} MB with {row.messages:,} messages of {row.body_bytes} B waiting in "
        f"{row.groups:,} groups: more than {PEAK_MB_MAX}"
        for row in rows
        if row.slow_consumers_mb > PEAK_MB_MAX
    ]
    if groups.groups >= GROUPS_JUDGED_MIN and groups.dispatcher_bytes > GROUP_BYTES_MAX:
        found.append(f"{groups.dispatcher_bytes:.0f} bytes for a tracked group: more than {GROUP_BYTES_MAX}")
    if groups.groups >= GROUPS_JUDGED_MIN and groups.buckets_mb > BUCKETS_MB_MAX:
        found.append(
            f"{groups.buckets_mb:.0f} MB for {groups.groups:,} ids in {BUCKETS:,} buckets: "
            f"more than {BUCKETS_MB_MAX}"
        )
    return found


def main() -> NoReturn:
    options = arguments(sys.argv[1:])
    console, command = Console(), Command("bench.memory")
    logging.getLogger("dispatcher.client").setLevel(logging.ERROR)  # the slow consumers end with work in hand
    rows, groups = command.run(lambda stage: measure(stage, options, console))
    report(console, rows, groups)
    found = {"waiting": [asdict(row) for row in rows], "tracked": asdict(groups)}
    command.end(options.json, found, exceeded(rows, groups))


if __name__ == "__main__":
    main()
