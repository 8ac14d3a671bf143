"""What one step decided, and what a new leader reads of the steps before.

A step's effects come in two parts. `records` and the tables are committed first, in one atomic write. Only
when that write is known to have happened are the `actions` carried out, in their order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dispatcher.core.orders import Action, LookUp
from dispatcher.core.queue_ids import QueueId
from dispatcher.core.records import Record
from dispatcher.core.tables import IncarnationRow, OwnerRow


class IdRange(NamedTuple):
    """Ids that entered the window at the same time, one behind the other, each of 16 bytes."""

    at_ms: int
    ids: bytes


@dataclass(slots=True)
class WindowChange:
    """What a commit does to the window of ids, and asks of it (dispatcher.core.optional.dedup)."""

    now_ms: int
    window_ms: int  # ids that entered earlier than that are forgotten
    ids_max: int  # beyond that the oldest are forgotten
    entered: list[IdRange] = field(default_factory=list)
    doubted: list[IdRange] = field(default_factory=list)  # fingerprints of repeats that count as new
    lookup: LookUp | None = None


@dataclass(slots=True)
class Effects:
    """All that one step decided."""

    records: list[Record] = field(default_factory=list)
    owners: dict[bytes, OwnerRow | None] = field(default_factory=dict)  # None: forget
    incarnations: dict[int, IncarnationRow | None] = field(default_factory=dict)
    commands: dict[str, dict[str, Any]] = field(default_factory=dict)  # uuid → recorded result
    #: What operators have set, by key: see operators/flag_commands.py, and operations that are open.
    operator_rows: dict[bytes, dict[str, Any] | None] = field(default_factory=dict)
    sequences: dict[bytes, int | None] = field(default_factory=dict)  # id of a group → its last number
    window: WindowChange | None = None  # of ids
    checkpoint: bool = False  # records begin with Reset: what the journal holds before may be trimmed
    actions: list[Action] = field(default_factory=list)
    repeated: list[tuple[QueueId, tuple[int, int]]] = field(default_factory=list)  # queue, arrival: dropped

    def needs_commit(self) -> bool:
        tables = self.owners or self.incarnations or self.commands or self.operator_rows
        return bool(self.records or tables or self.sequences or self.window)


@dataclass(slots=True)
class Snapshot:
    """What a new leader read from Redis, oldest record first.

    `complete` is False when Redis is not known to hold everything that was ever committed (empty,
    restarted or failed over since): then the consumers are asked before anything is dispatched.
    """

    lane_epoch: int
    complete: bool
    broker_restarted: bool
    records: list[Record] = field(default_factory=list)
    owners: dict[bytes, OwnerRow] = field(default_factory=dict)
    incarnations: dict[int, IncarnationRow] = field(default_factory=dict)
    commands: dict[str, dict[str, Any]] = field(default_factory=dict)
    operator_rows: dict[bytes, dict[str, Any]] = field(default_factory=dict)
    sequences: dict[bytes, int] = field(default_factory=dict)
    parking_found: tuple[QueueId, ...] = ()  # parking queues that exist; looked for only when not complete
    #: The journal's commits: the number of each, and how many of `records` are its.
    commits: list[tuple[int, int]] = field(default_factory=list)
