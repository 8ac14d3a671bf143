"""`rebalance --reset`: every group loses its owner, some in each step, so that the lane goes on meanwhile.

One decision all the same: a row beside the operators' flags (`reset` {until}), committed with the command,
says which owners (those of epochs up to this one) it still means. A leader that finds it takes them for gone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from dispatcher.core.bounds import RESET_PER_STEP
from dispatcher.core.effects import Effects
from dispatcher.core.feature import Feature
from dispatcher.core.model import Consumer, Group
from dispatcher.core.operators.flags import is_movable
from dispatcher.core.ownership import close
from dispatcher.core.state import LaneState
from dispatcher.core.tables import OwnerRow

RESET: Final = b"reset"


class OwnerReset(Feature):
    """The one that is under way, if any."""

    def __init__(self, state: LaneState, rows: dict[bytes, dict[str, Any]]) -> None:
        self._state = state
        self.at_once = RESET_PER_STEP  # so many groups move in a step
        self._left: deque[tuple[Consumer, list[Group]]] = deque()  # the last ones of each list first
        self._move: Callable[[Group], None] = partial(close, state)
        state.reset_until = rows.get(RESET, {}).get("until")
        if state.reset_until is not None:
            state.signals.disowning.append(self._means)

    def _means(self, row: OwnerRow) -> bool:
        """A former leader has begun it, and this owner is one of those that go."""
        until = self._state.reset_until
        return until is not None and row.epoch <= until

    def add_rows(self, effects: Effects) -> None:
        row = self._row()
        if row is not None:
            effects.operator_rows[RESET] = row

    def count(self) -> int:
        """How many groups one would move now. O(groups that operators or moves hold)."""
        state = self._state
        held = {group for group in state.groups_with_flags if not is_movable(group)}
        held |= {
            message.group
            for consumer in state.by_uuid.values()
            for message in consumer.in_flight.values()
            if message.group is not None and not is_movable(message.group)
        }
        owned = sum(len(consumer.groups) for consumer in state.by_uuid.values())
        return owned - sum(group.owner is not None for group in held)

    def scope(self) -> Iterator[Group]:
        """The groups that one would move now."""
        consumers = self._state.by_uuid.values()
        return (group for consumer in consumers for group in consumer.groups if is_movable(group))

    def start(self, move: Callable[[Group], None]) -> None:
        """Move all of them in this way: the first ones now."""
        state = self._state
        self._left = deque((consumer, list(consumer.groups)) for consumer in state.by_uuid.values())
        self._move = move
        state.reset_until = state.epoch_counter
        self.before_pass()
        row = self._row()
        self.pending = (row is not None,)
        if row is not None:
            state.effects.operator_rows[RESET] = row

    def before_pass(self) -> None:
        """Move some more; say so when none is left, here and in Redis."""
        state = self._state
        if state.reset_until is None:
            self.pending = (False,)
            return
        looked_at = 0
        while self._left and looked_at < self.at_once:
            consumer, groups = self._left.popleft()
            if not groups:
                continue
            self._left.append((consumer, groups))  # the next one of another: else new groups all went to this
            looked_at += 1
            group = groups.pop()
            if group.owner is consumer and is_movable(group):
                self._move(group)
        if not self._left and not state.stale_owners:
            state.reset_until = None
            state.effects.operator_rows[RESET] = None

    def next_deadline_ms(self) -> int | None:
        return self._state.now_ms + 1 if self._state.reset_until is not None else None

    def _row(self) -> dict[str, Any] | None:
        """What Redis should hold of it. Owners that are written again have the present epoch at most."""
        state = self._state
        return {"until": state.epoch_counter} if state.reset_until is not None else None
