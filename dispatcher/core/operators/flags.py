"""The flags of a group: what operators have set (paused, pinned), or still have to decide (stopped), and the
operation that is open on it.

Flags change here only: in the lane, in Redis, and in what may be served.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from dispatcher.core.effects import Effects
from dispatcher.core.holds import Facts, HoldKind
from dispatcher.core.model import Consumer, Group, GroupState
from dispatcher.core.operators.stop import Stop, stop_of
from dispatcher.core.state import LaneState
from dispatcher.core.wording import since

#: Before a group's id: the key of its row.
GROUP: Final = b"group:"


class GroupFlags:
    """What operators have set for a group, or have to decide; falsy when that is nothing."""

    __slots__ = ("operation", "paused", "paused_at_ms", "pin", "stop")

    def __init__(
        self, *, paused: bool = False, paused_at_ms: int | None = None, pin: str | None = None,
        stop: Stop | None = None,
    ) -> None:  # fmt: skip
        self.paused = paused  # nothing more of it is handed over
        self.paused_at_ms = paused_at_ms  # since 1970; None: not known
        self.pin = pin  # the consumer that alone gets it
        self.stop = stop  # nothing more of it is handed over until an operator decides
        self.operation: str | None = None  # uuid of the operation that is open on it (its row is that's)

    def __bool__(self) -> bool:
        said = self.paused or self.pin is not None or self.stop is not None
        return said or self.operation is not None

    def row(self) -> dict[str, Any] | None:
        """As Redis keeps it."""
        row: dict[str, Any] = pause_row(self.paused_at_ms) if self.paused else {}
        if self.pin is not None:
            row["pin"] = self.pin
        if self.stop is not None:
            row["stopped"] = self.stop.row()
        return row or None

    @classmethod
    def of_row(cls, row: dict[str, Any]) -> GroupFlags:
        """The opposite of `row`."""
        return cls(
            paused=bool(row.get("paused")),
            paused_at_ms=row.get("paused_at_ms"),
            pin=row.get("pin"),
            stop=Stop.of_row(row.get("stopped")),
        )


def pause_row(paused_at_ms: int | None) -> dict[str, Any]:
    """A pause as Redis keeps it. Rows of earlier versions have no time."""
    return {"paused": True} if paused_at_ms is None else {"paused": True, "paused_at_ms": paused_at_ms}


# -- what they say --


def flags_of(group: Group) -> GroupFlags | None:
    """What operators have set for the group; None: nothing."""
    flags: GroupFlags | None = group.flags
    return flags


def is_paused(group: Group) -> bool:
    """Operators have paused it."""
    flags = flags_of(group)
    return flags is not None and flags.paused


def operation_on(group: Group) -> str | None:
    """The uuid of the operation that is open on the group."""
    flags = flags_of(group)
    return flags.operation if flags is not None else None


def waits_for_pin(group: Group) -> bool:
    """It is pinned to a consumer that is not there, or that gets nothing, and no other one has it still."""
    lacks_consumer = group.pinned_to is None or group.pinned_to.drained
    return group.owner is None and group.pin is not None and lacks_consumer


def flag_facts(group: Group) -> Facts:
    """What more is to be said of its pause and its pin, whatever holds it."""
    flags = flags_of(group)
    return {
        "paused_at_ms": flags.paused_at_ms if flags is not None and flags.paused else None,
        "pin": group.pin, "is_there": group.pinned_to is not None,
    }  # fmt: skip


def _paused(facts: Facts) -> str:
    return f"Paused by an operator{since(facts.get('paused_at_ms'))}, until `dispatcher groups resume`."


def _pin_absent(facts: Facts) -> str:
    return f"Pinned to {facts['pin']}, which is {'drained' if facts['is_there'] else 'not there'}."


#: What operators read of them.
SENTENCES: Final[dict[HoldKind, Callable[[Facts], str]]] = {
    HoldKind.PAUSED: _paused,
    HoldKind.PIN_ABSENT: _pin_absent,
}


def awaits_operator(state: LaneState, group: Group) -> bool:
    """Nothing of it goes before an operator acts, or its consumer comes: its messages need not be here."""
    return state.eligibility.flag_holds.first(group) not in (None, HoldKind.DECIDED)


def is_in_transition(group: Group) -> bool:
    """It changes its owner, or who has messages of it is not known yet: it can't be given to another one."""
    return group.state in (GroupState.DRAINING, GroupState.RECOVERING)


def is_movable(group: Group) -> bool:
    """It may change its owner with all others: it has one, nothing is under way, and it is not pinned."""
    return group.state is GroupState.OWNED and group.pin is None


# -- what operators see of them: plain values --

#: See `Explanation.shown_as`.
SHOWN_AS: Final[dict[str, Callable[[Group], bool]]] = {
    "paused": is_paused,
    "pinned": lambda group: group.pin is not None,
    "stopped": lambda group: stop_of(group) is not None,
    "drained": lambda group: group.owner is not None and group.owner.drained,
    "operation": lambda group: operation_on(group) is not None,
}


def flag_status(state: LaneState) -> dict[str, Any]:
    """How many groups and consumers of the lane have which flag, and how many operations are open."""
    groups = state.groups_with_flags
    return {
        "consumers_drained": len(state.drained_consumers),
        "groups_paused": sum(map(is_paused, groups)),
        "groups_pinned": sum(group.pin is not None for group in groups),
        "groups_stopped": sum(stop_of(group) is not None for group in groups),
        "operations": sum(operation_on(group) is not None for group in groups),
    }


def drained_absent(state: LaneState) -> list[str]:
    """The ids of drained consumers that are not here."""
    return sorted(name for name in state.drained_consumers if name not in state.by_id)


def flag_row(group: Group) -> dict[str, Any]:
    """The flags of one group, for its row."""
    stop = stop_of(group)
    return {
        "paused": is_paused(group),
        "stopped": stop.reason if stop is not None else None,
        "pin": group.pin,
        "operation": operation_on(group),
    }


# -- how they change --


def load_flags(state: LaneState, group: Group, row: dict[str, Any]) -> None:
    """Take over what a former leader has left."""
    group.flags = flags = GroupFlags.of_row(row)
    group.pinned_to = state.by_id.get(flags.pin or "")
    state.groups_with_flags.add(group)


def add_flag_rows(state: LaneState, effects: Effects) -> None:
    """The rows of all groups with flags, for a Redis that has lost some."""
    flagged = ((group, flags_of(group)) for group in state.groups_with_flags)
    rows = {GROUP + group.id: flags.row() for group, flags in flagged if flags is not None}
    effects.operator_rows |= {key: row for key, row in rows.items() if row is not None}


def set_paused(state: LaneState, group: Group, *, paused: bool) -> None:
    """Hand over nothing more of it; or let it go on."""
    flags = flags_of(group) or GroupFlags()
    flags.paused, flags.paused_at_ms = paused, state.now_ms if paused else None
    _commit(state, group, flags)


def set_pin(state: LaneState, group: Group, name: str | None, consumer: Consumer | None) -> None:
    """That consumer alone gets it; with None any consumer may."""
    flags = flags_of(group) or GroupFlags()
    flags.pin, group.pinned_to = name, consumer
    _commit(state, group, flags)


def set_stop(state: LaneState, group: Group, stop: Stop | None) -> None:
    """It has stopped there; with None it goes on."""
    flags = flags_of(group) or GroupFlags()
    flags.stop = stop
    _commit(state, group, flags)


def _commit(state: LaneState, group: Group, flags: GroupFlags) -> None:
    """Commit the flags of a group, and list its backlogs anew as they say."""
    group.flags = flags if flags else None
    if flags:
        state.groups_with_flags.add(group)
    else:
        state.groups_with_flags.discard(group)
    state.effects.operator_rows[GROUP + group.id] = flags.row()
    state.relist_backlogs(group)
    state.forget_if_unused(group)


def point_pins(state: LaneState, consumer_id: str, consumer: Consumer | None) -> None:
    """That consumer has a new incarnation, or none any more: groups that are pinned to it wait for it."""
    for group in state.groups_with_flags:
        if group.pin == consumer_id:
            group.pinned_to = consumer
            state.relist_backlogs(group)


# An operation has a row of its own in Redis, so these commit nothing.


def begin_operation(state: LaneState, group: Group, uuid: str) -> None:
    """An operation is open on the group: no other one may begin."""
    group.flags = flags = flags_of(group) or GroupFlags()
    flags.operation = uuid
    state.groups_with_flags.add(group)


def end_operation(state: LaneState, group: Group) -> None:
    """No operation is open on the group any more: it is free for others."""
    flags = flags_of(group)
    if flags is not None:
        flags.operation = None
        if not flags:
            group.flags = None
            state.groups_with_flags.discard(group)
    state.relist_backlogs(group)
    state.forget_if_unused(group)
    state.rested(group)
