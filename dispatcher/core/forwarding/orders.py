"""Orders about the queues of hand-over consumers; `effects` has the union."""

from __future__ import annotations

from typing import Any, NamedTuple


class ReclaimedCopy:
    """A message that was read back from a queue that it had been handed over to.

    `content` is opaque to the core: what the edge publishes.
    """

    __slots__ = (
        "attempt", "content", "deadline_at_ms", "fingerprint", "group", "incarnation", "origin", "queue",
        "refusal", "seq", "size", "tag",
    )  # fmt: skip

    def __init__(
        self,
        queue: str,
        tag: int,
        seq: int,
        group: bytes | None,
        attempt: int,
        fingerprint: bytes,
        content: Any,
        size: int,
        deadline_at_ms: int | None = None,
        refusal: str | None = None,
        origin: str = "",
    ) -> None:
        self.queue = queue  # that it was read from
        self.tag = tag  # of its delivery there
        self.seq = seq
        self.group = group  # None: it has none
        self.attempt = attempt  # hand-overs so far
        self.fingerprint = fingerprint  # of the original
        self.content = content
        self.size = size
        self.deadline_at_ms = deadline_at_ms
        self.refusal = refusal  # why it goes to the dead queue, whatever it is
        self.origin = origin  # where it came in first; empty: it is none of ours
        self.incarnation = 0  # whose queue was read back; 0: it was rejected

    def __repr__(self) -> str:
        return f"<Handed {self.group!r} seq={self.seq} in {self.queue}>"


class InspectQueue(NamedTuple):
    """Ask for the readers and the length of this queue; answer with QueueInspected."""

    queue: str


class ReclaimQueue(NamedTuple):
    """Read this queue to its end as its only reader, and remain that; answer with QueueReclaimed or
    QueueInUse."""

    queue: str


class ReleaseQueue(NamedTuple):
    """Stop reading it; answer with QueueReleased, after RabbitMQ has processed all acks. Unacked messages are
    ready again, in their places."""

    queue: str


class ForwardReclaimed(NamedTuple):
    """Publish a reclaimed message to another consumer's queue; answer with ReclaimedForwarded."""

    handed: ReclaimedCopy
    incarnation: int  # the other consumer's
    queue: str
    seq: int
    group_seq: int  # 0: ungrouped
    epoch: int
    attempt: int
    first: bool


class DeadLetterReclaimed(NamedTuple):
    """Publish a reclaimed message to the dead queue; answer with ReclaimedForwarded."""

    handed: ReclaimedCopy
    reason: str


class AckReclaimed(NamedTuple):
    """Its next queue has it, or it is a repeated one: ack it where it was read."""

    handed: ReclaimedCopy


ForwardingAction = (
    InspectQueue | ReclaimQueue | ReleaseQueue | ForwardReclaimed | DeadLetterReclaimed | AckReclaimed
)
