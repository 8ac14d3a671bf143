"""A new leader takes over parking: queues, their members, the groups' routes."""

from __future__ import annotations

from dispatcher.core.model import Group
from dispatcher.core.parking.journal_replay import ParkingReplay
from dispatcher.core.parking.orders import (
    ANY_GROUP,
    GroupParked,
    ParkingQueueForgotten,
    ParkingQueueNamed,
    TermNeeded,
)
from dispatcher.core.parking.queue import ParkingQueue
from dispatcher.core.parking.relocation import Relocations
from dispatcher.core.queue_ids import QueueId, parking_place
from dispatcher.core.records import Record, SettledEntries
from dispatcher.core.state import LaneState


def add_queue(state: LaneState, index: QueueId, consumer: str) -> ParkingQueue:
    """A parking queue that the lane did not know of."""
    name = state.options.parking_queues[parking_place(index)]
    return state.parking.add(index, name, consumer, state.now_ms)


def load_queues(state: LaneState, parked: ParkingReplay, found: tuple[QueueId, ...]) -> None:
    """Take over the parking queues, before the entries that name them.

    `found` exist on the broker, after Redis had forgotten something: messages of any group may be in them.
    """
    for index in sorted({*parked.consumers, *found}):
        queue = add_queue(state, index, parked.consumers.get(index, ""))
        queue.terms_needed = parked.terms.get(index, {})
        queue.void_before = max(queue.terms_needed.values(), default=0)
        for arrival, copy in parked.journal.proven.get(index, ()):
            queue.remember(copy, arrival)
        for arrival, copy in parked.journal.unproven.get(index, {}).items():
            queue.remember(copy, arrival)
        _load_members(state, queue, parked)
    for index in found:
        state.parking[index].unknown = state.parking[index].redelivering = True
    state.parking.default_route = tuple(queue.index for queue in state.parking.values() if queue.unknown)


def _load_members(state: LaneState, queue: ParkingQueue, parked: ParkingReplay) -> None:
    """Which groups go there. A lane that grouped otherwise before had other groups: then any may."""
    grouped = state.policy.grouped
    for member in parked.routes.get(queue.index, ()):
        if grouped and member != ANY_GROUP and state.group_map.may_have(member):
            queue.members[member] = 0
        else:
            queue.unknown |= grouped
    for group_id, count in parked.counts.get(queue.index, {}).items():
        is_key = group_id in queue.members
        key = group_id if is_key or group_id is None or not grouped else state.key_of(group_id)
        if key in queue.members or (key is None and count > 0):
            queue.members[key] = queue.members.get(key, 0) + count
    for key, count in queue.members.items():
        queue.members[key] = max(0, count)  # some were read before their group was parked again
    since_ms = parked.since_ms.get(queue.index, {})
    queue.since_ms = {key: since_ms[key] for key in queue.members if key in since_ms}
    queue.originals = sum(queue.members.values())


def load_routes(state: LaneState) -> None:
    """Give the groups their routes, when groups, entries and owners are loaded."""
    parked: dict[Group, None] = {}
    for queue in state.parking.values():
        for key in queue.members:
            if key is not None:
                group = state.group_of_key(key)
                group.route = (*group.route, queue.index)
                parked[group] = None
    for group in parked:
        state.parking.refresh_demand(group)


def _since_ms(state: LaneState, queue: ParkingQueue) -> dict[bytes | None, int]:
    """Since when the oldest of each member waits, those that were read included: a new leader has not read
    them."""
    since_ms = dict(queue.since_ms)
    for message in queue.here.values():
        key = state.group_map.order_key(message)
        since_ms[key] = min(since_ms.get(key, message.waits_since_ms), message.waits_since_ms)
    return since_ms


def parking_records(state: LaneState) -> list[Record]:
    """All that is still true, for a checkpoint. In-flight entries of parked originals are not part."""
    resting = [index for index in state.parking.resting if state.parking.rests(index, state.now_ms)]
    records: list[Record] = [ParkingQueueForgotten(index) for index in resting]
    queues = state.parking.values()
    for queue in queues:
        records.append(ParkingQueueNamed(queue.index, queue.consumer))
        since_ms = _since_ms(state, queue)
        records += [
            GroupParked(key, queue.index, count, since_ms.get(key, 0)) for key, count in queue.members.items()
        ]
        if queue.unknown:
            records.append(GroupParked(ANY_GROUP, queue.index, 0))
        records += [TermNeeded(queue.index, copy, term) for copy, term in queue.terms_needed.items()]
        settled = tuple((arrival, copy) for copy, arrival in queue.settled.items())
        records.append(SettledEntries(queue.index, True, settled))
    for queue in queues:
        records += [Relocations.entry(message) for message in queue.relocating.values()]
    return records
