"""How many originals of an inbound queue may be here: as many as fit, at most the look-ahead.

RabbitMQ limits a consumer by messages only, so the window follows the mean size of messages. It begins small,
because the sizes are not known yet.
"""

from __future__ import annotations

from typing import Final

from dispatcher.core.bounds import STOPPED_WINDOW
from dispatcher.core.feature import Feature
from dispatcher.core.inbound import Inbound
from dispatcher.core.model import MessageState
from dispatcher.core.orders import SetWindow
from dispatcher.core.state import LaneState

#: How much a window grows at a time while redeliveries are awaited.
WIDENED_BY: Final = 8
#: No look-ahead is larger, so that whatever a former leader had is within so many.
WINDOW_MAX: Final = 60_000


class PrefetchWindows(Feature):
    """Fits the windows before each delivery pass."""

    def __init__(self, state: LaneState) -> None:
        self._state = state

    def before_pass(self) -> None:
        """Fit the windows of classic queues; at the byte budget fetch next to nothing until half is free.

        A queue that is to deliver the originals of open entries again is not stopped: their groups wait for
        them, and the messages of these groups would never become fewer. Nor does it stop at the look-ahead
        when that is full of messages that wait for them: a former leader with a larger one, or another group
        map, may have handed over messages behind it; or the acks of these originals have arrived, which only
        the end of the redeliveries says. A quorum queue's consumer must never be replaced.
        """
        state = self._state
        held_max = state.options.held_bytes_max
        for inbound in state.inbounds:
            if inbound.recovery is not None and (inbound.recovery.open or state.awaiting_decision):
                inbound.paused = False
                window = _wider(state, inbound)
            else:
                limit = held_max // 2 + 1 if inbound.paused else held_max
                inbound.paused = state.bytes_held >= limit
                window = STOPPED_WINDOW if inbound.paused else _best_window(state, inbound)
            if inbound.replaceable and window != inbound.window:
                inbound.window = window
                state.effects.actions.append(SetWindow(inbound.index, window))


def _wider(state: LaneState, inbound: Inbound) -> int:
    """A wider window once the present one is full of messages that others wait for."""
    if inbound.unacked < inbound.window:
        return inbound.window
    room = _free_places(state, inbound)
    if room <= 0 and _holds_up_its_own(state, inbound):
        room = WINDOW_MAX - inbound.unacked
    return max(inbound.window, min(WIDENED_BY * inbound.window, room))


def _holds_up_its_own(state: LaneState, inbound: Inbound) -> bool:
    """Something here waits for an original that this queue is still to deliver: for capacity, of which those
    take all there is, or behind it. Other ids of its bucket only: of its own id everything else is behind it.
    Or for an operator's verdict on one that is gone, which only the end of the redeliveries says.
    """
    assert inbound.recovery is not None
    if state.awaiting_decision:
        return True
    awaited = inbound.recovery.all_open()
    if not state.pool and any(message.state is MessageState.IN_FLIGHT for message in awaited):
        return True
    groups = (message.group for message in awaited)
    return any(
        group is not None and group.unresolved and inbound.index in (group.backlogs or ()) for group in groups
    )


def _best_window(state: LaneState, inbound: Inbound) -> int:
    """The present window, unless one of a quite different size would suit better: each change is a new
    consumer to RabbitMQ, which may get a whole window beside what the former ones left here."""
    window, mean = inbound.window, inbound.mean_bytes
    if window > state.options.look_ahead:  # it had to be wider for a recovery
        return max(STOPPED_WINDOW, _free_places(state, inbound))
    if not mean:
        return window
    held, own = state.bytes_held, window * mean
    room = state.options.held_bytes_max - held + (own if own < held else held)
    best = max(1, int(room * 3 / (4 * len(state.inbounds) * mean)))
    if 2 * best <= window:
        return best
    if best < 2 * window:
        return window
    widened = min(best, _free_places(state, inbound))
    return widened if widened >= 2 * window else window


def _free_places(state: LaneState, inbound: Inbound) -> int:
    return state.options.look_ahead - inbound.unacked
