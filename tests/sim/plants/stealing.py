"""Bugs in windows of groups, and in the take-over of groups that wait for room at their owner."""

from __future__ import annotations

from typing import Any

from dispatcher.core.optional.group_window import GroupWindows
from dispatcher.core.optional.work_stealing import WorkStealing
from dispatcher.core.ownership import change_owner, drain
from tests.sim.plants.planting import planted


def _stealing(lane: Any) -> Any:
    return lane.state.find(WorkStealing)


@planted("independence", seed=97)
def nobody_takes_over(lane: Any, session: Any, store: Any) -> None:
    """No group changes its owner, however long it waits for room there."""
    if (stealing := _stealing(lane)) is not None:
        stealing._steal = lambda **_: False


@planted("independence", seed=97)
def only_what_is_listed_last_waits(lane: Any, session: Any, store: Any) -> None:
    """Of the groups that wait for room at their owners one is forgotten at each look."""
    if (stealing := _stealing(lane)) is not None:
        waiting = stealing._waiting
        stealing._waiting = lambda: list(waiting())[1:]


@planted("overlap", "order", seed=13)
def what_is_out_moves_too(lane: Any, session: Any, store: Any) -> None:
    """A group of which something is out changes its owner as well."""
    if (stealing := _stealing(lane)) is None:
        return
    state = lane.state

    def everything() -> list[Any]:
        full = [c for c in state.by_uuid.values() if c.receives and not c.may_receive]
        return [group for consumer in full for group in consumer.groups if group.backlogs]

    def move(group: Any, taker: Any, since_ms: int) -> None:
        stealing._waits.pop(group)
        drain(state, group, taker)
        change_owner(state, group)

    stealing._waiting, stealing._move = everything, move


@planted("independence", seed=379)
def windows_never_fall(lane: Any, session: Any, store: Any) -> None:
    """A group that stands still keeps its window."""
    if (windows := lane.state.find(GroupWindows)) is not None:
        windows._look = lambda: None


@planted("independence", seed=9)
def windows_never_grow(lane: Any, session: Any, store: Any) -> None:
    """The window of a group that is settled quickly stays as it is."""
    if (windows := lane.state.find(GroupWindows)) is not None:
        adapt = windows._adapt

        def shrinking(group: Any, *others: Any) -> None:
            former = group.window
            adapt(group, *others)
            group.window = min(former, group.window)

        windows._adapt = shrinking
