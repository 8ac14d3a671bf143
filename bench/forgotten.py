"""Whether a map that forgets groups loses their order: `python -m bench.forgotten`.

Many more groups than the map keeps, in turn, and one of the consumers is slow. A message is out of order
when it is begun before the one before it, of its group, has been done, by whichever consumer. Exit code 1
when one is, or when the map has forgotten nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, NoReturn

from rich.console import Console

from bench.command import Command
from bench.memory import Subject
from bench.relay.contenders import CONSUMERS, INBOUND, LANE, Place
from bench.relay.load import NUMBER_BYTES, Publisher
from bench.relay.rounds import Stage
from bench.relay.shapes import Shape
from dispatcher.client import GroupConsumer, Message
from dispatcher.errors import DispatcherError

PREFETCH: Final = 200
CONCURRENCY: Final = 50
#: The slow consumer takes so long for a message, and has as many in hand as the others.
SLOW_S: Final = 0.3
STUCK_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Measured:
    groups: int
    kept: int  # groups that the map keeps
    messages: int
    slow: int  # messages that the slow consumer had
    moved: int  # messages that another consumer had than the one before it of its group
    disordered: int
    forgotten: int  # groups


class Handled:
    """What all consumers have begun and done."""

    def __init__(self, groups: int, messages: int) -> None:
        self._groups = groups
        self._messages = messages
        self._by = [-1] * messages  # the consumer that has begun it
        self._done = [False] * messages
        self._left = messages
        self.moved = self.disordered = 0
        self.all_done = asyncio.Event()

    async def handle(self, consumer: int, message: Message) -> None:
        number = int.from_bytes(message.body[:NUMBER_BYTES], "big")
        before = number - self._groups
        self._by[number] = consumer
        if before >= 0:
            self.disordered += not self._done[before]
            self.moved += self._by[before] != consumer
        if not consumer:
            await asyncio.sleep(SLOW_S)
        self._left -= not self._done[number]
        self._done[number] = True
        if not self._left:
            self.all_done.set()

    def count(self, consumer: int) -> int:
        """How many messages this consumer had."""
        return self._by.count(consumer)


async def measure(stage: Stage, options: argparse.Namespace) -> Measured:
    """Raises DispatcherError."""
    handled = Handled(options.groups, options.messages)
    async with stage.place() as place:
        subject = Subject(place, group_map={"lru": options.kept})
        with subject.running():
            tasks = [asyncio.create_task(_consume(place, handled, number)) for number in range(CONSUMERS)]
            try:
                await _send(place, options, handled)
            finally:
                for task in tasks:
                    task.cancel()
                ended = await asyncio.gather(*tasks, return_exceptions=True)
            for failure in ended:
                if isinstance(failure, Exception):
                    raise failure
            forgotten = await subject.metric("dispatcher_groups_forgotten_total")
    return Measured(
        options.groups, options.kept, options.messages, handled.count(0), handled.moved, handled.disordered,
        forgotten,
    )  # fmt: skip


async def _consume(place: Place, handled: Handled, number: int) -> None:
    consumer = GroupConsumer(place.amqp_url, LANE, f"consumer-{number}", PREFETCH, prefix=place.redis_prefix)

    async def handle(message: Message) -> None:
        await handled.handle(number, message)

    async with consumer:
        await consumer.run(handle, concurrency=CONCURRENCY, stop_on_signals=False)


async def _send(place: Place, options: argparse.Namespace, handled: Handled) -> None:
    publisher = Publisher(INBOUND, shape=Shape(options.groups))
    await publisher.open(place.amqp_url)
    await publisher.send_steadily(options.messages, options.rate)
    try:
        await asyncio.wait_for(handled.all_done.wait(), STUCK_S)
    except TimeoutError:
        raise DispatcherError(f"not all messages were done within {STUCK_S:.0f} s of the last one") from None
    finally:
        await publisher.close()


def exceeded(measured: Measured) -> list[str]:
    """What must not be."""
    found = []
    if measured.disordered:
        found.append(f"{measured.disordered:,} of {measured.messages:,} messages were out of order")
    if not measured.forgotten:
        found.append("no group was forgotten, so this shows nothing")
    return found


def arguments(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.forgotten", description=__doc__)
    parser.add_argument("--groups", type=int, default=10_000, help="that get messages in turn (10000)")
    parser.add_argument("--kept", type=int, default=1_024, help="that the map keeps (1024)")
    parser.add_argument("--messages", type=int, default=40_000, help="of all groups (40000)")
    parser.add_argument("--rate", type=int, default=2_000, help="messages a second (2000)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to FILE")
    options = parser.parse_args(given)
    if min(options.kept, options.rate) < 1 or not options.kept < options.groups < options.messages:
        parser.error("--messages must be more than --groups, and these more than --kept; --rate at least 1")
    return options


def main() -> NoReturn:
    options = arguments(sys.argv[1:])
    command = Command("bench.forgotten")
    measured = command.run(lambda stage: measure(stage, options))
    Console().print(
        f"{measured.messages:,} messages of {measured.groups:,} groups, {measured.kept:,} kept: "
        f"{measured.forgotten:,} groups forgotten, {measured.moved:,} messages by another consumer than the "
        f"one before, {measured.slow:,} by the slow one, {measured.disordered:,} out of order"
    )
    command.end(options.json, asdict(measured), exceeded(measured))


if __name__ == "__main__":
    main()
