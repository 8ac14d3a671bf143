"""Why a group waits, in one sentence for operators: what blocks the whole lane first, then its own causes."""

from __future__ import annotations

from itertools import islice
from typing import Final

from dispatcher.core.bounds import NEVER_MS
from dispatcher.core.model import RECEIVING, Consumer, ConsumerState, Group, GroupState, Message
from dispatcher.core.operators.flags import Stop, flags_of
from dispatcher.core.optional.sequence_hold import SequenceHold
from dispatcher.core.optional.start_gate import live_consumers
from dispatcher.core.state import LaneState

UNDELIVERABLE_SHOWN: Final = 5
HOLDERS_SHOWN: Final = 5
_DECIDED: Final = {"skip": "skipped", "drop": "dropped"}


def verdict(state: LaneState, group: Group, waiting: list[Message], out: list[Message]) -> str:
    """What the group waits for; `waiting` and `out` are its messages here and in flight, in order."""
    return (
        _of_lane(state)
        or _of_recovery(group)
        or _of_flags(state, group, waiting)
        or _of_owner(group.owner)
        or _of_suspects(state, group, waiting)
        or _of_group(state, group, waiting, out)
        or _of_gap(state, group)
        or _of_capacity(state, group)
        or _of_parking(state, group, waiting)
        or "Nothing blocks it: its turn comes with the next step."
    )


def undeliverable(state: LaneState, group: Group) -> list[str]:
    """The first messages of the group that RabbitMQ does not even take for the dead queue, a line each."""
    of_group = ((m, problem) for m, problem in state.undeliverable.items() if m.group_id == group.id)
    return [
        f"undeliverable: message {m.arrival[0]}.{m.arrival[1]} of {m.size} bytes ({state.ending[m]}): "
        f"the dead queue does not take it ({problem}); it stays in {state.inbounds[m.inbound].name} "
        "and is tried again"
        for m, problem in islice(of_group, UNDELIVERABLE_SHOWN)
    ]


def parking(state: LaneState, group: Group) -> list[str]:
    """Where the group's messages are parked, and whether more can be, a line each."""
    queues = [state.parking[index] for index in state.parking.route(group)]
    lines = [
        f"parked: {queue.members.get(group.id, 0)} of its messages are in {queue.name}, "
        "those in flight included; what arrives of it goes there too"
        for queue in queues
    ]
    if state.parking.at_bound:
        lines.append(f"all {len(state.parking)} parking queues are in use: no other group can be parked")
    return lines


def _of_parking(state: LaneState, group: Group, waiting: list[Message]) -> str | None:
    if waiting or not state.parking.parked(group):
        return None
    names = ", ".join(state.parking[index].name for index in state.parking.route(group))
    return f"Nothing blocks it: its messages are read from {names}, in their turn."


def _of_lane(state: LaneState) -> str | None:
    if state.publishers_blocked:
        return "RabbitMQ blocks publishers: it is short of memory or disk."
    if state.reclaiming:
        return "What was in the queue of a hand-over consumer that is gone goes to others first."
    if state.is_paused:
        return "The lane is paused by an operator, until `dispatcher groups resume --all`."
    if state.now_ms < state.suspended_until_ms:
        left_ms = state.suspended_until_ms - state.now_ms
        return f"Redis may have forgotten what was out: waiting {left_ms} ms more for the consumers' word."
    if state.is_quiescing:
        return _of_settling(state)
    if state.now_ms < state.begins_at_ms < NEVER_MS:
        left_ms = state.begins_at_ms - state.now_ms
        here, wanted = live_consumers(state), state.options.start_consumers
        of_wanted = f", {here} of {wanted} consumers are here" if wanted else ""
        return f"The lane has not begun{of_wanted}: it begins in {left_ms} ms at the latest."
    return None


def _of_settling(state: LaneState) -> str:
    holders = [consumer for consumer in state.by_uuid.values() if consumer.in_flight]
    count = sum(len(consumer.in_flight) for consumer in holders)
    names = ", ".join(f"{c.id} has {len(c.in_flight)}" for c in holders[:HOLDERS_SHOWN])
    return f"A rebalance holds the lane until {count} in flight are settled: {names}."


def _of_flags(state: LaneState, group: Group, waiting: list[Message]) -> str | None:
    flags = flags_of(group)
    if flags is None or not (waiting or state.parking.parked(group)):
        return None
    if flags.transferring:
        return f"The operation {flags.operation} sends it away: what stays waits until that is done."
    if flags.stop is not None:
        return _of_stop(flags.stop)
    if flags.paused:
        return "Paused by an operator, until `dispatcher groups resume`."
    if group.owner is not None or flags.pin is None:
        return None
    consumer = group.pinned_to
    if consumer is None:
        return f"Pinned to {flags.pin}, which is not there."
    if consumer.drained or consumer.state not in RECEIVING:
        return f"Pinned to {flags.pin}, which is {'drained' if consumer.drained else consumer.state.value}."
    if consumer.credit <= 0:
        count = len(consumer.in_flight)
        return f"Pinned to {flags.pin}, which has {count} unsettled messages, its whole prefetch."
    return None


def _of_stop(stop: Stop) -> str:
    handed, calls = f"{stop.attempt} times", f"{stop.calls} calls"
    at = f"{stop.reason} (handed over {handed}, {calls} of its handler, last by {stop.consumer})"
    if stop.decision is not None:
        return f"Stopped at a message that failed: {at}. To be {_DECIDED[stop.decision]} when it is read."
    return f"Stopped at a message that failed: {at}, until `dispatcher dead release`, `skip` or `drop`."


def _of_gap(state: LaneState, group: Group) -> str | None:
    hold = state.find(SequenceHold)
    wait = hold.waited_for(group) if hold is not None else None
    if wait is None:
        return None
    left_ms = max(0, wait.until_ms - state.now_ms)
    return (
        f"Its number {wait.due} has not come: waits for it {left_ms} ms more at most, "
        "or until `dispatcher groups resume`."
    )


def _of_recovery(group: Group) -> str | None:
    if group.state is GroupState.RECOVERING:
        return f"Recovering: {group.unresolved} of its messages have not come back from RabbitMQ yet."
    return None


def _of_unread(owner: Consumer) -> str:
    """A hand-over consumer that gets nothing now."""
    if owner.reclaiming:
        return f"Nobody reads {owner.queue}: what is in it goes to others first."
    if owner.state is ConsumerState.REFUSING:
        return f"The queue of its owner {owner.id} takes no more messages: waits until there is room."
    if owner.state is ConsumerState.EXPECTED:
        return f"Whether its owner {owner.id} reads {owner.queue} is being looked at."
    return f"Its owner {owner.id} does not read {owner.queue}: waits for it, or for another one to take over."


def _of_owner(owner: Consumer | None) -> str | None:
    if owner is None or owner.state in RECEIVING:
        return None
    if owner.depth is not None:
        return _of_unread(owner)
    if owner.evicted_by is not None:
        return f"Its owner {owner.id} is being evicted: waits until its last settles have been read."
    match owner.state:
        case ConsumerState.LOST | ConsumerState.MARKED:
            return f"Its owner {owner.id} lost its connection; its messages go to others unless it returns."
        case ConsumerState.EXPECTED:
            return f"Its owner {owner.id} has not been heard of since this dispatcher took over."
        case ConsumerState.REFUSING:
            return f"The queue of its owner {owner.id} takes no more messages: waits until there is room."
        case ConsumerState.LEAVING:
            return f"Its owner {owner.id} is leaving: waits until it has settled what it holds."
        case _:
            return f"Its owner {owner.id} is {owner.state.value}."


def _of_suspects(state: LaneState, group: Group, waiting: list[Message]) -> str | None:
    if not waiting:
        return None
    if waiting[0].attempt >= state.suspect_after:
        kept = [c for c in state.by_id.values() if c.alone_with is waiting[0]]
        where = f"consumer {kept[0].id} is" if kept else "a consumer is"
        return (
            f"{_what_became(state, waiting[0])}: it goes alone, as soon as {where} free of everything else."
        )
    owner = group.owner
    if owner is not None and owner.alone_with is not None:
        return f"Its owner {owner.id} gets nothing else while it tries a message that others died with."
    return None


def _what_became(state: LaneState, suspect: Message) -> str:
    if state.stops_failed:  # some of these may have been failures, of which it was released
        return f"Its first message was handed over {suspect.attempt} times in vain"
    return f"{suspect.attempt} consumers died while they had its first message"


def _of_group(state: LaneState, group: Group, waiting: list[Message], out: list[Message]) -> str | None:
    if not (waiting or state.parking.parked(group)):
        return _of_nothing(state, group, out)
    if group.state is GroupState.DRAINING:
        to = group.target.id if group.target is not None else "whoever is next"
        return f"Changing hands to {to}: waits until {group.in_flight} in flight are settled."
    if group.state is GroupState.BATCHED:
        holder = group.owner.id if group.owner is not None else "its consumer"
        return f"Sequenced: waits until {holder} has settled the {group.in_flight} messages of its batch."
    return None


def _of_nothing(state: LaneState, group: Group, out: list[Message]) -> str:
    if out:
        return f"Nothing waits; {len(out)} in flight."
    if undeliverable(state, group):
        return "Nothing waits but what RabbitMQ does not take."
    return "Nothing waits."


def _of_capacity(state: LaneState, group: Group) -> str | None:
    owner = group.owner
    if owner is not None and owner.credit <= 0:
        return f"Its owner {owner.id} has {len(owner.in_flight)} unsettled messages, its whole prefetch."
    if group.taker is None and not state.pool:
        drained = sum(consumer.drained for consumer in state.by_uuid.values())
        but = f" ({drained} of {len(state.by_uuid)} are drained)" if drained else ""
        return (
            f"No consumer has free capacity{but}." if state.by_uuid else "No consumer has joined this lane."
        )
    return None
