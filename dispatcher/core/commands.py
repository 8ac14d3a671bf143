"""Operators' commands: each is done once, and what came of it is recorded with the commit that did it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from dispatcher.core.effects import Reply
from dispatcher.core.events import CommandReceived
from dispatcher.core.state import LaneState
from dispatcher.errors import CommandRefused
from dispatcher.group_text import parse_group

#: Results that are kept, here and in Redis, the oldest forgotten first. A command is repeated within seconds
#: (its sender waits for an answer, or RabbitMQ delivers it again), and refused when it is first read late.
RESULTS_KEPT_MAX: Final = 1_000

_KINDS: Final[dict[type, str]] = {str: "text", bool: "true or false", int: "a whole number"}

T = TypeVar("T", str, bool, int)
Arguments = dict[str, Any]
#: Does a command and returns its result; raises CommandRefused or ValueError if nothing was changed.
Run = Callable[[Arguments], dict[str, Any]]


class Commands:
    """The commands that change something, by their names on the wire, and the results of those done."""

    def __init__(self, state: LaneState, results: dict[str, dict[str, Any]]) -> None:
        self._state = state
        self.results = dict(results)  # by uuid, oldest first
        self._runs: dict[str, Run] = {}

    def add(self, name: str, run: Run) -> None:
        self._runs[name] = run

    def __contains__(self, name: object) -> bool:
        return name in self._runs

    def has_result(self, uuid: str) -> bool:
        """Whether this command was done already; then its age does not matter."""
        return uuid in self.results

    def received(self, event: CommandReceived) -> None:
        """Do a command once: a repeated uuid gets the recorded result. One whose result says that it was not
        `applied` is not recorded: it only asked, and may be done again."""
        result = self.results.get(event.uuid)
        error: str | None = None
        if result is None:
            try:
                if event.name not in self._runs:
                    raise CommandRefused(f"unknown command {event.name!r}")
                result = self._runs[event.name](event.arguments)
            except (CommandRefused, ValueError) as refused:
                result, error = {}, str(refused)
            else:
                if result.get("applied", True):
                    self._record(event.uuid, result)
        self._state.effects.actions.append(Reply(event.token, result, error))

    def _record(self, uuid: str, result: dict[str, Any]) -> None:
        self._state.effects.commands[uuid] = self.results[uuid] = result
        if len(self.results) > RESULTS_KEPT_MAX:
            del self.results[next(iter(self.results))]


def argument(arguments: Arguments, name: str, kind: type[T]) -> T | None:
    """An optional argument of a command. Raises CommandRefused: whoever sent it may be any program."""
    value = arguments.get(name)
    if value is not None and type(value) is not kind:  # true is no number
        raise CommandRefused(f"{name}: must be {_KINDS[kind]}")
    return value


def group_argument(arguments: Arguments) -> bytes:
    """The group that a command is about. Raises CommandRefused, ValueError."""
    text = argument(arguments, "group", str)
    if text is None:
        raise CommandRefused("name a group")
    return parse_group(text)
