"""Operators' commands: each is done once, and its result is recorded with the commit that did it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from dispatcher.core.effects import Effects
from dispatcher.core.events import CommandReceived
from dispatcher.core.feature import Feature, Handler
from dispatcher.core.orders import Reply
from dispatcher.core.state import LaneState
from dispatcher.errors import CommandRefused
from dispatcher.wire.group_text import format_group, parse_group

#: Results that are kept, here and in Redis, the oldest forgotten first. A command is repeated within seconds
#: (its sender waits for an answer, or RabbitMQ delivers it again), and refused when it is first read late.
RESULTS_KEPT_MAX: Final = 1_000

#: More than any count, and no more than what takes one can count to.
NUMBER_MAX: Final = 10**9

_KINDS: Final[dict[type, str]] = {str: "text", bool: "true or false", int: "a whole number"}

#: Arguments that the ledger has columns for.
_NAMED: Final = ("group", "consumer")

T = TypeVar("T", str, bool, int)
Arguments = dict[str, Any]
#: Does a command and returns its result; raises CommandRefused or ValueError if nothing was changed.
Run = Callable[[Arguments], dict[str, Any]]

#: The same for one that takes time: gets its uuid too, and returns how far it has come.
Order = Callable[[str, Arguments], dict[str, Any]]


class Commands(Feature):
    """The commands that change something, by their names on the wire, and the results of those done."""

    def __init__(self, state: LaneState, results: dict[str, dict[str, Any]]) -> None:
        self._state = state
        self.results = dict(results)  # by uuid, oldest first
        self._runs: dict[str, Run] = {}
        self._orders: dict[str, Order] = {}
        self._takes: dict[str, frozenset[str]] = {}  # the arguments of each
        self._reassigning: set[str] = set()
        self._no_reassigning: str | None = None  # why these are refused in this lane
        #: Commands that are open, by uuid, and how far each has come; `done` ends them.
        self.under_way: dict[str, Callable[[], dict[str, Any]]] = {}

    def events(self) -> Mapping[type, Handler]:
        return {CommandReceived: self.received}

    def add_rows(self, effects: Effects) -> None:
        effects.commands = dict(self.results)

    def add(self, name: str, run: Run, *takes: str, reassigns: bool = False) -> None:
        """A command, and its arguments: one with others is refused, for they may say what it must not do.
        `reassigns`: it takes groups from a consumer that goes on, or ends that consumer."""
        self._runs[name], self._takes[name] = run, frozenset(takes)
        if reassigns:
            self._reassigning.add(name)

    def add_operation(self, name: str, order: Order, *takes: str) -> None:
        """One that is not done at once: asked again, it says how far it has come."""
        self._orders[name], self._takes[name] = order, frozenset(takes)

    def forbid_reassigning(self, why: str) -> None:
        """Refuse all commands in this lane that take groups from consumers, whatever they say."""
        self._no_reassigning = why

    def __contains__(self, name: object) -> bool:
        return name in self._runs or name in self._orders

    def is_known(self, uuid: str) -> bool:
        """Whether this command is open, or was done already; then its age does not matter."""
        return uuid in self.results or uuid in self.under_way

    def done(self, uuid: str, result: dict[str, Any]) -> None:
        """A command that was open ends with this result, or with its `error`."""
        self.under_way.pop(uuid, None)
        self._record(uuid, result)

    def received(self, event: CommandReceived) -> None:
        """Do a command once: a repeated uuid gets the recorded result. One whose result says that it was not
        `applied` is not recorded: it only asked, and may be done again."""
        try:
            result = self._result(event)
        except (CommandRefused, ValueError) as refused:
            result = {"error": str(refused)}
        error = result.get("error")
        self._state.effects.actions.append(Reply(event.token, {} if error else result, error))

    def _result(self, event: CommandReceived) -> dict[str, Any]:
        """Its recorded result, or that of doing it now. Raises CommandRefused, ValueError."""
        uuid, name = event.uuid, event.name
        known = self.results.get(uuid)
        if known is not None:
            return known
        if uuid in self.under_way:
            return self.under_way[uuid]()
        if self._no_reassigning is not None and name in self._reassigning:
            raise CommandRefused(self._no_reassigning)
        self._check_arguments(name, event.arguments)
        if name in self._orders:
            result = self._orders[name](uuid, event.arguments)
            self._tell(event)
            return result
        if name not in self._runs:
            raise CommandRefused(f"unknown command {name!r}")
        result = self._runs[name](event.arguments)
        if result.get("applied", True):
            self._record(uuid, result)
            self._tell(event)
        return result

    def _tell(self, event: CommandReceived) -> None:
        """Who had what done, for the log and the ledger. Lists are left out: the moves of a plan are many."""
        said = {
            key: value for key, value in event.arguments.items()
            if type(value) in _KINDS and key not in _NAMED
        }  # fmt: skip
        named = {key: event.arguments[key] for key in _NAMED if isinstance(event.arguments.get(key), str)}
        if "group" in named:
            named["group"] = format_group(parse_group(named["group"]))
        self._state.log_event(
            "operator_command", command=event.name, user=event.user, uuid=event.uuid, **named, arguments=said
        )

    def _check_arguments(self, name: str, arguments: Arguments) -> None:
        takes = self._takes.get(name)
        unknown = [key for key, value in arguments.items() if value is not None and key not in (takes or ())]
        if takes is not None and unknown:
            raise CommandRefused(
                f"{name} does not know {', '.join(sorted(unknown))}: is the dispatcher older than who asks?"
            )

    def _record(self, uuid: str, result: dict[str, Any]) -> None:
        self._state.effects.commands[uuid] = self.results[uuid] = result
        if len(self.results) > RESULTS_KEPT_MAX:
            del self.results[next(iter(self.results))]


def argument(arguments: Arguments, name: str, kind: type[T]) -> T | None:
    """An optional argument of a command. Raises CommandRefused: any program may have sent it."""
    value = arguments.get(name)
    if value is not None and type(value) is not kind:  # true is no number
        raise CommandRefused(f"{name}: must be {_KINDS[kind]}")
    if type(value) is int and abs(value) > NUMBER_MAX:
        raise CommandRefused(f"{name}: must be at most {NUMBER_MAX}")
    return value


def group_argument(arguments: Arguments) -> bytes:
    """The group that a command is about. Raises CommandRefused, ValueError."""
    text = argument(arguments, "group", str)
    if text is None:
        raise CommandRefused("name a group")
    return parse_group(text)
