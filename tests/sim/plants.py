"""Bugs to plant: each changes the pieces of every new leadership, as a programmer could have got them wrong.

They live here only: the product has no switch for any of them.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dispatcher.core.effects import AckInbound, Dispatched, Taken
from dispatcher.core.entries import copy_of
from dispatcher.core.events import CopyRefused, MessagesArrived
from dispatcher.core.groups import GroupState
from dispatcher.protocol import Marker

Plant = Callable[[Any, Any, Any], None]  # (lane, session, store)
PLANTS: dict[str, Plant] = {}


def planted(plant: Plant) -> Plant:
    PLANTS[plant.__name__] = plant
    return plant


def _do_early(session: Any, kind: type) -> None:
    """Carry out actions of this kind when they are decided, before their commit."""
    commit = session._commit

    def early(effects: Any) -> None:
        session._outbox.perform([action for action in effects.actions if type(action) is kind])
        effects.actions = [action for action in effects.actions if type(action) is not kind]
        for feed in session._feeds:
            feed.flush_acks(session._clock.now_ms())
        commit(effects)

    session._commit = early


@planted
def inbound_acked_before_the_commit(lane: Any, session: Any, store: Any) -> None:
    _do_early(session, AckInbound)


@planted
def copies_published_before_the_commit(lane: Any, session: Any, store: Any) -> None:
    _do_early(session, Dispatched)


@planted
def control_acked_before_the_commit(lane: Any, session: Any, store: Any) -> None:
    commit = session._commit

    def early(effects: Any) -> None:
        read = session._control.take_read()
        session._control.ack(read)
        commit(effects)

    session._commit = early


@planted
def take_back_not_committed(lane: Any, session: Any, store: Any) -> None:
    take_backs = lane._membership._take_backs
    take_back = take_backs.take_back

    def silently(consumer: Any) -> None:
        take_back(consumer)
        effects = lane.state.effects
        effects.records[:] = [record for record in effects.records if type(record) is not Taken]
        effects.incarnations.pop(consumer.number, None)

    take_backs.take_back = silently


@planted
def redelivered_flag_ignored(lane: Any, session: Any, store: Any) -> None:
    claims = lane._recovery.claims

    def anything(inbound: Any, delivered: Any) -> bool:
        delivered.redelivered = True
        return bool(claims(inbound, delivered))

    lane._recovery.claims = anything


@planted
def matched_by_message_id_alone(lane: Any, session: Any, store: Any) -> None:
    arrived = lane._handlers[MessagesArrived]

    def by_id(event: Any) -> None:
        for message in event.messages:
            identity = message.content.properties.partition(b"id-")[2]
            if identity:
                message.fingerprint = hashlib.blake2b(identity, digest_size=16).digest()
        arrived(event)

    lane._handlers[MessagesArrived] = by_id


@planted
def numbers_go_on_from_what_redis_has(lane: Any, session: Any, store: Any) -> None:
    state = lane.state
    state.first_number = 1 << 20
    known = [row.epoch for row in store.snapshot.owners.values()]
    known += [message.epoch for consumer in state.by_uuid.values() for message in consumer.in_flight.values()]
    state.epoch_counter = max(known, default=1 << 20)
    for consumer in state.by_uuid.values():
        consumer.next_seq = max(consumer.in_flight, default=1 << 20) + 1
    lane._adoption.heard_of = lambda seq: None


@planted
def lane_epoch_not_checked(lane: Any, session: Any, store: Any) -> None:
    keys = store.world.redis.keys
    commit = type(keys).commit

    def unchecked(leader: bytes, before: bytes, ordinal: bytes, *rest: bytes) -> bytes:
        keys.meta[b"ordinal"] = before
        return commit(keys, keys.meta[b"leader"], before, ordinal, *rest)

    keys.commit = unchecked


@planted
def settle_of_a_stale_incarnation_obeyed(lane: Any, session: Any, store: Any) -> None:
    settle = lane._settlement.settle

    def for_whoever(event: Any) -> Any:
        present = lane.state.by_id.get(event.consumer)
        return settle(replace(event, incarnation=present.uuid) if present is not None else event)

    lane._settlement.settle = for_whoever


@planted
def dispatched_again_behind_newer_ones(lane: Any, session: Any, store: Any) -> None:
    take_backs = lane._membership._take_backs
    take_back = take_backs._return_messages

    def behind(consumer: Any, *rest: Any) -> Any:
        messages = list(consumer.in_flight.values())
        touched = take_back(consumer, *rest)
        for message in messages:
            if message.tag and message.group is not None:
                waiting = message.group.backlog(message.inbound).messages
                waiting.remove(message)
                waiting.append(message)
        return touched

    take_backs._return_messages = behind


@planted
def batch_released_one_early(lane: Any, session: Any, store: Any) -> None:
    over = lane._settlement._over

    def early(consumer: Any, message: Any) -> None:
        over(consumer, message)
        group = message.group
        if group is not None and group.in_flight == 1 and group.state is GroupState.BATCHED:
            lane.state.hand_over(group)

    lane._settlement._over = early


@planted
def blocked_queues_earn_credit(lane: Any, session: Any, store: Any) -> None:
    turns = lane._delivery._turns
    inbounds = lane.state.inbounds

    def generous() -> Any:
        while True:
            eligible = [i for i in inbounds if i.ready and i.head() is not None]
            if not eligible:
                return None
            for inbound in eligible:
                if inbound.deficit >= 1:
                    return inbound
            for inbound in inbounds:
                if inbound.waiting:
                    inbound.deficit += inbound.weight

    turns.pick = generous


@planted
def marker_of_an_earlier_connection_obeyed(lane: Any, session: Any, store: Any) -> None:
    membership = lane._membership

    def any_marker(marker: Any) -> None:
        consumer = lane.state.by_uuid.get(marker.incarnation)
        if consumer is not None and marker.lane_epoch == lane.state.lane_epoch:
            membership._take_back(consumer)

    lane._handlers[Marker] = any_marker


class _Forgetful(deque[Any]):
    def append(self, entry: Any) -> None:
        """Gone."""


@planted
def unproven_settled_entries_forgotten(lane: Any, session: Any, store: Any) -> None:
    for inbound in lane.state.inbounds:
        inbound.unproven = _Forgetful()


@planted
def group_goes_on_before_its_entries_are_resolved(lane: Any, session: Any, store: Any) -> None:
    groups = lane._groups
    for group in list(lane.state.groups.values()):
        if group.unresolved:
            group.unresolved = 0
            groups._resolve(group)


@planted
def sent_again_with_a_new_number(lane: Any, session: Any, store: Any) -> None:
    groups = lane._groups

    def renumbered(message: Any) -> None:
        consumer = message.consumer
        if consumer is not None and message.tag:
            del consumer.in_flight[message.seq]
            message.seq, consumer.next_seq = consumer.next_seq, consumer.next_seq + 1
            consumer.in_flight[message.seq] = message
            copy = copy_of(message, consumer)
            lane.state.unconfirmed += 1
            lane.state.unconfirmed_bytes += message.size
            lane.state.effects.records.append(copy)
            lane.state.effects.actions.append(copy)

    groups.send_again = renumbered


@planted
def returns_not_noticed(lane: Any, session: Any, store: Any) -> None:
    lane._membership.liveness.queue_gone = lambda queue: None


@planted
def a_death_counted_for_every_neighbour(lane: Any, session: Any, store: Any) -> None:
    suspects = lane._suspects

    def blames_all(consumer: Any) -> Any:
        guilty = [m for m in consumer.in_flight.values() if m.attempt > lane.state.suspect_after]
        suspects._let_go(consumer)
        return guilty[0] if guilty else None

    suspects.poison_of = blames_all
    suspects.offer = lambda: None
    lane.state.suspect_after = 1_000_000


@planted
def attempt_not_counted(lane: Any, session: Any, store: Any) -> None:
    take_backs = lane._membership._take_backs
    returned = take_backs._return_messages

    def forgiving(consumer: Any, *rest: Any) -> Any:
        for message in consumer.in_flight.values():
            message.attempt -= 1
        return returned(consumer, *rest)

    take_backs._return_messages = forgiving


@planted
def refused_copies_not_withdrawn(lane: Any, session: Any, store: Any) -> None:
    lane._handlers[CopyRefused] = lambda event: None
