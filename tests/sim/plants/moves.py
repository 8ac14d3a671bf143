"""Bugs to plant where operators send groups elsewhere."""

from __future__ import annotations

from typing import Any

from dispatcher.core.operations.events import TransferConfirmed
from dispatcher.core.operations.operations import Operations
from tests.sim.plants.planting import planted


@planted("moves", seed=4)
def gone_before_it_is_confirmed(lane: Any, session: Any, store: Any) -> None:
    """A moved message counts as gone when it is sent."""
    transfers = lane.state.features[Operations]._transfers
    send = transfers._send

    def hasty(operation: Any, message: Any) -> None:
        send(operation, message)
        transfers.confirmed(operation, TransferConfirmed(operation.uuid, message))

    transfers._send = hasty


@planted("moves", seed=4)
def sent_elsewhere_backwards(lane: Any, session: Any, store: Any) -> None:
    """A group is sent elsewhere from its end."""
    operations = lane.state.features[Operations]
    scope = operations._scope
    operations._scope = lambda operation: scope(operation)[::-1]


@planted("duplicates", "order", "moves", seed=152)
def group_goes_on_while_it_is_sent_elsewhere(lane: Any, session: Any, store: Any) -> None:
    """Messages that are being moved are handed over meanwhile."""
    lane.state.features[Operations]._transfers.hold = lambda operation: None
