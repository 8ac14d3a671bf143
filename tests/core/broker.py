"""The broker of the tests of the core: inbound queues, the control queue, consumer queues, the dead queue.

It keeps what RabbitMQ keeps and promises no more: an inbound queue delivers again, in its order and
flagged, what was unacked when the connection ended; a consumer queue is gone with its connection.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from dispatcher.core.orders import SendNotice
from dispatcher.core.records import Dispatched


@dataclass(eq=False, slots=True)
class PublishedMessage:
    """A message that a producer published, and what has really become of it."""

    number: int  # counts up over all inbound queues
    inbound: int
    group: bytes | None
    fingerprint: bytes
    closing: bool = False
    refusal: str | None = None
    lifetime_ms: int | None = None
    size: int = 100
    cost: int = 1
    flagged: bool = False
    twin: bool = False  # equal to others in every byte: nothing is promised of which is which
    dead: bool = False  # the dead queue has it
    gone: bool = False  # others deleted it
    doubtful: bool = False  # nobody can know any more that it was settled: it may come again
    late: bool = False  # settled by one who was taken back: that counts only if Redis forgets the latter
    settles: list[tuple[str, int]] = field(default_factory=list)  # (uuid, position in control) that count
    handed_to: list[tuple[str, int]] = field(default_factory=list)  # (uuid, attempt) of every hand-over

    @property
    def settled(self) -> bool:
        return bool(self.settles) or self.dead

    @property
    def over(self) -> bool:
        return self.settled or self.gone

    def __repr__(self) -> str:
        group = "-" if self.group is None else self.group.decode()
        return f"<{group}#{self.number} of queue {self.inbound}>"


class Copy:
    """A copy on its way to a consumer, and the original that it was made from (for the checks only)."""

    __slots__ = ("attempt", "epoch", "fingerprint", "first", "group", "group_seq", "original", "seq")

    def __init__(self, sent: Dispatched, original: PublishedMessage) -> None:
        message = sent.message
        self.seq, self.group_seq, self.epoch = sent.seq, sent.group_seq, sent.epoch
        self.attempt, self.first = sent.attempt, sent.first
        self.group = message.group_id if sent.group_seq else None
        self.fingerprint = message.fingerprint
        self.original = original


@dataclass(slots=True)
class InboundQueue:
    """Originals in order; `delivered` are those unacked on the present connection, by tag."""

    originals: list[PublishedMessage] = field(default_factory=list)
    delivered: dict[int, PublishedMessage] = field(default_factory=dict)
    acked: list[PublishedMessage] = field(default_factory=list)
    last_tag: int = 0
    window: int | None = None  # of the present consumer; None: no limit
    fetched: set[int] = field(default_factory=set)  # tags that it got

    def ready(self) -> list[PublishedMessage]:
        out = set(self.delivered.values())
        return [original for original in self.originals if original not in out]

    def deliver(self) -> tuple[int, PublishedMessage] | None:
        ready = self.ready()
        if not ready or (
            self.window is not None and len(self.fetched & self.delivered.keys()) >= self.window
        ):
            return None
        self.last_tag += 1
        self.fetched.add(self.last_tag)
        self.delivered[self.last_tag] = ready[0]
        return self.last_tag, ready[0]

    def set_window(self, originals: int) -> None:
        """Another consumer takes the place of the present one; what is unacked stays so."""
        self.window = originals
        self.fetched.clear()

    def ack(self, tag: int) -> PublishedMessage:
        original = self.delivered.pop(tag)  # KeyError: an ack for an unknown tag would close the channel
        self.originals.remove(original)
        self.acked.append(original)
        return original

    def reset(self, *, flag_all: bool = False) -> None:
        """The connection is gone: everything unacked is back in its place."""
        for original in self.originals if flag_all else self.delivered.values():
            original.flagged = True
        self.delivered.clear()
        self.last_tag = 0
        self.window = None
        self.fetched.clear()

    def forget_acks(self, count: int) -> None:
        """A killed broker has not written its last acks: these messages are back where they were."""
        lost = self.acked[len(self.acked) - count :] if count else []
        del self.acked[len(self.acked) - count :]
        self.originals = sorted([*self.originals, *lost], key=lambda original: original.number)


@dataclass(slots=True)
class Broker:
    """All queues of one lane."""

    inbounds: list[InboundQueue]
    control: list[Any] = field(default_factory=list)  # everything ever published to it
    control_read: int = 0  # delivered to the present leader
    control_acked: int = 0
    consumer_queues: dict[str, deque[Copy | SendNotice]] = field(default_factory=dict)
    dead: list[tuple[PublishedMessage, str]] = field(default_factory=list)

    def to_consumer(self, queue: str, item: Copy | SendNotice) -> bool:
        """False: returned, there is no such queue."""
        if queue not in self.consumer_queues:
            return False
        self.consumer_queues[queue].append(item)
        return True

    def read_control(self, count: int) -> list[Any]:
        messages = self.control[self.control_read : self.control_read + count]
        self.control_read += len(messages)
        return messages

    def connection_lost(self) -> None:
        """The dispatcher's connection ended."""
        for inbound in self.inbounds:
            inbound.reset()
        self.control_read = self.control_acked

    def restart(self, lost_acks: list[int]) -> None:
        """Killed and started again: every connection is gone, the latest acks with them."""
        for inbound, count in zip(self.inbounds, lost_acks, strict=True):
            inbound.reset(flag_all=True)
            inbound.forget_acks(min(count, len(inbound.acked)))
            for original in inbound.originals:
                original.flagged = True
        self.consumer_queues.clear()
        self.control_read = self.control_acked
