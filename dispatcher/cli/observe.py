"""`dispatcher observe`: what groups would mean for a flow that is there already. Changes nothing."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Annotated, Any, Final

import typer

from dispatcher.cli import options
from dispatcher.cli.observation import UNGROUPED, Observation
from dispatcher.cli.observe_model import compete, group
from dispatcher.cli.observe_tap import Reading, Tap
from dispatcher.cli.options import parse_timeout
from dispatcher.cli.output import console, counted, print_json, shown, span, table
from dispatcher.cli.rabbitmq import connected, look_at_queue
from dispatcher.errors import CommandRefused
from dispatcher.settings import RabbitSettings
from dispatcher.settings.units import format_duration

#: What is kept of a message takes 16 bytes, and its group's name.
MESSAGES_MAX: Final = 1_000_000
_DEFAULT_FOR_MS: Final = 60_000
_DEFAULT_WORK_MS: Final = (10, 100, 1_000)


Exchange = Annotated[str, typer.Option("--exchange", metavar="EXCHANGE", help="Where the producers publish.")]
Keys = Annotated[
    list[str] | None,
    typer.Option("--key", metavar="KEY", help="Routing or binding key, repeated; without it #."),
]
Queue = Annotated[
    str | None,
    typer.Option("--queue", metavar="QUEUE", help="The queue that it feeds: its consumers are counted."),
]
Consumers = Annotated[
    int | None, typer.Option("--consumers", min=1, max=1_000, help="How many consumers compete for it.")
]
Prefetch = Annotated[int, typer.Option("--prefetch", min=1, max=60_000, help="The prefetch that these have.")]
Work = Annotated[
    list[int] | None,
    typer.Option(
        "--work",
        parser=parse_timeout,
        metavar="DURATION",
        show_default="10ms, 100ms, 1s",
        help="How long a message's work takes; repeated.",
    ),
]
For = Annotated[
    int,
    typer.Option(
        "--for",
        parser=parse_timeout,
        metavar="DURATION",
        help="How long; Ctrl-C ends it earlier.",
        show_default=format_duration(_DEFAULT_FOR_MS),
    ),
]
GroupHeader = Annotated[
    list[str] | None,
    typer.Option(
        "--group-header",
        metavar="SOURCE",
        help="Header, property:NAME or routing_key that has the group; repeated. Without it x-group-id.",
    ),
]
SequenceHeader = Annotated[
    str, typer.Option("--sequence-header", metavar="HEADER", help="The header with a producer's number.")
]
Url = Annotated[
    str | None, typer.Option("--url", metavar="URL", help="RabbitMQ, instead of a configuration's.")
]


def observe(
    exchange: Exchange,
    keys: Keys = None,
    queue: Queue = None,
    consumers: Consumers = None,
    prefetch: Prefetch = 50,
    work: Work = None,
    duration_ms: For = _DEFAULT_FOR_MS,
    group_header: GroupHeader = None,
    sequence_header: SequenceHeader = "x-group-seq",
    url: Url = None,
    file: options.ConfigFile = options.DEFAULT_CONFIG,
    as_json: options.AsJson = False,
) -> None:
    """Look at an existing flow: what competing consumers do to its order, and what groups would cost.

    Binds a temporary queue of its own to the exchange and reads copies; the flow itself is not touched. It
    sees the order of publishing, not consumers' acks: what they do with it is reckoned, and said to be.
    Meanwhile a message that no other queue takes counts as routed.
    """
    if not exchange:
        raise typer.BadParameter("nothing can be bound to the default exchange", param_hint="--exchange")
    settings = RabbitSettings(url=url) if url is not None else options.load_settings(file).rabbitmq
    reading = Reading(group_header or ["x-group-id"], sequence_header or None)
    seen = Observation()
    with connected(settings, "observe") as connection:
        today = _consumers_of(connection, queue)
        tap = Tap(connection, exchange, keys or ["#"])
        began_s = time.monotonic()
        with contextlib.suppress(KeyboardInterrupt):
            tap.read(reading, duration_ms / 1_000, seen.add, lambda: len(seen) < MESSAGES_MAX)
        seconds = time.monotonic() - began_s
    found = _found(seen, seconds, consumers or today, prefetch, work or list(_DEFAULT_WORK_MS))
    found |= {"consumers_of_queue": today, "copies_dropped": tap.dropped}
    if as_json:
        print_json(found)
        return
    out = console()
    for each in _report(found):
        out.print(each)


def _consumers_of(connection: Any, queue: str | None) -> int | None:
    if queue is None:
        return None
    look = look_at_queue(connection, queue)
    if look.refused is not None:
        raise CommandRefused(look.refused)
    return look.consumers


def _found(
    seen: Observation, seconds: float, consumers: int | None, prefetch: int, work_ms: list[int]
) -> dict[str, Any]:
    """All of the result, of which `model` is reckoned."""
    model = []
    grouped = any(place != UNGROUPED for place in seen.group_of)
    for each in work_ms if grouped else ():
        row: dict[str, Any] = {"work_ms": each}
        if consumers:
            now = compete(
                seen.at_s, seen.group_of, consumers=consumers, prefetch=prefetch, work_s=each / 1_000
            )
            row["competing"] = {"consumers": consumers, "prefetch": prefetch, **now._asdict()}
        row["grouped"] = group(seen.at_s, seen.group_of, work_s=each / 1_000)._asdict()
        model.append(row)
    return {**seen.as_json(seconds), "model": model}


def _report(found: dict[str, Any]) -> Iterator[Any]:
    """For people: strings and tables."""
    yield f"Observed for {shown(span(found['seconds'] * 1_000))}, in the order of publishing:"
    yield (
        f"{counted(found['messages'], 'message')} ({shown(found['messages_per_s'])}/s), "
        f"{counted(found['groups'], 'group')}, {shown(found['without_group'])} without a group"
    )
    if not found["messages"]:
        yield "Nothing came: to a direct exchange --key must be the routing key itself."
        return
    if found["copies_dropped"]:
        yield "Copies came faster than they were read, and some were dropped: the numbers are of a part."
    rows = [(each["group"], each["messages"], f"{each['share']:.1%}") for each in found["busiest"]]
    yield table(("busiest groups", "messages", "share"), rows, numbers=("messages", "share"))
    yield from _order_lines(found)
    yield from _model_lines(found["model"])


def _order_lines(found: dict[str, Any]) -> Iterator[str]:
    """What was out of order before any consumer had it."""
    numbers, stamps = found["numbers"], found["timestamps"]
    if numbers["messages"]:
        yield (
            f"Producers' numbers: of {counted(numbers['messages'], 'message')} {shown(numbers['late'])} came "
            f"behind a larger one of their group, {shown(numbers['repeated'])} repeated one; "
            f"{counted(numbers['gaps'], 'number')} left out."
        )
    if stamps["messages"]:
        yield (
            f"Producers' clocks: of {counted(stamps['messages'], 'message')} {shown(stamps['late'])} were "
            "older than one before them in their group, by a second or more (clocks may differ)."
        )
    for each in [*numbers["late_by"], *stamps["late_by"]]:
        yield f"- {counted(each['messages'], 'message')} by {each['by']} behind one by {each['after']}"
    if not numbers["messages"] and not stamps["messages"]:
        yield "No message has a number or a timestamp: whether producers keep the order can't be seen."


def _model_lines(model: list[dict[str, Any]]) -> Iterator[Any]:
    if not model:
        yield "No message has a group: --group-header names what says it."
        return
    yield ""
    yield (
        "Reckoned, not observed, for consumers' acks can't be seen, nor how long their work takes: what the "
        "observed arrivals lead to if a message's work takes so long."
    )
    if competing := [row for row in model if "competing" in row]:
        now = competing[0]["competing"]
        yield f"As it is, with {counted(now['consumers'], 'consumer')} of prefetch {now['prefetch']}:"
        titles = ("work", "messages behind one of their group", "begun before it ended", "overtook it")
        yield table(titles, [_competing_row(row) for row in competing], numbers=titles)
    else:
        yield "How many consumers compete is not known: say --queue or --consumers to see what they do."
    yield "With groups, in order:"
    columns = (
        "work",
        "groups at once",
        "busiest group's load",
        "waits for its group",
        "consumers",
        "prefetch",
    )
    yield table(columns, [_grouped_row(row) for row in model], numbers=columns)
    if any(row["grouped"]["hottest_load"] > 1 for row in model):
        yield (
            "A load above 100 %: one consumer can't keep up with that group, and order allows no second one. "
            "Finer groups would help."
        )
    yield (
        "groups at once: the mean, and what it is below 99 % of the time; waits for its group: 99 % of the "
        "messages wait less; consumers: enough for the load and a quarter more."
    )


def _competing_row(row: dict[str, Any]) -> tuple[Any, ...]:
    now = row["competing"]
    followers = now["followers"]

    def part(count: int) -> str:
        return f"{shown(count)} ({count / followers:.1%})" if followers else shown(count)

    return format_duration(row["work_ms"]), followers, part(now["at_once"]), part(now["overtaken"])


def _grouped_row(row: dict[str, Any]) -> tuple[Any, ...]:
    then = row["grouped"]
    return (
        format_duration(row["work_ms"]), f"{then['busy_mean']:.1f}, {shown(then['busy_p99'])}",
        f"{then['hottest_load']:.0%}", span(then["wait_p99_s"] * 1_000), then["consumers"], then["prefetch"],
    )  # fmt: skip
