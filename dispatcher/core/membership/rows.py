"""What Redis keeps of incarnations."""

from __future__ import annotations

from dispatcher.core.consumer_life import ConsumerState
from dispatcher.core.model import Consumer
from dispatcher.core.state import LaneState
from dispatcher.core.tables import IncarnationRow


def incarnation_row(consumer: Consumer) -> IncarnationRow:
    """What Redis keeps of it."""
    state = "leaving" if consumer.resumes_as is ConsumerState.LEAVING else "live"
    if consumer.evicted_by is not None:
        state = "evicted"
    if consumer.state is ConsumerState.REVOKED:
        state = "taken"
    return IncarnationRow(
        consumer.id, consumer.uuid, consumer.queue, consumer.n, consumer.prefetch, state, consumer.user,
        consumer.bundle,
    )  # fmt: skip


def commit_incarnation(state: LaneState, consumer: Consumer) -> None:
    """Commit what the consumer is now."""
    state.effects.incarnations[consumer.number] = incarnation_row(consumer)
