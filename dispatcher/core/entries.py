"""Journal entries of a message as it stands now."""

from __future__ import annotations

from dispatcher.core.model import Consumer, Original
from dispatcher.core.records import DeadLetterPending, Dispatched, OpenEntry


def copy_of(message: Original, consumer: Consumer) -> Dispatched:
    """The order to send a message again as it was sent before, to its consumer's present queue."""
    return Dispatched(
        message, consumer.number, consumer.queue, message.seq, message.group_seq, message.epoch,
        message.attempt, message.first,
    )  # fmt: skip


def open_entry(message: Original) -> OpenEntry:
    """The entry of a message that is in flight, or waits after it was taken back (then no consumer has
    it)."""
    return OpenEntry(
        message.queue, message.arrival, message.fingerprint,
        message.consumer.number if message.consumer is not None else 0, message.seq, message.group_id,
        message.group_seq, message.epoch, message.attempt, message.first,
    )  # fmt: skip


def ended_entry(message: Original, reason: str) -> DeadLetterPending:
    """The entry of a message that is on its way to the dead queue."""
    return DeadLetterPending(
        message.queue, message.arrival, message.fingerprint, message.group_id, message.attempt, reason,
        message.calls,
    )  # fmt: skip
