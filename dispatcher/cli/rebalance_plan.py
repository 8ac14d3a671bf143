"""`dispatcher rebalance LANE --plan FILE`: carries out the moves of a plan that still apply."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from dispatcher.cli import options
from dispatcher.cli.command_client import ask
from dispatcher.cli.output import console, counted, table
from dispatcher.cli.progress import progress
from dispatcher.cli.rabbitmq import connected
from dispatcher.errors import CommandRefused, ConfigurationError, DispatcherError
from dispatcher.pipeline.plan_file import PlanFile, read_plan

#: Loads change with the time of day: an older measurement says little about now.
AGE_MAX: Final = timedelta(hours=24)
#: Moves that one command carries out (the dispatcher takes no more at once).
_MOVES_PER_COMMAND: Final = 500
_SHOWN_MAX: Final = 100
_NAMED_MAX: Final = 5
_COLUMNS: Final = ("group", "from", "to", "waits for")


def apply_plan(
    file: Path, lane: str, path: Path, *, pause: str | None, dry_run: bool, timeout_ms: int
) -> dict[str, Any]:
    """Send the plan's moves; returns their results together. Raises ConfigurationError for a plan that can't
    be meant, before anything is moved; what `ask` raises says how far it has come."""
    settings = options.load_settings(file)
    names = options.lane_names(settings, lane)
    plan = checked(read_plan(path), path, lane)
    found: dict[str, Any] = {
        "groups": 0, "moves": [], "applied": not dry_run, "pause": pause, "skipped": Counter(),
        "skipped_groups": [],
    }  # fmt: skip
    done = 0
    # A plan without moves is asked about all the same: whether its lane is what it is for.
    with connected(settings.rabbitmq, "rebalance") as connection, progress("moves", len(plan.moves)) as step:
        while done < max(1, len(plan.moves)):
            moves = plan.moves[done : done + _MOVES_PER_COMMAND]
            arguments = {
                "moves": [list(move) for move in moves], "buckets": plan.buckets, "pause": pause,
                "dry_run": dry_run,
            }  # fmt: skip
            try:
                result = ask(connection, names, "rebalance.plan", arguments, timeout_ms=timeout_ms)
            except DispatcherError as problem:
                if not done:
                    raise
                raise CommandRefused(
                    f"{problem}; {done:,} of {len(plan.moves):,} moves were looked at before: apply the plan "
                    "again, moves that are done are skipped"
                ) from None
            _add(found, result)
            done += max(1, len(moves))
            for _ in moves:
                step()
    return {**found, "skipped": dict(found["skipped"])}


def checked(plan: PlanFile, path: Path, lane: str) -> PlanFile:
    """Raises ConfigurationError for a plan that is another lane's, or too old."""
    if plan.lane != lane:
        raise ConfigurationError(f"{path}: is a plan for lane {plan.lane}, not for {lane}")
    age = datetime.now(UTC) - plan.until
    if age > AGE_MAX:
        raise ConfigurationError(
            f"{path}: is made from records until {plan.until:%Y-%m-%d %H:%M} UTC, more than 24 h ago: "
            "run the pipeline and plan again"
        )
    return plan


def _add(found: dict[str, Any], result: dict[str, Any]) -> None:
    found["groups"] += int(result.get("groups", 0))
    found["pause"] = result.get("pause")
    found["skipped"].update(result.get("skipped", {}))
    for name in ("moves", "skipped_groups"):
        found[name] += result.get(name, [])[: _SHOWN_MAX - len(found[name])]


def show(result: dict[str, Any]) -> None:
    """For people: which groups move, and which were skipped and why."""
    moves, groups, out = result["moves"], result["groups"], console()
    if moves:
        rows = [(move["group"], move["from"], move["to"], move["waits_for"]) for move in moves]
        out.print(table(_COLUMNS, rows, numbers=("waits for",)))
    if groups > len(moves):
        out.print(f"… and {groups - len(moves):,} more")
    for why, count in sorted(result["skipped"].items(), key=lambda item: -item[1]):
        named = [each["group"] for each in result["skipped_groups"] if each["why"] == why][:_NAMED_MAX]
        more = ", …" if count > len(named) else ""
        out.print(f"skipped, {why}: {counted(count, 'group')} ({', '.join(named)}{more})")
    skipped = sum(result["skipped"].values())
    verb = "would move" if not result["applied"] else "moves" if groups == 1 else "move"
    out.print(f"{counted(groups, 'group')} {verb}, {skipped:,} skipped")
