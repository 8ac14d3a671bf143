"""Bugs to plant where a lane hands over to applications that only read a queue and ack."""

from __future__ import annotations

from typing import Any

from dispatcher.core.forwarding.events import CopiesStored, ReclaimedForwarded
from dispatcher.core.forwarding.forwarding import Forwarding
from dispatcher.core.forwarding.orders import ForwardReclaimed
from dispatcher.core.operations.events import TransferConfirmed
from dispatcher.core.operations.operations import Operations
from dispatcher.core.records import Dispatched
from tests.sim.plants.planting import planted


@planted("readings", seed=806)
def read_back_backwards(lane: Any, session: Any, store: Any) -> None:
    """Messages from the queue of a consumer that is gone go on in reverse order."""
    hand_over = lane.state.find(Forwarding)
    if hand_over is None:
        return
    hand_all_on = hand_over._hand_all_on

    def backwards(over: Any, messages: Any) -> None:
        for handed in messages:
            handed.seq = -handed.seq
        hand_all_on(over, messages)

    hand_over._hand_all_on = backwards


@planted("loss", seed=798)
def acked_in_its_queue_before_it_is_in_the_next(lane: Any, session: Any, store: Any) -> None:
    """A message that is read back counts as handed on when it is published."""
    take = lane.state.take_effects

    def hasty() -> Any:
        effects = take()
        for action in [action for action in effects.actions if type(action) is ForwardReclaimed]:
            session.report(ReclaimedForwarded(action.handed))
        return effects

    lane.state.take_effects = hasty


@planted("loss", seed=42)
def settled_before_it_is_stored(lane: Any, session: Any, store: Any) -> None:
    """A copy counts as stored when it is published."""
    take = lane.state.take_effects

    def hasty() -> Any:
        effects = take()
        if lane.state.options.handover:
            copies = [action for action in effects.actions if type(action) is Dispatched]
            for copy in copies:
                session.report(CopiesStored(copy.incarnation, [copy.seq]))
        return effects

    lane.state.take_effects = hasty


@planted("operations", seed=189)
def what_was_confirmed_before_is_left_out(lane: Any, session: Any, store: Any) -> None:
    """Where a lane hands over an operation does not wait for its markers."""
    operations = lane.state.features[Operations]
    if lane.state.options.handover:
        operations._raise_barrier = lambda operation: operation.unmarked.clear()


@planted("moves", seed=109)
def gone_from_a_reading_lane_before_it_is_confirmed(lane: Any, session: Any, store: Any) -> None:
    """In a hand-over lane a moved message counts as gone when it is sent."""
    transfers = lane.state.features[Operations]._transfers
    send = transfers._send

    def hasty(operation: Any, message: Any) -> None:
        send(operation, message)
        transfers.confirmed(operation, TransferConfirmed(operation.uuid, message))

    if lane.state.options.handover:
        transfers._send = hasty


@planted("operations", seed=265)
def purged_and_handed_over(lane: Any, session: Any, store: Any) -> None:
    """In a hand-over lane the first of the purged messages goes on all the same."""
    operations = lane.state.features[Operations]
    purge = operations._purge
    if lane.state.options.handover:
        operations._purge = lambda group, scope: purge(group, scope[1:])
