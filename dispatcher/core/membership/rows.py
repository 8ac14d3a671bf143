"""What Redis keeps of incarnations, and who ends one that would go on."""

from __future__ import annotations

from enum import Enum

from dispatcher.core.model import Consumer, ConsumerState
from dispatcher.core.state import LaneState
from dispatcher.core.tables import IncarnationRow


class EvictedBy(Enum):
    """Who ends an incarnation that would go on."""

    OPERATOR = "operator"
    ACK_TIMEOUT = "ack_timeout"
    FORMER_LEADER = "a former dispatcher"  # for any reason
    HANDOVER = "handover"  # the lane has, or has no more, consumers that only read their queues

    @property
    def is_meant(self) -> bool:
        """Whether that says nothing of the messages that the incarnation had."""
        return self is not EvictedBy.ACK_TIMEOUT

    @property
    def is_no_death(self) -> bool:
        """Whether it counts as no death for any message (C-9)."""
        return self in (EvictedBy.OPERATOR, EvictedBy.HANDOVER)


def incarnation_row(consumer: Consumer) -> IncarnationRow:
    """What Redis keeps of it."""
    state = "leaving" if consumer.resumes_as is ConsumerState.LEAVING else "live"
    if consumer.evicted_by is not None:
        state = "evicted"
    if consumer.state is ConsumerState.REVOKED:
        state = "taken"
    return IncarnationRow(consumer.id, consumer.uuid, consumer.queue, consumer.n, consumer.prefetch, state)


def keep_row(state: LaneState, consumer: Consumer) -> None:
    """Commit it."""
    state.effects.incarnations[consumer.number] = incarnation_row(consumer)
