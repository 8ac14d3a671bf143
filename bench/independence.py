"""What stuck and slow handlers cost the groups that are neither: `python -m bench.independence`.

A thousand groups, Zipf-distributed, come at a steady rate; eight consumers with a prefetch of 50 handle them,
each group's messages one after the other. Then some handlers hang, or one consumer takes ten times as long.
Measured is the wait from publish to the beginning of the handler, of all messages whose group is not stuck:
with windows and stealing as they are by default, with neither, and for RabbitMQ alone (a consistent-hash
exchange in front of eight queues with a single active consumer each). Exit code 1 when the p99 of the default
lane with ten stuck groups is more than twice that of its undisturbed run, or messages stand still there.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any, Final, NoReturn

import aio_pika
from rich.console import Console
from rich.table import Table

from bench.command import Command
from bench.memory import Subject, empty
from bench.relay.contenders import INBOUND, LANE, Place
from bench.relay.load import NUMBER_BYTES, SENT_AT_BYTES, Publisher
from bench.relay.rounds import Stage
from bench.relay.shapes import ZIPF, Shape
from dispatcher.client import GroupConsumer, Message

CONSUMERS: Final = 8
PREFETCH: Final = 50
GROUPS: Final = 1_000
RATE: Final = 400
WORK_S: Final = 0.005
SLOWER: Final = 10
#: Handlers hang from here on, and the load goes on for so long behind them.
BEFORE_S: Final = 2.0
AFTER_S: Final = 2.0
#: What nobody has begun so long after the end of all hanging stands still.
STILL_S: Final = 5.0
#: Stuck groups in the run that is judged, and how much longer than undisturbed its p99 may be.
JUDGED: Final = 10
P99_RATIO_MAX: Final = 2.0
#: Below this two waits differ by what else the machine does.
P99_JUDGED_MIN_MS: Final = 5.0
HASH_EXCHANGE: Final = "spread"
FIXED: Final = {"group_window": {"initial": 60_000, "max": 60_000}, "steal_after": None}
CONTENDERS: Final = ("adaptive", "fixed", "native")


@dataclass(frozen=True, slots=True)
class Trouble:
    """What goes wrong in a run."""

    stuck: int = 0  # groups, of each of which one handler hangs
    is_slow: bool = False  # one of the consumers

    def __str__(self) -> str:
        if self.is_slow:
            return f"a consumer {SLOWER} times slower"
        return f"{self.stuck} stuck" if self.stuck else "undisturbed"


TROUBLES: Final = (Trouble(), Trouble(1), Trouble(JUDGED), Trouble(100), Trouble(is_slow=True))


@dataclass(frozen=True, slots=True)
class Wait:
    """Of the messages of groups that are not stuck."""

    p50_ms: float
    p99_ms: float
    longest_ms: float
    standing_still: int  # messages that nobody had begun when the handlers had long gone on


class Hands:
    """What consumers do with messages, and how long each of these has waited for it."""

    def __init__(self, trouble: Trouble, hang_s: float) -> None:
        groups = Random(trouble.stuck).sample(range(GROUPS), trouble.stuck)
        self.stuck = {b"group-%03d" % group for group in groups}
        self.waits_ms: list[float] = []
        self._is_slow = trouble.is_slow
        self._to_hang = set(self.stuck)
        self._hang_s = hang_s
        self._hangs_from = 0.0

    def begin(self) -> None:
        """The load begins."""
        self._hangs_from = time.monotonic() + BEFORE_S

    async def work(self, consumer: int, group: bytes | None, body: bytes) -> None:
        """One message."""
        if group not in self.stuck:
            at = slice(NUMBER_BYTES, NUMBER_BYTES + SENT_AT_BYTES)
            self.waits_ms.append((time.monotonic_ns() - int.from_bytes(body[at], "big")) / 1e6)
        elif group in self._to_hang and time.monotonic() >= self._hangs_from:
            self._to_hang.discard(group)
            await asyncio.sleep(self._hang_s)
        slower = SLOWER if self._is_slow and consumer == 0 else 1
        await asyncio.sleep(WORK_S * slower)


# -- contenders --


@asynccontextmanager
async def dispatching(place: Place, hands: Hands, keys: dict[str, Any]) -> AsyncIterator[str]:
    """The dispatcher with these keys of the lane, and consumers of the SDK. Gives the exchange to use."""
    subject = Subject(place, **keys)
    with subject.running():
        consumers = [
            GroupConsumer(place.amqp_url, LANE, f"consumer-{number}", PREFETCH, prefix=place.redis_prefix)
            for number in range(CONSUMERS)
        ]

        async def run(number: int, consumer: GroupConsumer) -> None:
            async def handle(message: Message) -> None:
                await hands.work(number, message.group, message.body)

            await consumer.run(handle, concurrency=PREFETCH, stop_on_signals=False)

        tasks = [asyncio.create_task(run(number, consumer)) for number, consumer in enumerate(consumers)]
        try:
            while await subject.metric("dispatcher_consumers") < CONSUMERS:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.1)
            yield ""
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    await empty(place)


@asynccontextmanager
async def hashing(place: Place, hands: Hands) -> AsyncIterator[str]:
    """RabbitMQ alone, with consumers that handle each group's messages one after the other as well."""
    connection = await aio_pika.connect(place.amqp_url)
    async with connection:
        channel = await connection.channel()
        arguments: dict[str, Any] = {"hash-header": "x-group-id"}
        exchange = await channel.declare_exchange(
            HASH_EXCHANGE, "x-consistent-hash", durable=True, arguments=arguments
        )
        for number in range(CONSUMERS):
            await _consume_hashed(connection, exchange, number, hands)
        yield HASH_EXCHANGE


async def _consume_hashed(connection: Any, exchange: Any, number: int, hands: Hands) -> None:
    channel = await connection.channel()
    await channel.set_qos(PREFETCH)
    queue = await channel.declare_queue(
        f"part-{number}", durable=True, arguments={"x-single-active-consumer": True}
    )
    await queue.bind(exchange, routing_key="1")
    turns: dict[bytes, asyncio.Lock] = {}

    async def handle(message: Any) -> None:
        group = str(message.headers["x-group-id"]).encode()
        async with turns.setdefault(group, asyncio.Lock()):  # first come, first served
            await hands.work(number, group, message.body)
        await message.ack()

    await queue.consume(handle)


# -- runs --


async def measure_one(
    stage: Stage, contender: str, trouble: Trouble, hang_s: float, rate: int = RATE
) -> Wait:
    """One run."""
    async with stage.place() as place:
        hands = Hands(trouble, hang_s)
        keys = FIXED if contender == "fixed" else {}
        running = hashing(place, hands) if contender == "native" else dispatching(place, hands, keys)
        shape = Shape(GROUPS, ZIPF)
        count = round((BEFORE_S + hang_s + AFTER_S) * rate)
        others = sum(b"group-%03d" % group not in hands.stuck for group in shape.group_numbers(count))
        async with running as exchange:
            publisher = Publisher(INBOUND, shape=shape, exchange=exchange)
            await publisher.open(place.amqp_url)
            hands.begin()
            await publisher.send_steadily(count, rate)
            await publisher.close()
            until = time.monotonic() + hang_s + STILL_S
            while len(hands.waits_ms) < others and time.monotonic() < until:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.1)
        cuts = statistics.quantiles(hands.waits_ms, n=100)
        return Wait(cuts[49], cuts[98], max(hands.waits_ms), others - len(hands.waits_ms))


async def measure(stage: Stage, options: argparse.Namespace) -> dict[str, dict[str, Wait]]:
    """The wait by contender and trouble."""
    console, found = Console(), dict[str, dict[str, Wait]]()
    for contender in options.contenders:
        if contender == "native" and not stage.has_consistent_hash:
            console.print("Without native: the broker lacks the plugin rabbitmq_consistent_hash_exchange.")
            continue
        for trouble in TROUBLES:
            wait = await measure_one(stage, contender, trouble, options.hang, options.rate)
            found.setdefault(contender, {})[str(trouble)] = wait
            console.print(
                f"{contender}, {trouble}: p50 {wait.p50_ms:.1f}, p99 {wait.p99_ms:.1f}, "
                f"longest {wait.longest_ms:.0f} ms, {wait.standing_still} stand still", highlight=False,
            )  # fmt: skip
    return found


def report(found: dict[str, dict[str, Wait]]) -> None:
    table = Table(caption="wait of the groups that are not stuck, ms", caption_justify="left")
    for title in ("contender", "trouble", "p50", "p99", "longest", "stand still"):
        table.add_column(title, justify="left" if title in ("contender", "trouble") else "right")
    for contender, waits in found.items():
        for trouble, wait in waits.items():
            table.add_row(
                contender,
                trouble,
                f"{wait.p50_ms:.1f}",
                f"{wait.p99_ms:.1f}",
                f"{wait.longest_ms:.0f}",
                f"{wait.standing_still}",
            )
    Console().print(table)


def exceeded(found: dict[str, dict[str, Wait]]) -> list[str]:
    """The bound on the default lane, where it does not hold."""
    waits = found.get("adaptive")
    if waits is None:
        return []
    p99_ms = waits[str(Trouble(JUDGED))].p99_ms
    allowed_ms = P99_RATIO_MAX * max(waits[str(Trouble())].p99_ms, P99_JUDGED_MIN_MS)
    bounds = [f"p99 {p99_ms:.1f} ms with {JUDGED} stuck groups: more than {allowed_ms:.1f}"]
    still = [f"{each.standing_still} messages stand still: {trouble}" for trouble, each in waits.items()]
    return bounds * (p99_ms > allowed_ms) + [
        text for text, each in zip(still, waits.values(), strict=True) if each.standing_still
    ]


def arguments(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.independence", description=__doc__)
    parser.add_argument("--hang", type=float, default=60, help="how long handlers hang, in seconds (60)")
    parser.add_argument(
        "--contenders", type=lambda text: text.split(","), default=list(CONTENDERS),
        help="some of adaptive,fixed,native",
    )  # fmt: skip
    parser.add_argument("--rate", type=int, default=RATE, help=f"messages/s ({RATE})")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to FILE")
    options = parser.parse_args(given)
    if options.hang <= 0 or options.rate < 1:
        parser.error("--hang must be more than 0, --rate at least 1")
    if unknown := [name for name in options.contenders if name not in CONTENDERS]:
        parser.error(f"unknown: {', '.join(unknown)}; contenders are {', '.join(CONTENDERS)}")
    return options


def main() -> NoReturn:
    options = arguments(sys.argv[1:])
    command = Command("bench.independence")
    found = command.run(lambda stage: measure(stage, options))
    report(found)
    waits = {name: {trouble: asdict(wait) for trouble, wait in each.items()} for name, each in found.items()}
    command.end(options.json, waits, exceeded(found))


if __name__ == "__main__":
    main()
