"""What operators see of parking, as plain values. `views` shows it; it changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from dispatcher.core.holds import Facts, HoldKind
from dispatcher.core.model import Group, Original
from dispatcher.core.state import LaneState


def parking_status(state: LaneState) -> dict[str, Any]:
    """The lane's parking queues, for `dispatcher status`."""
    rows = [
        {
            "queue": queue.name,
            "consumer": queue.consumer or None,
            "groups": len(queue.members),
            "parked": queue.originals,
            "problem": queue.problem,
        }
        for queue in state.parking.values()
    ]
    originals = sum(queue.originals for queue in state.parking.values())
    return {
        "parked": originals,
        "parking": rows,
        "parking_queues": len(rows),
        "parking_unavailable": sum(row["problem"] is not None for row in rows),
        "parked_groups": sum(len(queue.members) for queue in state.parking.values()),
        "parked_lost": state.counters["parked_lost"],
    }


def group_row(state: LaneState, group: Group) -> dict[str, Any]:
    """How many of its messages are parked, for its row."""
    return {"parked": state.parking.parked(group)}


def message_row(state: LaneState, message: Original) -> dict[str, Any]:
    """The parking queue that the message's original is in; None: it is in none."""
    queue = state.parking.get(message.queue)
    return {"parked_in": queue.name if queue is not None else None}


def details(state: LaneState, group: Group) -> list[str]:
    """Where the group's messages are parked, and whether more can be, a line each."""
    lines = [
        f"parked: {queue.members.get(group.id, 0)} of its messages are in {queue.name}, "
        "those in flight included; what arrives of it goes there too"
        for queue in (state.parking[index] for index in state.parking.route(group))
    ]
    if state.parking.at_bound:
        lines.append(f"no parking queue is free ({len(state.parking)} in use): no other group can be parked")
    return lines


def count_elsewhere(state: LaneState, group: Group, here: list[Original]) -> int:
    """Originals of the group that wait in parking queues, and those on their way there; `here`: its messages
    that are in a backlog or in flight."""
    read = sum(message.is_parked for message in here)
    queues = [state.parking[index] for index in state.parking.route(group)]
    on_their_way = [m for queue in queues for m in (*queue.waiting, *queue.published.values())]
    count = sum(state.group_map.order_key(message) == group.id for message in on_their_way)
    return max(0, state.parking.parked(group) - read) + count


def _parked(facts: Facts) -> str:
    return f"Nothing blocks it: its messages are read from {', '.join(facts['queues'])}, in their turn."


def _parking_unavailable(facts: Facts) -> str:
    queues = "; ".join(f"{queue} ({problem})" for queue, problem in facts["queues"].items())
    return f"RabbitMQ can't open its parking queue: {queues}. Waits until it can."


SENTENCES: Final[dict[HoldKind, Callable[[Facts], str]]] = {
    HoldKind.PARKED: _parked,
    HoldKind.PARKING_UNAVAILABLE: _parking_unavailable,
}
