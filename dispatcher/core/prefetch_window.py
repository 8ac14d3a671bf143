"""How many originals of an inbound queue may be here: as many as fit, at most the look-ahead.

RabbitMQ limits a consumer by messages only, so the window follows the mean size of messages. It begins small,
because the sizes are not known yet.
"""

from __future__ import annotations

from dispatcher.core.bounds import STOPPED_WINDOW
from dispatcher.core.feature import Feature
from dispatcher.core.inbound import Inbound
from dispatcher.core.orders import SetWindow
from dispatcher.core.state import LaneState


class PrefetchWindows(Feature):
    """Fits the windows before each delivery pass."""

    def __init__(self, state: LaneState) -> None:
        self._state = state

    def before_pass(self) -> None:
        """Fit the windows of classic queues; at the byte budget fetch next to nothing until half is free.

        A queue that is to deliver originals again is not stopped while a recovery needs more of them. A
        quorum queue's consumer must never be replaced.
        """
        state = self._state
        held_max = state.options.held_bytes_max
        for inbound in state.inbounds:
            window: int | None = None if inbound.recovery is None else inbound.recovery.window(state, inbound)
            if window is not None:
                inbound.paused = False
            else:
                limit = held_max // 2 + 1 if inbound.paused else held_max
                inbound.paused = state.bytes_held >= limit
                window = STOPPED_WINDOW if inbound.paused else _best_window(state, inbound)
            if inbound.replaceable and window != inbound.window:
                inbound.window = window
                state.effects.actions.append(SetWindow(inbound.index, window))


def _best_window(state: LaneState, inbound: Inbound) -> int:
    """The present window, unless one of a quite different size would suit better: each change is a new
    consumer to RabbitMQ, which may get a whole window beside what the former ones left here."""
    window, mean = inbound.window, inbound.mean_bytes
    if window > state.options.look_ahead:  # it had to be wider for a recovery
        return max(STOPPED_WINDOW, free_places(state, inbound))
    if not mean:
        return window
    held, own = state.bytes_held, window * mean
    room = state.options.held_bytes_max - held + (own if own < held else held)
    best = max(1, int(room * 3 / (4 * len(state.inbounds) * mean)))
    if 2 * best <= window:
        return best
    if best < 2 * window or state.options.look_ahead < 2 * window:  # it is wide enough, or as wide as may be
        return window
    widened = min(best, free_places(state, inbound))
    return widened if widened >= 2 * window else window


def free_places(state: LaneState, inbound: Inbound) -> int:
    """How many more originals the look-ahead has room for; negative: there are too many."""
    return state.options.look_ahead - inbound.unacked
