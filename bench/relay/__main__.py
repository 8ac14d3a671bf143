"""`python -m bench.relay`."""

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

from bench.relay.contenders import Contender, Direct, Exclusive, Naive, Sequenced, Shovel, ShovelAutomatic
from bench.relay.report import Results, machine, print_table, write_json
from bench.relay.rounds import Stage
from dispatcher.errors import DispatcherError
from dispatcher.nodes import open_servers

CONTENDERS: Final[dict[str, type[Contender]]] = {
    "exclusive": Exclusive,
    "sequenced": Sequenced,
    "shovel": Shovel,
    "shovel-auto": ShovelAutomatic,
    "naive": Naive,
}
DEFAULT: Final = "exclusive,sequenced,shovel,shovel-auto,naive"
#: Of the table, where there is no terminal to ask.
TABLE_WIDTH: Final = 136
#: The naive relay is several times slower; a fifth of the messages tells as much.
NAIVE_PART: Final = 5


def arguments(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.relay", description=__doc__)
    parser.add_argument("--messages", type=int, default=60_000, help="in the queue at first (60000)")
    parser.add_argument("--rounds", type=int, default=3, help="of all contenders in turn (3)")
    parser.add_argument("--contenders", default=DEFAULT, help=f"some of {DEFAULT}")
    parser.add_argument("--rate", type=int, default=1_000, help="messages/s of the latency runs (1000)")
    parser.add_argument("--seconds", type=int, default=8, help="of each latency run, 0 for none (8)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to FILE")
    options = parser.parse_args(given)
    unknown = set(options.contenders.split(",")) - set(CONTENDERS)
    if unknown:
        parser.error(f"--contenders: unknown: {', '.join(sorted(unknown))}")
    if min(options.messages, options.rounds, options.rate) < 1 or options.seconds < 0:
        parser.error("--messages, --rounds and --rate must be at least 1, --seconds at least 0")
    return options


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
    for number in range(1, options.rounds + 1):
        for kind in kinds:
            messages = max(1, options.messages // NAIVE_PART) if kind is Naive else options.messages
            show.doing(f"round {number}: {kind.name}")
            measured = await stage.throughput(kind, messages)
            results.add(kind.name, measured)
            own = "" if measured.own_us is None else f", {measured.own_us:.1f} µs of own CPU each"
            show.done(f"round {number}: {kind.name}: {measured.per_second:,.0f} messages/s{own}")
    if options.seconds:
        every: list[type[Contender]] = [*kinds, Direct]
        for kind in every:
            show.doing(f"latency: {kind.name}")
            latency = await stage.latency(kind, options.rate * options.seconds, options.rate)
            results.latencies[kind.name] = latency
            show.done(f"latency: {kind.name}: p50 {latency.p50_ms:.2f} ms, p99 {latency.p99_ms:.2f} ms")
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
            stage = Stage(servers)
            kinds = chosen(options.contenders.split(","), stage, console)
            show = Show(console, options.rounds * len(kinds) + (len(kinds) + 1) * bool(options.seconds))
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
        f"Python {shape['python']}, RabbitMQ {shape['rabbitmq']}, Redis {shape['redis']}"
    )
    print_table(console, rows, caption)
    if options.json:
        write_json(options.json, shape, rows, {key: str(value) for key, value in vars(options).items()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
