"""`dispatcher consumers …`: the consumers of a lane."""

from __future__ import annotations

from typing import Any

import typer

from dispatcher.cli import flags, options
from dispatcher.cli.command_client import ask, ask_lane
from dispatcher.cli.consumer_connections import ConsumerConnections
from dispatcher.cli.output import console, counted, print_json, print_result, span, states, table
from dispatcher.cli.rabbitmq import connected
from dispatcher.cli.shards import over_shards
from dispatcher.errors import BrokerUnavailable, CommandRefused

app = typer.Typer(help="Look at the consumers of a lane; drain and end them.", no_args_is_help=True)

app.command()(over_shards(flags.drain))

_KEYS = ("prefetch", "in_flight", "groups", "incarnation", "queue")
_COLUMNS = (
    "consumer",
    "state",
    "prefetch",
    "in flight",
    "groups",
    "incarnation",
    "queue",
    "oldest",
    "last heard",
)


@app.command("list")
@over_shards
def list_consumers(
    lane: options.LaneName,
    file: options.ConfigFile = options.DEFAULT_CONFIG,
    as_json: options.AsJson = False,
    wide: options.Wide = False,
    timeout_ms: options.Timeout = options.DEFAULT_TIMEOUT_MS,
) -> None:
    """List consumers with their state, how much they hold and for how long, and when they were last heard."""
    result = ask_lane(file, lane, "consumers.list", {}, timeout_ms)
    if as_json:
        print_json(result)
        return
    consumers = result.get("consumers", [])
    out = console()
    rows = [
        (
            row.get("consumer"),
            states(state_text(row)),
            *(row.get(key) for key in _KEYS),
            span(row.get("oldest_in_flight_ms")),
            span(row.get("last_heartbeat_ms")),
        )
        for row in consumers
    ]
    numbers = ("prefetch", "in flight", "groups", "oldest", "last heard")
    left_out = () if wide else ("incarnation", "queue")
    out.print(table(_COLUMNS, rows, numbers=numbers, left_out=left_out))
    out.print(counted(len(consumers), "consumer"))
    for row in consumers:
        if row.get("readers") is not None:
            out.print(_of_queue(row))
    if unread := result.get("unread"):
        out.print(f"nothing reads the queue of {', '.join(unread)}")
    if absent := result.get("drained_absent"):
        out.print(f"drained, and not there: {', '.join(absent)}")


def _of_queue(row: dict[str, Any]) -> str:
    """The state of a hand-over consumer's queue."""
    waiting = counted(row.get("waiting_there"), "message")
    text = f"{row.get('queue')}: {counted(row['readers'], 'reader')}, {waiting} waiting there"
    return f"warning: {text}; two at a time work on one group" if row["readers"] > 1 else text


def state_text(row: dict[str, Any]) -> str:
    """Its state, with what else keeps it from getting messages."""
    more = [word for word in ("drained", "alone") if row.get(word)]
    if row.get("id_wanted_by"):
        more.append("id twice")
    return ", ".join([str(row.get("state")), *more])


@app.command("evict")
@over_shards
def evict(
    lane: options.LaneName,
    consumer: options.ConsumerName,
    file: options.ConfigFile = options.DEFAULT_CONFIG,
    as_json: options.AsJson = False,
    management: options.ManagementUrl = None,
    timeout_ms: options.Timeout = options.DEFAULT_TIMEOUT_MS,
) -> None:
    """End an incarnation: its settles don't count from now on, and its messages and groups go to others.

    Its connection is closed too, by RabbitMQ's management API; if that is impossible, nothing is done.
    """
    settings = options.load_settings(file)
    names = options.lane_names(settings, lane)
    connections = ConsumerConnections(settings, management)
    with connected(settings.rabbitmq, "evict") as channel:
        rows = ask(channel, names, "consumers.list", {}, timeout_ms=timeout_ms).get("consumers", [])
        row: dict[str, Any] = next((row for row in rows if row.get("consumer") == consumer), {})
        connection = connections.of_queue(str(row["queue"])) if row else None
        arguments = {"consumer": consumer, "incarnation": row.get("incarnation")}
        result = ask(channel, names, "consumers.evict", arguments, timeout_ms=timeout_ms)
    try:
        if connection is not None:
            connections.close(connection, f"evicted from lane {lane}")
    except BrokerUnavailable as problem:
        raise CommandRefused(f"it is evicted, but its connection could not be closed: {problem}") from None
    result["connection"] = connection
    closed = "its connection is closed" if connection is not None else "it was not connected"
    text = (
        f"{consumer}: evicted with {counted(result.get('in_flight'), 'message')} and "
        f"{counted(result.get('groups'), 'group')}; {closed}"
    )
    print_result(result, text, as_json=as_json)
