"""What must be done: orders from the core to the edges, as plain comparable values.

A step's effects come in two parts. `records` and the three tables are committed first, in one atomic
write. Only when that write is known to have happened are the `actions` carried out, in their order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dispatcher.core.forwarding.orders import ForwardingAction
from dispatcher.core.model import Message
from dispatcher.core.operations.orders import TargetAction
from dispatcher.core.parking.orders import ParkingAction, ParkingRecord

# --- records: the journal, in the order in which things were decided ------------------------------------


class JournalReset(NamedTuple):
    """Everything before this record is over: what follows repeats all that is still open."""


class Dispatched(NamedTuple):
    """An original was handed to a consumer. Also the order to publish its copy.

    The same (inbound, arrival) again replaces the earlier record: the message was taken back between.
    """

    message: Message  # the edge takes content and size from it, the journal inbound, arrival and fingerprint
    incarnation: int
    queue: str  # the consumer queue at the moment of the decision
    seq: int
    group_seq: int  # 0: ungrouped, no order check
    epoch: int
    attempt: int
    first: bool = False  # first of the group for this consumer since the group was assigned to it


class OpenEntry(NamedTuple):
    """A dispatched message as the journal keeps it (what `Dispatched` is after decoding)."""

    inbound: int  # UNKNOWN_INBOUND: only its consumer told us
    arrival: tuple[int, int]
    fingerprint: bytes
    incarnation: int  # 0: nobody has it (refused before any dispatch)
    seq: int
    group: bytes | None
    group_seq: int
    epoch: int
    attempt: int
    first: bool = False


class SettledRange(NamedTuple):
    """The incarnation's entries from first to last (inclusive) are settled; every number in it was open."""

    incarnation: int
    first: int
    last: int


class DeadLetterPending(NamedTuple):
    """The message goes to the dead queue for this reason; it stays open until its copy is confirmed."""

    inbound: int
    arrival: tuple[int, int]
    fingerprint: bytes
    group: bytes | None
    attempt: int
    reason: str
    calls: int = 0  # of its handler, if its consumer has failed it


class Discharged(NamedTuple):
    """The broker has the dead queue's copy: the original is settled."""

    inbound: int
    arrival: tuple[int, int]


class Vanished(NamedTuple):
    """The original is no longer in its queue: others deleted it, or it expired."""

    inbound: int
    arrival: tuple[int, int]


class IncarnationEnded(NamedTuple):
    """The incarnation is over; its open entries belong to nobody."""

    incarnation: int


class SettledEntries(NamedTuple):
    """Settled originals that a killed broker may deliver again: (arrival, fingerprint) in settle order."""

    inbound: int
    proven: bool
    entries: tuple[tuple[tuple[int, int], bytes], ...]


class ProvenAcks(NamedTuple):
    """The acks of the `count` longest settled unproven originals of this queue are on the broker."""

    inbound: int
    count: int  # type: ignore[assignment]  # a tuple has a method of that name, which nobody calls here


class NumbersUsed(NamedTuple):
    """This incarnation's seqs up to `highest` were used; for NOBODY, epochs.

    Part of every checkpoint, so that numbers don't go back even when the clock does.
    """

    incarnation: int
    highest: int


Record = (
    JournalReset | Dispatched | OpenEntry | SettledRange | DeadLetterPending
    | Discharged | Vanished | IncarnationEnded | SettledEntries | ProvenAcks | NumbersUsed | ParkingRecord
)  # fmt: skip
UNKNOWN_INBOUND = 255
#: In place of an incarnation's number: a message is in nobody's hands.
NOBODY = 0

# --- tables: small keyed state beside the journal ---------------------------------------------------------


class OwnerRow(NamedTuple):
    """Who a group belongs to under `exclusive`."""

    incarnation: int
    epoch: int


class IncarnationRow(NamedTuple):
    """One life of a consumer, as Redis keeps it under its number."""

    consumer: str
    uuid: str
    queue: str
    n: int
    prefetch: int
    state: str  # "live", "leaving", "evicted", "taken", or "taking": its queue is being read back


# --- actions: carried out after the commit, in order -------------------------------------------------------


class SendCopy(NamedTuple):
    """Publish a copy again: same incarnation, same seq, its present queue. Nothing is committed for it."""

    copy: Dispatched


class SendNotice(NamedTuple):
    """Publish a `dispatch.*` message to a consumer queue (mandatory)."""

    queue: str
    type: str
    body: dict[str, Any]


class PublishMarker(NamedTuple):
    """Publish a marker to the lane's own control queue; it comes back as the event `Marker`."""

    incarnation: str  # or what Evictions has for everybody
    n: int  # of its latest join: a marker for an earlier connection says nothing about this one


class PublishBarrier(NamedTuple):
    """Publish this command's marker to an inbound queue; it comes back as a `BarrierMark`."""

    inbound: int
    command: str


class AckInbound(NamedTuple):
    """These originals are settled: ack them. `message.tag` is never 0 here."""

    messages: list[Message]


class DeadLetter(NamedTuple):
    """Publish the original to the dead queue; answer with DeadLetterConfirmed when the broker has it."""

    message: Message
    reason: str


class Reply(NamedTuple):
    """Answer an operator's command."""

    token: Any
    result: dict[str, Any]
    error: str | None


class LogEvent(NamedTuple):
    """Something that an operator will look for in the log."""

    event: str
    fields: dict[str, Any]


class SetWindow(NamedTuple):
    """From now on fetch so many originals of this inbound queue at a time, beside those that are here."""

    inbound: int
    originals: int


class LookUp:
    """Which of these ids (each with its message's fingerprint) are in the window: asked with the step's
    commit. The action is to report `IdsLookedUp`.

    `known` is the answer, one byte for each: `1` if it is. None: Redis lost it with other writes.
    """

    __slots__ = ("ids", "known")

    def __init__(self, ids: list[tuple[bytes, bytes]]) -> None:
        self.ids = ids
        self.known: bytes | None = None


Action = (
    Dispatched | SendCopy | SendNotice | PublishMarker | PublishBarrier | AckInbound | DeadLetter | Reply
    | LogEvent | SetWindow | LookUp | ParkingAction | TargetAction | ForwardingAction
)  # fmt: skip


class IdRange(NamedTuple):
    """Ids that entered the window at the same time, one behind the other, each of 16 bytes."""

    at_ms: int
    ids: bytes


@dataclass(slots=True)
class WindowChange:
    """What a commit does to the window of ids, and asks of it (dispatcher.core.optional.dedup)."""

    now_ms: int
    window_ms: int  # what entered earlier than that is over
    ids_max: int  # beyond that the oldest are forgotten
    entered: list[IdRange] = field(default_factory=list)
    doubted: list[IdRange] = field(default_factory=list)  # fingerprints of what counts as new all the same
    lookup: LookUp | None = None


@dataclass(slots=True)
class Effects:
    """All that one step decided."""

    records: list[Record] = field(default_factory=list)
    owners: dict[bytes, OwnerRow | None] = field(default_factory=dict)  # None: forget
    incarnations: dict[int, IncarnationRow | None] = field(default_factory=dict)
    commands: dict[str, dict[str, Any]] = field(default_factory=dict)  # uuid → recorded result
    flags: dict[bytes, dict[str, Any] | None] = field(default_factory=dict)  # operators/flags.py
    sequences: dict[bytes, int | None] = field(default_factory=dict)  # id of a group → its last number
    window: WindowChange | None = None  # of ids
    checkpoint: bool = False  # records begin with Reset: what the journal holds before may be trimmed
    actions: list[Action] = field(default_factory=list)
    repeated: list[tuple[int, tuple[int, int]]] = field(default_factory=list)  # queue and arrival: dropped

    def needs_commit(self) -> bool:
        tables = self.owners or self.incarnations or self.commands or self.flags
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
    flags: dict[bytes, dict[str, Any]] = field(default_factory=dict)
    sequences: dict[bytes, int] = field(default_factory=dict)
    parking_found: tuple[int, ...] = ()  # parking queues that exist; looked for only when not complete
    #: The journal's commits: the number of each, and how many of `records` are its.
    commits: list[tuple[int, int]] = field(default_factory=list)
