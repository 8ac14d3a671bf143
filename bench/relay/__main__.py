"""How fast messages are moved, beside RabbitMQ's own Shovel and plain relays: `python -m bench.relay`."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import redis
import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.relay.contenders import (
    Contender,
    Direct,
    DirectAcking,
    Dispatcher,
    Exclusive,
    ExclusiveShards,
    ExclusiveSingle,
    FixedWindow,
    Naive,
    Sequenced,
    SequencedSingle,
    Shovel,
    ShovelAutomatic,
    TwoProcesses,
    TwoShards,
)
from bench.relay.report import Results, machine, print_table, write_json
from bench.relay.rounds import Stage
from bench.relay.shapes import UNIFORM, ZIPF, Shape
from dispatcher.errors import DispatcherError
from dispatcher.nodes import open_servers

CONTENDERS: Final[dict[str, type[Contender]]] = {
    "exclusive": Exclusive,
    "exclusive-single": ExclusiveSingle,
    "exclusive-fixed": FixedWindow,
    "exclusive-shards": ExclusiveShards,
    "two-shards": TwoShards,
    "two-processes": TwoProcesses,
    "sequenced": Sequenced,
    "sequenced-single": SequencedSingle,
    "shovel": Shovel,
    "shovel-auto": ShovelAutomatic,
    "naive": Naive,
    "no-relay": DirectAcking,
}
DEFAULT: Final = "exclusive,sequenced,exclusive-single,sequenced-single,shovel,shovel-auto,naive"
#: Of the table, where there is no terminal to ask.
TABLE_WIDTH: Final = 136
#: The naive relay is several times slower; a fifth of the messages tells as much.
NAIVE_PART: Final = 5


def arguments(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.relay", description=__doc__)
    parser.add_argument("--messages", type=int, default=60_000, help="in the queue at first (60000)")
    parser.add_argument("--rounds", type=int, default=3, help="of all contenders in turn (3)")
    parser.add_argument("--contenders", default=DEFAULT, help=f"some of {DEFAULT}")
    parser.add_argument("--groups", type=_counts, default="1000", help="or several numbers: 1,1000 (1000)")
    parser.add_argument(
        "--spread", default=UNIFORM, help=f"of messages over groups: {UNIFORM}, {ZIPF} or both"
    )
    parser.add_argument(
        "--inbound", choices=("classic", "quorum"), default="classic", help="type of the queue (classic)"
    )
    parser.add_argument("--rate", type=int, default=1_000, help="messages/s of the latency runs (1000)")
    parser.add_argument("--seconds", type=int, default=8, help="of each latency run, 0 for none (8)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to FILE")
    options = parser.parse_args(given)
    unknown = set(options.contenders.split(",")) - set(CONTENDERS)
    if unknown:
        parser.error(f"--contenders: unknown: {', '.join(sorted(unknown))}")
    unknown = set(options.spread.split(",")) - {UNIFORM, ZIPF}
    if unknown:
        parser.error(f"--spread: unknown: {', '.join(sorted(unknown))}")
    if min(options.messages, options.rounds, options.rate) < 1 or options.seconds < 0:
        parser.error("--messages, --rounds and --rate must be at least 1, --seconds at least 0")
    return options


def _counts(text: str) -> list[int]:
    """Raises ValueError, which argparse tells, for what is no list of positive numbers."""
    counts = [int(part) for part in text.split(",")]
    if min(counts) < 1:
        raise ValueError(text)
    return counts


def races(
    kinds: list[type[Contender]], options: argparse.Namespace
) -> list[tuple[str, type[Contender], Shape]]:
    """What is measured, by its name in the table: a dispatcher with every number of groups and every spread,
    the others with the first of each, for they know no groups."""
    shapes = [Shape(groups, spread) for groups in options.groups for spread in options.spread.split(",")]
    found: list[tuple[str, type[Contender], Shape]] = []
    for kind in kinds:
        if issubclass(kind, Dispatcher) and len(shapes) > 1:
            found += [(f"{kind.name}, {shape}", kind, shape) for shape in shapes]
        else:
            found.append((kind.name, kind, shapes[0]))
    return found


class Show:
    """Says what is being done: a bar on a terminal, lines elsewhere."""

    def __init__(self, console: Console, steps: int) -> None:
        self._console = console
        columns = (
            TextColumn("{task.description:32}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        self._progress = Progress(*columns, console=console) if console.is_terminal else None
        self._task = self._progress.add_task("", total=steps) if self._progress else None

    def begin(self, running: ExitStack) -> None:
        if self._progress is not None:
            running.enter_context(self._progress)

    def doing(self, what: str) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, description=what)

    def done(self, what: str) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.advance(self._task)
        self._console.print(what)


async def measure(
    stage: Stage, kinds: list[type[Contender]], options: argparse.Namespace, show: Show
) -> Results:
    results = Results()
    entered = races(kinds, options)
    show.doing(f"warm-up: {entered[0][0]}")  # a node that has just started is faster than it will be
    await stage.throughput(entered[0][1], max(1, options.messages // NAIVE_PART), entered[0][2])
    for number in range(1, options.rounds + 1):
        begins = (number - 1) % len(entered)  # each round another one is the first
        for name, kind, shape in [*entered[begins:], *entered[:begins]]:
            messages = max(1, options.messages // NAIVE_PART) if kind is Naive else options.messages
            show.doing(f"round {number}: {name}")
            measured = await stage.throughput(kind, messages, shape)
            results.add(name, measured)
            own = "" if measured.own_us is None else f", {measured.own_us:.1f} µs of own CPU each"
            show.done(f"round {number}: {name}: {measured.per_second:,.0f} messages/s{own}")
    direct: list[tuple[str, type[Contender], Shape]] = [(Direct.name, Direct, entered[0][2])]
    if options.seconds:
        for name, kind, shape in [*entered, *direct]:
            show.doing(f"latency: {name}")
            latency = await stage.latency(kind, options.rate * options.seconds, options.rate, shape)
            results.latencies[name] = latency
            show.done(f"latency: {name}: p50 {latency.p50_ms:.2f} ms, p99 {latency.p99_ms:.2f} ms")
    return results


def chosen(names: Iterable[str], stage: Stage, console: Console) -> list[type[Contender]]:
    kinds = [CONTENDERS[name] for name in names]
    if not stage.has_shovel and any(issubclass(kind, Shovel) for kind in kinds):
        console.print("Without the Shovel: the broker lacks the plugin rabbitmq_shovel.")
        kinds = [kind for kind in kinds if not issubclass(kind, Shovel)]
    return kinds


def main() -> int:
    options = arguments(sys.argv[1:])
    console = Console()
    if not console.is_terminal:
        console.width = TABLE_WIDTH
    try:
        with ExitStack() as running:
            servers = running.enter_context(open_servers())
            stage = Stage(servers, options.inbound)
            kinds = chosen(options.contenders.split(","), stage, console)
            entered = len(races(kinds, options))
            show = Show(console, options.rounds * entered + (entered + 1) * bool(options.seconds))
            show.begin(running)
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                results = runner.run(measure(stage, kinds, options, show))
    except (DispatcherError, redis.RedisError) as error:
        print(f"bench.relay: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    rows = results.rows(Shovel.name, ShovelAutomatic.name, Direct.name)
    shape = machine() | stage.versions
    caption = (
        f"medians of {options.rounds} rounds of {options.messages:,} messages; CPU per message; latency at "
        f"{options.rate:,} messages/s\n{shape['date']}, {shape['cores']} cores of {shape['cpu']}, "
        f"Python {shape['python']}, dispatcher {shape['dispatcher']}, RabbitMQ {shape['rabbitmq']}, "
        f"Redis {shape['redis']}; {options.inbound} inbound queue"
    )
    print_table(console, rows, caption)
    if options.json:
        write_json(options.json, shape, rows, {key: str(value) for key, value in vars(options).items()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
