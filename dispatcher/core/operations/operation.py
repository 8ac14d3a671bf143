"""One operation on the waiting messages of a group, from its command to its result."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from dispatcher.core.model import Group, Original
from dispatcher.core.operations.orders import Target
from dispatcher.core.parking.scan import ParkedScan
from dispatcher.core.queue_ids import QueueId
from dispatcher.wire.group_text import format_group

#: Key of an open operation's row among the flags, before its uuid.
OPERATION: Final = b"operation:"
#: In the journal only: before the uuid of the operation that sends a message away, in the place of a reason.
TRANSFERRED_BY: Final = "\0operation "
#: The same where it is purged: such an entry ends in the commit that begins it.
PURGED_BY: Final = "\0purge "
PURGE: Final = "purge"
MOVE: Final = "move"
REROUTE: Final = "reroute"


class Phase(Enum):
    """How far an operation has come. One without a target begins with its barrier and ends behind it."""

    OPENING = "opening"  # its target is looked for
    BARRIER = "barrier"  # its markers are under way
    SENDING = "sending"  # its scope goes to the target, or is purged; nothing else of the group moves


class Sent(Enum):
    """Where a message is on its way to the target."""

    BEFORE = "before"  # by a former leader; its original has not come back yet
    UNDER_WAY = "under way"  # published on this connection
    TAKEN = "taken"  # confirmed; it counts once all that were sent before it are answered, too


@dataclass(slots=True, eq=False)
class Operation:
    """One command that is open."""

    uuid: str
    kind: str
    group: Group
    first: int | None  # only so many messages, from the front
    dry_run: bool
    target: Target | None = None
    gone: int = 0  # that the target has, or that were purged one by one, under all leaders
    phase: Phase = Phase.BARRIER
    unmarked: set[QueueId] = field(default_factory=set)  # inbound queues whose marker has not come back
    seen: Any = None  # what those queues looked like …
    moved_at_ms: int = 0  # … and when they last looked otherwise
    scope: deque[Original] = field(default_factory=deque)  # messages that are still to go
    is_scoped: bool = False  # this leader's barrier is passed
    scan: ParkedScan | None = None  # from then on, if the group was parked
    is_trusted: bool = False  # the target has taken something: from now on many go at a time
    out: dict[Original, Sent] = field(default_factory=dict)  # in the order in which they are sent
    staying: list[Original] = field(default_factory=list)  # that the target did not take
    doubtful: int = 0  # of these, which it may have taken all the same
    problem: str | None = None  # why no more goes there

    @property
    def key(self) -> bytes:
        """Of its row."""
        return OPERATION + self.uuid.encode()

    @property
    def entry_reason(self) -> str:
        """The reason of its journal entries."""
        return (PURGED_BY if self.target is None else TRANSFERRED_BY) + self.uuid

    @property
    def left(self) -> int | None:
        """How many more may be taken; None: all."""
        return None if self.first is None else max(0, self.first - self.gone - len(self.out))

    @property
    def is_in_parts(self) -> bool:
        """Its messages are not all here at once, or were not under a former leader."""
        return self.target is not None or bool(self.group.route) or self.gone > 0

    def row(self) -> dict[str, Any]:
        """As Redis keeps it."""
        row: dict[str, Any] = {
            "kind": self.kind, "group": format_group(self.group.id), "first": self.first,
            "dry_run": self.dry_run,
        }  # fmt: skip
        if self.target is not None:
            row["target"] = list(self.target)
        if self.target is not None or self.gone:
            row["gone"] = self.gone
        return row

    @classmethod
    def of_row(cls, uuid: str, row: dict[str, Any], group: Group) -> Operation:
        """The opposite of `row`."""
        target = row.get("target")
        return cls(
            uuid, row["kind"], group, row["first"], row["dry_run"],
            target=Target(*target) if target is not None else None, gone=row.get("gone", 0),
        )  # fmt: skip

    def outcome(self) -> str:
        """The result of one that has failed."""
        if not self.gone and not self.doubtful:
            return "nothing was changed"
        verb = "were purged" if self.kind == PURGE else "went"
        text = f"{self.gone} of its messages {verb}, the rest stays in order"
        return text + (f"; {self.doubtful} of the rest may have gone as well" if self.doubtful else "")
