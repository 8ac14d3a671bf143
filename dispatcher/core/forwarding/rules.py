"""Which queues are of hand-over consumers, and when one may be read back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dispatcher.core.consumer_life import ConsumerState
from dispatcher.core.holds import Facts, HoldKind
from dispatcher.core.model import Consumer
from dispatcher.core.options import LaneOptions
from dispatcher.core.state import LaneState
from dispatcher.core.tables import IncarnationRow
from dispatcher.core.wording import begin, named

#: What a consumer that speaks the protocol hears.
NOBODY_JOINS: Final = (
    "this lane hands over to the consumers that its configuration names: no other consumer can join"
)


def is_forwarding_queue(options: LaneOptions, queue: str) -> bool:
    """Whether this is the queue of a hand-over consumer, in a lane that has such."""
    return bool(options.handover) and queue.startswith(options.handover_prefix)


def of_this_lane(options: LaneOptions, row: IncarnationRow) -> IncarnationRow:
    """An incarnation from before the lane's `handover` changed is ended."""
    was_handed_over = bool(options.handover_prefix) and row.queue.startswith(options.handover_prefix)
    return row if was_handed_over is bool(options.handover) else row._replace(state="evicted")


def receivers(state: LaneState, gone: Consumer | None = None) -> list[Consumer]:
    """The consumers that could get the messages of one that is gone."""
    live = ConsumerState.LIVE
    here = [c for c in state.by_uuid.values() if c.state is live and c.prefetch]
    return [c for c in here if c is not gone and not c.reclaiming]


def begin_reclaiming(state: LaneState, number: int) -> None:
    """The messages of this consumer's queue go to others before any other message of the lane."""
    state.reclaiming.add(number)
    state.lane_holds.put(HoldKind.READING_BACK, lambda: {"queues": len(state.reclaiming)})


def end_reclaiming(state: LaneState, number: int) -> None:
    """Nothing of that is left, or its consumer reads it itself; also if it never began."""
    state.reclaiming.discard(number)
    if not state.reclaiming:
        state.lane_holds.lift(HoldKind.READING_BACK)


def may_be_reclaimed(state: LaneState, consumer: Consumer) -> bool:
    """Another consumer could get the messages in its queue, no original is still to come back from an inbound
    queue, and no other queue is being read back: a group may have messages in both."""
    others = state.reclaiming - {consumer.number}
    return not others and not state.absent.some_may_come() and bool(receivers(state, consumer))


def _unread(facts: Facts) -> str:
    if facts["read_back"]:
        return f"{facts['queue']} has no reader: its messages go to others first."
    return begin(
        f"{named(facts)} does not read {facts['queue']}: waits for it, or for another one to take over."
    )


#: What operators read when such a queue holds something.
SENTENCES: Final[dict[HoldKind, Callable[[Facts], str]]] = {
    HoldKind.READING_BACK: lambda _: (
        "Messages from the queue of a hand-over consumer that is gone go to others first."
    ),
    HoldKind.QUEUE_UNREAD: _unread,
}
