"""Commands that change something of a lane, and what their results say. `dispatcher top` gives them too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from dispatcher.cli.output import counted


class Verb(NamedTuple):
    """A command to the lane's leader."""

    command: str
    arguments: dict[str, Any]
    say: Callable[[dict[str, Any]], str]  # its result, as a line


def pause(lane: str, group: str | None, *, new: bool = False) -> Verb:
    """Of the whole lane without a group; so it is with `resume`. `new`: also one without any message."""

    def say(result: dict[str, Any]) -> str:
        text = f"paused{_already(result)}; {counted(result.get('in_flight'), 'message')} in flight"
        return f"{result.get('group') or lane}: {text}"

    arguments = {"group": group, "all": group is None} | ({"new": True} if new else {})
    return Verb("groups.pause", arguments, say)


def resume(lane: str, group: str | None) -> Verb:
    def say(result: dict[str, Any]) -> str:
        text = "goes on" if result.get("changed") else "was not paused"
        return f"{result.get('group') or lane}: {text}"

    return Verb("groups.resume", {"group": group, "all": group is None}, say)


def pin(group: str, consumer: str | None) -> Verb:
    """Without a consumer the pin ends."""
    undo = consumer is None

    def say(result: dict[str, Any]) -> str:
        owner, in_flight = result.get("owner"), result.get("in_flight")
        if undo:
            text = "no longer pinned" if result.get("changed") else "was not pinned"
        else:
            text = f"pinned to {consumer}{_already(result)}"
            if in_flight and owner not in (None, consumer):
                text += f"; goes there when {owner} has settled {counted(in_flight, 'message')}"
        return f"{result.get('group')}: {text}"

    return Verb("groups.pin", {"group": group, "consumer": consumer, "undo": undo}, say)


def close(group: str) -> Verb:
    def say(result: dict[str, Any]) -> str:
        owner, waits_for = result.get("owner"), result.get("waits_for")
        if owner is None:
            end = "it has no owner"
        elif waits_for:
            end = f"closes when {owner} has settled {counted(waits_for, 'message')}"
        else:
            end = f"closed; it belonged to {owner}"
        return f"{result.get('group')}: {end}"

    return Verb("groups.close", {"group": group}, say)


def drain(consumer: str, *, undo: bool) -> Verb:
    def say(result: dict[str, Any]) -> str:
        if undo:
            text = "gets messages again" if result.get("changed") else "was not drained"
        else:
            text = f"drained{_already(result)}; {counted(result.get('in_flight'), 'message')} in flight"
            if pinned := result.get("pinned"):
                text += f"; {counted(pinned, 'group')} pinned to it"
        return f"{consumer}: {text}"

    return Verb("consumers.drain", {"consumer": consumer, "undo": undo}, say)


def rebalance(
    group: str | None = None,
    to: str | None = None,
    *,
    reset: bool = False,
    dry_run: bool = False,
    pause: str | None = None,
) -> Verb:
    def say(result: dict[str, Any]) -> str:
        groups = int(result.get("groups", 0))
        verb = "would move" if not result.get("applied") else "moves" if groups == 1 else "move"
        return f"{counted(groups, 'group')} {verb}"

    arguments = {"group": group, "to": to, "reset": reset, "dry_run": dry_run, "pause": pause}
    return Verb("rebalance", arguments, say)


def _already(result: dict[str, Any]) -> str:
    """Said again it changes nothing."""
    return "" if result.get("changed") else " already"
