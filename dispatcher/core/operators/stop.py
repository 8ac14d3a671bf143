"""Where a group has stopped, and what operators have decided about it (`retry.on_exhausted: stop`)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from dispatcher.core.holds import Facts
from dispatcher.core.model import Group
from dispatcher.core.queue_ids import QueueId
from dispatcher.core.wording import counted, times

_DECIDED: Final = {"skip": "skipped", "drop": "dropped"}


@dataclass(slots=True)
class Stop:
    """The message at which a group has stopped."""

    inbound: QueueId
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

    @classmethod
    def of_row(cls, row: dict[str, Any] | None) -> Stop | None:
        """The opposite of `row`; None: of a group that has not stopped."""
        if row is None:
            return None
        fields = dict(row)
        decision = fields.pop("verdict")
        fields |= {"fingerprint": bytes.fromhex(row["fingerprint"]), "arrival": tuple(row["arrival"])}
        return cls(**fields, decision=decision)


def stop_of(group: Group) -> Stop | None:
    """The message at which the group has stopped. It is one of the group's flags."""
    stop: Stop | None = group.flags.stop if group.flags is not None else None
    return stop


def is_undecided(group: Group) -> bool:
    """It has stopped, and operators have not decided what becomes of the message."""
    stop = stop_of(group)
    return stop is not None and stop.decision is None


def has_decision(group: Group) -> bool:
    """It has stopped, and what operators decided is to be done when the message is here."""
    stop = stop_of(group)
    return stop is not None and stop.decision is not None


def stop_facts(group: Group) -> Facts:
    """What `groups why` tells of it; nothing of a group that has not stopped."""
    stop = stop_of(group)
    if stop is None:
        return {}
    return {
        "failure": stop.reason, "attempt": stop.attempt, "calls": stop.calls, "consumer": stop.consumer,
        "decision": stop.decision,
    }  # fmt: skip


def one_at_a_time_sentence(facts: Facts) -> str:
    """What operators read of the messages behind one that is out."""
    messages = counted(facts["in_flight"], "message")
    at = f" at {facts['consumer']}" if facts["consumer"] is not None else ""
    return f"One message of a group is out at a time in this lane: waits until {messages}{at} is settled."


def stop_sentence(facts: Facts) -> str:
    """What operators read of it."""
    at = (
        f"{facts['failure']} (handed over {times(facts['attempt'])}, "
        f"{counted(facts['calls'], 'call')} of its handler, last by {facts['consumer']})"
    )
    if facts["decision"] is not None:
        decided = _DECIDED[facts["decision"]]
        return f"Stopped at a message that failed: {at}. To be {decided} when it is read."
    return f"Stopped at a message that failed: {at}, until `dispatcher dead release`, `skip` or `drop`."
