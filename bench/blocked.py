"""What a blocked group costs the others: `python -m bench.blocked`.

One group's consumer is stuck with its first message, and a backlog of that group fills the inbound queue.
A thousand other groups come behind it at a steady rate. Their wait, from publish to arrival, is compared
with that of a run without the backlog. Exit code 1 when the p99 is more than twice as long, or the
dispatcher's memory over its bound.
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
from typing import Final, NoReturn

from rich.console import Console
from rich.table import Table

from bench.command import Command
from bench.memory import PEAK_MB_MAX, Subject
from bench.relay.consumers import PREFETCH, ProtocolConsumer
from bench.relay.contenders import CONSUMERS, INBOUND, LANE, Place
from bench.relay.load import Publisher
from bench.relay.meter import Meter
from bench.relay.rounds import Stage
from bench.relay.shapes import Shape
from dispatcher.errors import DispatcherError
from dispatcher.settings import LaneDefaults
from dispatcher.wire.protocol import LaneNames

P99_RATIO_MAX: Final = 2.0
#: Below this two waits differ by what else the machine does.
P99_JUDGED_MIN_MS: Final = 5.0
#: What a consumer has of a group of which it has settled nothing.
STUCK_MESSAGES: Final = LaneDefaults().group_window.initial
POLL_S: Final = 0.2
#: Fewer messages have no p99.
RATE_MIN: Final = 100
STUCK_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Wait:
    """The other groups' messages, from publish to arrival."""

    p50_ms: float
    p99_ms: float
    second_p99_ms: float  # of the messages of a second: the median of all seconds
    longest_ms: float
    peak_mb: float  # of the dispatcher, over its whole life


@dataclass(frozen=True, slots=True)
class Measured:
    backlog: int
    stuck: int  # messages that the stuck consumer has
    without: Wait
    behind: Wait
    parked_s: float  # from when the consumers begin to join until all of the backlog was parked …
    acked_s: float  # … and its originals were acked


class _OthersMeter(Meter):
    """Counts at another meter what arrives behind the blocked group's messages, which are `stuck`."""

    def __init__(self, others: Meter, stuck: int) -> None:
        super().__init__(sys.maxsize)
        self._others = others
        self._stuck = stuck

    def arrived(self, bodies: list[bytes]) -> None:
        blocked = max(0, self._stuck - self.count)
        self.count += len(bodies)
        if bodies[blocked:]:
            self._others.arrived(bodies[blocked:])


class StuckConsumer(ProtocolConsumer):
    """Never settles what it gets first: `stuck` messages of the blocked group. Others it does."""

    def __init__(self, others: Meter, names: LaneNames, stuck: int) -> None:
        super().__init__(_OthersMeter(others, stuck), names, "stuck")
        self._stuck = stuck
        self._blocked_up_to: int | None = None

    def _settle(self) -> None:
        if self._blocked_up_to is None and self._acked:
            self._blocked_up_to = self._acked[0][0] + self._stuck - 1
        first = (self._blocked_up_to or 0) + 1
        self._acked[:] = [(max(low, first), high) for low, high in self._acked if high >= first]
        super()._settle()


@asynccontextmanager
async def consuming(place: Place, consumers: list[ProtocolConsumer]) -> AsyncIterator[None]:
    for consumer in consumers:
        await consumer.open(place.amqp_url)
    try:
        yield
    finally:
        for consumer in consumers:
            await consumer.close()


async def waits(
    stage: Stage, backlog: int, stuck: int, messages: int, per_second: int
) -> tuple[Wait, float, float]:
    """One run. Returns also how long it took to park the backlog, and until it was acked. Raises
    DispatcherError."""
    async with stage.place() as place:
        subject = Subject(place, group_window={"initial": stuck})
        names = LaneNames(LANE, place.redis_prefix)
        meter = Meter(messages, latencies=True)
        others = [ProtocolConsumer(meter, names, f"consumer-{number}") for number in range(CONSUMERS)]
        with subject.running():
            await _fill(place, backlog)
            begun = time.monotonic()
            async with consuming(place, [StuckConsumer(meter, names, stuck)] if backlog else []):
                # The others find the group with an owner.
                await _until(subject, "dispatcher_messages_in_flight", stuck if backlog else 0)
                async with consuming(place, others):
                    await _until(subject, "dispatcher_messages_parked", backlog - stuck)
                    parked_s = time.monotonic() - begun
                    if backlog:
                        await _until_acked(place, stuck)
                    acked_s = time.monotonic() - begun
                    await _until(subject, "dispatcher_consumers", CONSUMERS + (1 if backlog else 0))
                    await _send(place, meter, messages, per_second)
                    wait = _wait(meter, subject, per_second)
        return wait, parked_s, acked_s


async def _fill(place: Place, backlog: int) -> None:
    publisher = Publisher(INBOUND, shape=Shape(groups=1), group_prefix=b"blocked")
    await publisher.open(place.amqp_url)
    await publisher.fill(backlog)
    await publisher.close()


async def _until(subject: Subject, metric: str, count: int) -> None:
    """Wait until it is that many. Raises DispatcherError when it does not rise for a while."""
    seen, since = 0, time.monotonic()
    while seen < count:
        await asyncio.sleep(POLL_S)
        now = await subject.metric(metric)
        if now > seen:
            seen, since = now, time.monotonic()
        elif time.monotonic() > since + STUCK_S:
            raise DispatcherError(f"{metric} was {seen}, and never {count}")


async def _until_acked(place: Place, stuck: int) -> None:
    """Wait until nothing is left of the backlog in its inbound queue but what the stuck consumer has. Raises
    DispatcherError when it does not fall for a while."""
    path, seen, since = f"queues/{place.vhost}/{INBOUND}", None, time.monotonic()
    while (left := (await asyncio.to_thread(place.api.request, path)).get("messages")) != stuck:
        if left != seen:
            seen, since = left, time.monotonic()
        elif time.monotonic() > since + STUCK_S:
            raise DispatcherError(f"{left} messages are in {INBOUND}, and never {stuck}")
        await asyncio.sleep(POLL_S)


async def _send(place: Place, meter: Meter, messages: int, per_second: int) -> None:
    publisher = Publisher(INBOUND)
    await publisher.open(place.amqp_url)
    await publisher.send_steadily(messages, per_second)
    try:
        await asyncio.wait_for(meter.done.wait(), STUCK_S)
    except TimeoutError:
        raise DispatcherError(f"stuck after {meter.count} of {messages} messages") from None
    finally:
        await publisher.close()
    if meter.failure is not None:
        raise DispatcherError(meter.failure)


def _wait(meter: Meter, subject: Subject, per_second: int) -> Wait:
    assert meter.latencies_ms is not None
    latencies_ms = [latency for _, latency in sorted(meter.latencies_ms.items())]  # as they were sent
    begins = range(0, len(latencies_ms) - per_second + 1, per_second)
    seconds = [latencies_ms[begin : begin + per_second] for begin in begins] or [latencies_ms]
    second_p99_ms = statistics.median(map(_p99, seconds))
    return Wait(
        statistics.median(latencies_ms), _p99(latencies_ms), second_p99_ms, max(latencies_ms),
        subject.mb("VmHWM"),
    )  # fmt: skip


def _p99(latencies_ms: list[float]) -> float:
    return statistics.quantiles(latencies_ms, n=100)[98]


async def measure(stage: Stage, options: argparse.Namespace) -> Measured:
    count = round(options.seconds * options.rate)
    without, _, _ = await waits(stage, 0, options.stuck, count, options.rate)
    behind = await waits(stage, options.messages, options.stuck, count, options.rate)
    return Measured(options.messages, options.stuck, without, *behind)


def report(console: Console, measured: Measured) -> None:
    table = Table(caption="wait of 1,000 other groups' messages", caption_justify="left")
    for title in ("blocked messages", "p50 ms", "p99 ms", "a second's p99 ms", "longest ms", "peak MB"):
        table.add_column(title, justify="right")
    for backlog, wait in ((0, measured.without), (measured.backlog, measured.behind)):
        table.add_row(
            f"{backlog:,}", f"{wait.p50_ms:.2f}", f"{wait.p99_ms:.2f}", f"{wait.second_p99_ms:.2f}",
            f"{wait.longest_ms:.1f}", f"{wait.peak_mb:.0f}",
        )  # fmt: skip
    console.print(table)
    rate = (measured.backlog - measured.stuck) / measured.parked_s
    console.print(f"the backlog was parked in {measured.parked_s:.1f} s, {rate:,.0f} messages/s")
    console.print(f"its originals were acked after {measured.acked_s:.1f} s")


def exceeded(measured: Measured) -> list[str]:
    """Bounds that do not hold."""
    found = []
    allowed_ms = P99_RATIO_MAX * max(measured.without.p99_ms, P99_JUDGED_MIN_MS)
    if measured.behind.p99_ms > allowed_ms:
        found.append(
            f"p99 {measured.behind.p99_ms:.1f} ms behind a blocked group: more than {allowed_ms:.1f}"
        )
    if measured.behind.peak_mb > PEAK_MB_MAX:
        found.append(f"{measured.behind.peak_mb:.0f} MB: more than {PEAK_MB_MAX}")
    return found


def arguments(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.blocked", description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000, help="of the blocked group (1000000)")
    parser.add_argument(
        "--stuck", type=int, default=STUCK_MESSAGES, metavar="N",
        help=f"messages that the stuck consumer has, 1 to {PREFETCH} ({STUCK_MESSAGES}, as by default)",
    )  # fmt: skip
    parser.add_argument("--rate", type=int, default=1_000, help="of the others' messages a second (1000)")
    parser.add_argument("--seconds", type=float, default=20, help="with the others (20)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to FILE")
    options = parser.parse_args(given)
    if not 1 <= options.stuck <= PREFETCH:
        parser.error(f"--stuck is 1 to {PREFETCH}, the consumer's prefetch")
    if options.messages <= options.stuck:
        parser.error(f"--messages must be more than {options.stuck}")
    if options.rate < RATE_MIN or options.seconds * options.rate < RATE_MIN:
        parser.error(f"--rate must be at least {RATE_MIN}, and --seconds long enough for as many messages")
    return options


def main() -> NoReturn:
    options = arguments(sys.argv[1:])
    command = Command("bench.blocked")
    measured = command.run(lambda stage: measure(stage, options))
    report(Console(), measured)
    command.end(options.json, asdict(measured), exceeded(measured))


if __name__ == "__main__":
    main()
