"""`dispatcher consumers …`: the consumers of a lane."""

from __future__ import annotations

import typer

from dispatcher.cli import options
from dispatcher.cli.asking import ask_lane
from dispatcher.cli.output import console, counted, print_json, span, table

app = typer.Typer(help="Look at the consumers of a lane.", no_args_is_help=True)

_KEYS = ("consumer", "state", "prefetch", "in_flight", "groups", "incarnation", "queue")
_COLUMNS = ("consumer", "state", "prefetch", "in flight", "groups", "incarnation", "queue", "last heard")


@app.command("list")
def list_consumers(
    lane: options.LaneName,
    file: options.ConfigFile = options.DEFAULT_CONFIG,
    as_json: options.AsJson = False,
    timeout_ms: options.Timeout = options.DEFAULT_TIMEOUT_MS,
) -> None:
    """List consumers with their state, how much they hold, and when they were last heard."""
    result = ask_lane(file, lane, "consumers.list", {}, timeout_ms)
    if as_json:
        print_json(result)
        return
    consumers = result.get("consumers", [])
    out = console()
    rows = [(*(row.get(key) for key in _KEYS), span(row.get("last_heartbeat_ms"))) for row in consumers]
    out.print(table(_COLUMNS, rows, numbers=("prefetch", "in flight", "groups", "last heard")))
    out.print(counted(len(consumers), "consumer"))
