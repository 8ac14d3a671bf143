"""What stuck and slow handlers cost the groups that are neither: `python -m bench.independence`.

A thousand groups, Zipf-distributed, come at a steady rate; eight consumers with a prefetch of 50 handle them,
each group's messages one after the other. Then some handlers hang, those of the largest groups but one, or
one consumer takes ten times as long. In a run of another shape three consumers with handlers of 50 ms get 40
groups, of which one has half of the messages. Measured is the wait from publish to the beginning of the
handler, of all messages whose group is not stuck, nor has half of the messages: with windows and stealing as
they are by default, with neither, and for RabbitMQ alone (a consistent-hash exchange in front of as many
queues with a single active consumer each). The messages that are sent when the handlers have gone on, and the
stuck groups' backlogs are handled beside them, count apart. Exit code 1 when the p99 of the default lane with
ten stuck groups is more than twice that of its undisturbed run, or messages stand still there.
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
from typing import Any, Final, NoReturn

import aio_pika
from rich.console import Console
from rich.table import Table

from bench.command import Command
from bench.memory import Subject
from bench.relay.contenders import INBOUND, LANE, Place
from bench.relay.load import NUMBER_BYTES, SENT_AT_BYTES, Publisher
from bench.relay.rounds import Stage
from bench.relay.shapes import HALF, ZIPF, Shape
from dispatcher.client import GroupConsumer, Message

PREFETCH: Final = 50
RATE: Final = 400
SLOWER: Final = 10
#: Handlers hang from here on, and the load goes on for so long behind them.
BEFORE_S: Final = 2.0
AFTER_S: Final = 2.0
#: When all hanging is over and nothing has begun for so long, what is left stands still.
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
class Load:
    """What comes, and who handles it."""

    shape: Shape
    consumers: int
    work_s: float
    part: float = 1.0  # of the rate of messages


ZIPF_LOAD: Final = Load(Shape(1_000, ZIPF), consumers=8, work_s=0.005)
#: One of the consumers can handle 20 messages/s of the large group, and gets more.
HALF_LOAD: Final = Load(Shape(40, HALF), consumers=3, work_s=0.05, part=0.15)


@dataclass(frozen=True, slots=True)
class Trouble:
    """What goes wrong in a run."""

    stuck: int = 0  # groups, of each of which one handler hangs: the largest ones but the first
    is_slow: bool = False  # one of the consumers
    load: Load = ZIPF_LOAD

    def __str__(self) -> str:
        if self.load is HALF_LOAD:
            return "a group has half"
        if self.is_slow:
            return f"a consumer {SLOWER} times slower"
        return f"{self.stuck} stuck" if self.stuck else "undisturbed"


TROUBLES: Final = (
    Trouble(), Trouble(1), Trouble(JUDGED), Trouble(100), Trouble(is_slow=True), Trouble(load=HALF_LOAD),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Wait:
    """Of the messages of groups that are neither stuck nor large, sent while handlers hang, or before."""

    p50_ms: float
    p95_ms: float
    p99_ms: float
    longest_ms: float
    standing_still: int  # messages that nobody had begun when the handlers had long gone on
    later_p99_ms: float  # of those that were sent later: the stuck groups' backlogs are handled meanwhile


class Hands:
    """What consumers do with messages, and how long each of these has waited for it."""

    def __init__(self, trouble: Trouble, hang_s: float) -> None:
        self.stuck = {b"group-%03d" % group for group in range(1, 1 + trouble.stuck)}
        self.not_measured = self.stuck | ({b"group-000"} if trouble.load is HALF_LOAD else set())
        self.waits_ms: list[float] = []
        self.later_waits_ms: list[float] = []  # of messages that were sent when the handlers had gone on
        self._load, self._is_slow = trouble.load, trouble.is_slow
        self._to_hang = set(self.stuck)
        self._hang_s = hang_s
        self._hangs_from = 0.0

    def begin(self) -> None:
        """The load begins."""
        self._hangs_from = time.monotonic() + BEFORE_S

    @property
    def begun(self) -> int:
        """How many messages that are measured were begun."""
        return len(self.waits_ms) + len(self.later_waits_ms)

    async def work(self, consumer: int, group: bytes | None, body: bytes) -> None:
        """One message."""
        if group not in self.not_measured:
            sent_at_ns = int.from_bytes(body[NUMBER_BYTES : NUMBER_BYTES + SENT_AT_BYTES], "big")
            is_later = sent_at_ns / 1e9 >= self._hangs_from + self._hang_s
            waits_ms = self.later_waits_ms if is_later else self.waits_ms
            waits_ms.append((time.monotonic_ns() - sent_at_ns) / 1e6)
        elif group in self._to_hang and time.monotonic() >= self._hangs_from:
            self._to_hang.discard(group)
            await asyncio.sleep(self._hang_s)
        slower = SLOWER if self._is_slow and consumer == 0 else 1
        await asyncio.sleep(self._load.work_s * slower)


# -- contenders --


@asynccontextmanager
async def dispatching(place: Place, hands: Hands, count: int, keys: dict[str, Any]) -> AsyncIterator[str]:
    """The dispatcher with these keys of the lane, and consumers of the SDK. Gives the exchange to use."""
    subject = Subject(place, **keys)
    with subject.running():
        consumers = [
            GroupConsumer(place.amqp_url, LANE, f"consumer-{number}", PREFETCH, prefix=place.redis_prefix)
            for number in range(count)
        ]

        async def run(number: int, consumer: GroupConsumer) -> None:
            async def handle(message: Message) -> None:
                await hands.work(number, message.group, message.body)

            await consumer.run(handle, concurrency=PREFETCH, stop_on_signals=False)

        tasks = [asyncio.create_task(run(number, consumer)) for number, consumer in enumerate(consumers)]
        try:
            while await subject.metric("dispatcher_consumers") < count:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.1)
            yield ""
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def hashing(place: Place, hands: Hands, count: int) -> AsyncIterator[str]:
    """RabbitMQ alone, with consumers that handle each group's messages one after the other as well."""
    connection = await aio_pika.connect(place.amqp_url)
    async with connection:
        channel = await connection.channel()
        arguments: dict[str, Any] = {"hash-header": "x-group-id"}
        exchange = await channel.declare_exchange(
            HASH_EXCHANGE, "x-consistent-hash", durable=True, arguments=arguments
        )
        for number in range(count):
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
        keys, load = FIXED if contender == "fixed" else {}, trouble.load
        if contender == "native":
            running = hashing(place, hands, load.consumers)
        else:
            running = dispatching(place, hands, load.consumers, keys)
        rate = max(1, round(rate * load.part))
        count = round((BEFORE_S + hang_s + AFTER_S) * rate)
        numbers = load.shape.group_numbers(count)
        others = sum(b"group-%03d" % group not in hands.not_measured for group in numbers)
        async with running as exchange:
            publisher = Publisher(INBOUND, shape=load.shape, exchange=exchange)
            await publisher.open(place.amqp_url)
            hands.begin()
            await publisher.send_steadily(count, rate)
            await publisher.close()
            begun, until = hands.begun, time.monotonic() + hang_s + STILL_S
            while hands.begun < others and time.monotonic() < until:
                await asyncio.sleep(0.1)
                if hands.begun > begun:  # a busy machine takes its time
                    begun, until = hands.begun, max(until, time.monotonic() + STILL_S)
        cuts = statistics.quantiles(hands.waits_ms, n=100)
        later = hands.later_waits_ms  # at a low rate one message, or none of them was begun
        later_p99_ms = statistics.quantiles(later, n=100)[98] if len(later) > 1 else max(later, default=0.0)
        return Wait(cuts[49], cuts[94], cuts[98], max(hands.waits_ms), others - hands.begun, later_p99_ms)


async def measure(stage: Stage, options: argparse.Namespace) -> dict[str, dict[str, Wait]]:
    """The wait by contender and trouble: of several rounds the median of each number."""
    console, found = Console(), dict[str, dict[str, Wait]]()
    for contender in options.contenders:
        if contender == "native" and not stage.has_consistent_hash:
            console.print("Without native: the broker lacks the plugin rabbitmq_consistent_hash_exchange.")
            continue
        waits = dict[str, list[Wait]]()
        for _ in range(options.rounds):
            for trouble in options.troubles:
                wait = await measure_one(stage, contender, trouble, options.hang, options.rate)
                waits.setdefault(str(trouble), []).append(wait)
                console.print(
                    f"{contender}, {trouble}: p50 {wait.p50_ms:.1f}, p95 {wait.p95_ms:.1f}, "
                    f"p99 {wait.p99_ms:.1f}, longest {wait.longest_ms:.0f} ms, "
                    f"{wait.standing_still} stand still; later p99 {wait.later_p99_ms:.1f}",
                    highlight=False,
                )  # fmt: skip
        found[contender] = {trouble: typical(rounds) for trouble, rounds in waits.items()}
    return found


def typical(rounds: list[Wait]) -> Wait:
    """The median of each number; what stands still in any round does."""
    medians = {
        name: statistics.median(getattr(wait, name) for wait in rounds)
        for name in ("p50_ms", "p95_ms", "p99_ms", "longest_ms", "later_p99_ms")
    }
    return Wait(**medians, standing_still=max(wait.standing_still for wait in rounds))


def report(found: dict[str, dict[str, Wait]]) -> None:
    table = Table(caption="wait of the groups that are neither stuck nor large, ms", caption_justify="left")
    for title in ("contender", "trouble", "p50", "p95", "p99", "longest", "stand still", "later p99"):
        table.add_column(title, justify="left" if title in ("contender", "trouble") else "right")
    for contender, waits in found.items():
        for trouble, wait in waits.items():
            table.add_row(
                contender,
                trouble,
                f"{wait.p50_ms:.1f}",
                f"{wait.p95_ms:.1f}",
                f"{wait.p99_ms:.1f}",
                f"{wait.longest_ms:.0f}",
                f"{wait.standing_still}",
                f"{wait.later_p99_ms:.1f}",
            )
    Console().print(table)


def exceeded(found: dict[str, dict[str, Wait]]) -> list[str]:
    """The bound on the default lane, where it does not hold."""
    waits = found.get("adaptive")
    if waits is None:
        return []
    stuck, undisturbed = waits.get(str(Trouble(JUDGED))), waits.get(str(Trouble()))
    problems = []
    if stuck is not None and undisturbed is not None:
        allowed_ms = P99_RATIO_MAX * max(undisturbed.p99_ms, P99_JUDGED_MIN_MS)
        if stuck.p99_ms > allowed_ms:
            problems.append(
                f"p99 {stuck.p99_ms:.1f} ms with {JUDGED} stuck groups: more than {allowed_ms:.1f}"
            )
    problems += [
        f"{each.standing_still} messages stand still: {trouble}"
        for trouble, each in waits.items() if each.standing_still
    ]  # fmt: skip
    return problems


def troubles(text: str) -> list[Trouble]:
    """Those with these numbers, from 1. Raises ArgumentTypeError for a number that none has."""
    known = {str(number): trouble for number, trouble in enumerate(TROUBLES, 1)}
    numbers = text.split(",")
    if unknown := [number for number in numbers if number not in known]:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; numbers are 1 to {len(known)}")
    return [known[number] for number in numbers]


def arguments(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.independence", description=__doc__)
    parser.add_argument("--hang", type=float, default=60, help="how long handlers hang, in seconds (60)")
    parser.add_argument(
        "--contenders", type=lambda text: text.split(","), default=list(CONTENDERS),
        help="some of adaptive,fixed,native",
    )  # fmt: skip
    parser.add_argument("--rate", type=int, default=RATE, help=f"messages/s ({RATE})")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each row, of which medians count (1)")
    parser.add_argument(
        "--troubles", type=troubles, default=list(TROUBLES), metavar="N,N,…",
        help=f"only these of {', '.join(f'{n} {each}' for n, each in enumerate(TROUBLES, 1))}",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to FILE")
    options = parser.parse_args(given)
    if options.hang <= 0 or options.rate < 1 or options.rounds < 1:
        parser.error("--hang must be more than 0, --rate and --rounds at least 1")
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
