"""Checks of a lane's memory by walking through all of it: every counter and list against what it counts."""

from __future__ import annotations

from collections.abc import Iterator

from dispatcher.core.bounds import UNCONFIRMED_BYTES_MAX, UNCONFIRMED_MAX
from dispatcher.core.consumer_life import RECEIVING, ConsumerState
from dispatcher.core.lane import Lane
from dispatcher.core.model import Consumer, Group, GroupState, MessageState, Original
from dispatcher.core.operators.flags import awaits_operator
from dispatcher.core.optional.poison import Suspects
from dispatcher.core.state import LaneState
from dispatcher.core.waiting import backlog_of, count_waiting


def held_of(state: LaneState) -> Iterator[Original]:
    """Everything that waits here, by where it waits."""
    for group in state.groups.values():
        for backlog in (group.backlogs or {}).values():
            yield from (m for m in backlog.messages if m.state is MessageState.WAITING)
    for inbound in state.inbounds:
        yield from (m for m in inbound.ungrouped.messages if m.state is MessageState.WAITING)
    yield from (m for m in state.suspects if backlog_of(state, m) is None)


def messages_of(lane: Lane) -> list[Original]:
    """Every message that is not over: held, in flight, ending."""
    state = lane.state
    out = [m for consumer in state.by_uuid.values() for m in consumer.in_flight.values()]
    return [*held_of(state), *out, *state.ending]


def check_memory(lane: Lane, *, in_order: bool) -> None:
    """Raises AssertionError with what does not fit. Not `in_order`: Redis has forgotten what was settled."""
    state = lane.state
    _check_counters(lane)
    for consumer in state.by_uuid.values():
        _check_consumer(state, consumer)
    for group in state.groups.values():
        _check_group(state, group)
    if in_order:
        _check_order(state)
    if not state.eligibility.is_suspended(state.now_ms) and not _window_is_full(state):
        _check_nothing_eligible(state)


def _window_is_full(state: LaneState) -> bool:
    return state.unconfirmed >= UNCONFIRMED_MAX or state.unconfirmed_bytes >= UNCONFIRMED_BYTES_MAX


def _check_counters(lane: Lane) -> None:
    state = lane.state
    here = [m for m in messages_of(lane) if m.tag]
    for inbound in state.inbounds:
        ours = [m for m in here if m.inbound == inbound.index]
        assert inbound.unacked == len(ours), f"unacked {inbound.unacked}, not {len(ours)}"
        waiting = sum(m.state is MessageState.WAITING for m in ours)
        assert inbound.waiting == waiting, f"waiting {inbound.waiting}, not {waiting}"
        out = sum(m.state is MessageState.IN_FLIGHT for m in ours)
        assert inbound.in_flight == out, f"in flight {inbound.in_flight}, not {out}"
    assert state.bytes_held == sum(m.footprint for m in here)
    assert state.unconfirmed >= 0
    assert state.unconfirmed_bytes >= 0
    assert all(m.state is MessageState.ENDING for m in state.ending)
    for message in state.revoked:
        assert message.state is MessageState.WAITING, f"{message} was taken back and does not wait"


def _check_consumer(state: LaneState, consumer: Consumer) -> None:
    assert consumer.credit == consumer.prefetch - len(consumer.in_flight), f"credit of {consumer}"
    for seq, message in consumer.in_flight.items():
        assert message.seq == seq < consumer.next_seq
        assert message.consumer is consumer, f"{message} is in flight at two consumers"
        assert message.state is MessageState.IN_FLIGHT, f"{message} is in flight at {consumer}"
    if consumer.alone_with in consumer.in_flight.values():
        assert len(consumer.in_flight) == 1, f"{consumer} has more than the suspect"
    assert consumer.drained == (consumer.id in state.drained_consumers)
    is_free = consumer.credit > 0 and consumer.alone_with is None and not consumer.drained
    available = consumer.state is ConsumerState.LIVE and is_free
    assert (consumer in state.pool) == available, f"{consumer} in the pool"
    for group in consumer.groups:
        assert group.owner is consumer
    assert state.by_id[consumer.id] is consumer
    assert state.by_number[consumer.number] is consumer
    assert state.by_queue[consumer.queue] is consumer
    assert consumer.state is not ConsumerState.REVOKED


def _check_group(state: LaneState, group: Group) -> None:
    assert state.groups[group.id] is group
    out = [m for c in state.by_uuid.values() for m in c.in_flight.values() if m.group is group]
    assert group.in_flight == len(out), f"{group} has {len(out)} in flight"
    if group.owner is not None:
        assert group in group.owner.groups, f"{group} has an owner that does not know it"
        assert state.by_uuid.get(group.owner.uuid) is group.owner, f"{group} belongs to one who is over"
    match group.state:
        case GroupState.FREE:
            assert group.owner is None
            assert not out, f"{group} is free"
            assert count_waiting(group) or group.flags, f"{group} should have been forgotten"
        case GroupState.RECOVERING:
            assert group.owner is None
            assert group.unresolved
        case GroupState.OWNED:
            assert group.owner is not None
            assert state.policy.keeps_owner or out
            assert {m.consumer for m in out} <= {group.owner}, f"{group} is out at several"
        case GroupState.BATCHED | GroupState.DRAINING:
            assert out, f"{group} waits for nothing"
    if group.state is not GroupState.RECOVERING:
        assert not group.unresolved


def _check_order(state: LaneState) -> None:
    """Backlogs are in their queue's order, and nothing that waits is older than what is out."""
    for group in state.groups.values():
        for index, backlog in (group.backlogs or {}).items():
            held = [m for m in backlog.messages if m.state is MessageState.WAITING]
            for group_id in {message.group_id for message in held}:  # a bucket promises no order between ids
                tags = [message.tag for message in held if message.group_id == group_id]
                assert tags == sorted(tags), f"backlog of {group} is out of order"
            oldest: dict[bytes | None, int] = {}  # by id: a bucket may have been made of others since
            for message in backlog.messages:
                if message.state is MessageState.WAITING:
                    oldest.setdefault(message.group_id, message.tag)
            for consumer in state.by_uuid.values():
                for m in consumer.in_flight.values():
                    if m.group is group and m.inbound == index and m.group_id in oldest:
                        assert m.tag < oldest[m.group_id], f"{group} has handed over something newer"


def _check_nothing_eligible(state: LaneState) -> None:
    """After the delivery pass nothing is left that could go (liveness, step by step)."""
    free = len(state.pool)
    if state.eligibility.is_suspended(state.now_ms):
        return
    for inbound in state.inbounds:
        assert inbound.head() is None
        if free:
            assert not [m for m in inbound.ungrouped.messages if m.state is MessageState.WAITING], (
                "ungrouped wait"
            )
    for group in state.groups.values():
        assert not count_waiting(group) or state.explanation.why(group), (
            f"{group} waits, and nothing holds it"
        )
        if not count_waiting(group) or _is_suspect(state, group) or awaits_operator(state, group):
            continue
        if group.state is GroupState.FREE and group.taker is not None:
            taker = group.taker
            receives = taker.state in RECEIVING and taker.alone_with is None
            assert taker.credit <= 0 or not receives, f"{group} is pinned, and waits for nothing"
        elif group.state is GroupState.FREE:
            assert not free, f"{group} is free, waits, and there is a consumer"
        if group.state is GroupState.OWNED:
            assert group.owner is not None
            owner = group.owner
            receives = owner.state in RECEIVING and owner.alone_with is None
            assert not owner.drained, f"{group} stays with a drained consumer"
            assert owner.credit <= 0 or not receives, f"{group} waits for nothing"
    _check_suspects(state)


def _is_suspect(state: LaneState, group: Group) -> bool:
    """One of its backlogs waits until its first message can go alone."""
    suspects = state.find(Suspects)
    assert suspects is not None
    heads = [backlog.head() for backlog in (group.backlogs or {}).values()]
    return any(head is not None and head.attempt >= suspects.suspect_after for head in heads)


def _check_suspects(state: LaneState) -> None:
    live = [c for c in state.by_uuid.values() if c.is_open]
    alone = [c for c in state.by_uuid.values() if c.alone_with is not None]
    empty = [c for c in live if c.alone_with is None and not c.in_flight]
    if empty and len(alone) < max(1, len(live) // 2):
        for message in state.suspects:
            backlog = backlog_of(state, message)
            free = backlog is None or (backlog.group.state is GroupState.FREE and backlog.group.taker is None)
            assert not free, f"{message} could be tried alone at {empty[0]}"
