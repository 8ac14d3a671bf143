"""The flags of a group: what operators have set (paused, pinned), or still have to decide (stopped).

Flags change in one place, `flag_changes.keep_flags`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from dispatcher.core.holds import Facts, HoldKind
from dispatcher.core.model import Group, GroupState, Original

#: Before a group's id: the key of its row.
GROUP: Final = b"group:"


#: How groups with flags are held.
FLAG_HOLDS: Final = (
    HoldKind.TRANSFERRING, HoldKind.STOPPED, HoldKind.PAUSED, HoldKind.PIN_ABSENT, HoldKind.DECIDED
)  # fmt: skip


@dataclass(slots=True)
class Stop:
    """The message at which a group has stopped (`retry.on_exhausted: stop`)."""

    inbound: int
    fingerprint: bytes
    arrival: tuple[int, int]
    reason: str
    attempt: int
    calls: int
    consumer: str
    at_ms: int
    decision: str | None = None  # "skip" or "drop": to be done once the message is in front

    def row(self) -> dict[str, Any]:
        """As Redis keeps it."""
        row = {**asdict(self), "fingerprint": self.fingerprint.hex()}
        row["verdict"] = row.pop("decision")
        return row

    def facts(self) -> Facts:
        """What `groups why` tells of it."""
        return {
            "failure": self.reason, "attempt": self.attempt, "calls": self.calls, "consumer": self.consumer,
            "decision": self.decision,
        }  # fmt: skip

    @classmethod
    def of_row(cls, row: dict[str, Any]) -> Stop:
        fields = dict(row)
        decision = fields.pop("verdict")
        fields |= {"fingerprint": bytes.fromhex(row["fingerprint"]), "arrival": tuple(row["arrival"])}
        return cls(**fields, decision=decision)


class GroupFlags:
    """What operators have said of a group, or have to say; falsy when that is nothing."""

    __slots__ = ("transferring", "operation", "paused", "pin", "stop")

    def __init__(self, *, paused: bool = False, pin: str | None = None, stop: Stop | None = None) -> None:
        self.paused = paused  # nothing more of it is handed over
        self.pin = pin  # the consumer that alone gets it
        self.stop = stop  # nothing more of it is handed over until somebody decides
        self.operation: str | None = None  # uuid of the operation that is open on it (its row is that's)
        self.transferring = False  # that operation sends it away, and nothing else of it moves

    def __bool__(self) -> bool:
        said = self.paused or self.pin is not None or self.stop is not None
        return said or self.operation is not None

    def row(self) -> dict[str, Any] | None:
        """As Redis keeps it."""
        row: dict[str, Any] = {"paused": True} if self.paused else {}
        if self.pin is not None:
            row["pin"] = self.pin
        if self.stop is not None:
            row["stopped"] = self.stop.row()
        return row or None

    @classmethod
    def of_row(cls, row: dict[str, Any]) -> GroupFlags:
        """The opposite of `row`."""
        stopped = row.get("stopped")
        stop = Stop.of_row(stopped) if stopped is not None else None
        return cls(paused=bool(row.get("paused")), pin=row.get("pin"), stop=stop)


def flags_of(group: Group) -> GroupFlags | None:
    """What operators have set for the group; None: nothing."""
    flags: GroupFlags | None = group.flags
    return flags


def stop_of(group: Group) -> Stop | None:
    """The message at which the group has stopped."""
    flags = flags_of(group)
    return flags.stop if flags is not None else None


def pin_of(group: Group) -> str | None:
    """The id of the consumer that alone may get the group."""
    flags = flags_of(group)
    return flags.pin if flags is not None else None


def operation_on(group: Group) -> str | None:
    """The uuid of the operation that is open on the group."""
    flags = flags_of(group)
    return flags.operation if flags is not None else None


def held_by(group: Group) -> HoldKind | None:
    """What keeps a group with flags from being served in its turn."""
    flags = flags_of(group)
    if flags is None:
        return None
    if flags.transferring:
        return HoldKind.TRANSFERRING
    if flags.stop is not None and flags.stop.decision is None:
        return HoldKind.STOPPED
    if flags.paused:
        return HoldKind.PAUSED
    if group.owner is None and lacks_consumer(group):
        return HoldKind.PIN_ABSENT
    return HoldKind.DECIDED if flags.stop is not None else None


def facts_of(group: Group, _: Original | None) -> Facts:
    """What more is to be said of such a group, whatever holds it."""
    flags = flags_of(group)
    assert flags is not None
    stop = flags.stop.facts() if flags.stop is not None else {}
    return {"operation": flags.operation, "pin": flags.pin, "is_there": group.pinned_to is not None, **stop}


def lacks_consumer(group: Group) -> bool:
    """It is pinned to a consumer that is not there, or that gets nothing."""
    return pin_of(group) is not None and (group.pinned_to is None or group.pinned_to.drained)


def is_transferring(group: Group) -> bool:
    """An operation sends its messages to a target."""
    flags = flags_of(group)
    return flags is not None and flags.transferring


def has_decision(group: Group) -> bool:
    """It has stopped, and what operators decided is to be done when the message is here."""
    stop = stop_of(group)
    return stop is not None and stop.decision is not None


def awaits_operator(group: Group) -> bool:
    """Nothing of it goes before an operator acts, or its consumer comes: its messages need not be here."""
    return held_by(group) not in (None, HoldKind.DECIDED)


def is_busy(group: Group) -> bool:
    """Its waiting messages may be about to go somewhere."""
    return group.state is GroupState.RECOVERING or is_transferring(group) or has_decision(group)
