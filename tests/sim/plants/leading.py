"""Bugs to plant into the work of every leader."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from dispatcher.core.entries import copy_of
from dispatcher.core.events import CopyRefused, MessagesArrived
from dispatcher.core.holds import HoldKind
from dispatcher.core.membership.ack_timeout import AckTimeout
from dispatcher.core.membership.lost_copies import LostCopies
from dispatcher.core.membership.membership import Membership
from dispatcher.core.model import GroupState
from dispatcher.core.operations.operations import Operations
from dispatcher.core.optional.dedup import Dedup
from dispatcher.core.optional.group_limit import GroupLimits
from dispatcher.core.optional.poison import REASON_POISON, Suspects
from dispatcher.core.orders import AckInbound
from dispatcher.core.ownership import change_owner
from dispatcher.core.records import Dispatched, IncarnationEnded
from dispatcher.core.recovery.matching import Recovery
from dispatcher.core.waiting import backlog_of
from dispatcher.wire.protocol import Marker, Settle
from tests.sim.plants.planting import planted


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


@planted("duplicates", seed=400)
def taken_for_new_when_delivered_again(lane: Any, session: Any, store: Any) -> None:
    """What a quorum queue delivers again on the open channel is taken for new."""
    commit = session._commit

    def commit_blindly(effects: Any) -> None:
        for feed in session._feeds:
            feed.delivered_again = lambda messages: None
        commit(effects)

    session._commit = commit_blindly


@planted("loss", seed=1)
def inbound_acked_before_the_commit(lane: Any, session: Any, store: Any) -> None:
    """An original is acked before the commit that says so."""
    _do_early(session, AckInbound)


@planted("duplicates", seed=1)
def copies_published_before_the_commit(lane: Any, session: Any, store: Any) -> None:
    """A copy is published before Redis has answered the commit."""
    _do_early(session, Dispatched)


@planted("duplicates", seed=1330)
def control_acked_before_the_commit(lane: Any, session: Any, store: Any) -> None:
    """A settle is acked in the control queue before it is committed."""
    commit = session._commit

    def early(effects: Any) -> None:
        read = session._control.take_read()
        session._control.ack(read)
        commit(effects)

    session._commit = early


@planted("duplicates", seed=2)
def take_back_not_committed(lane: Any, session: Any, store: Any) -> None:
    """An incarnation is taken back, and that is not committed."""
    revocation = lane.state.feature(Membership)._revocation
    take_back = revocation.revoke

    def silently(consumer: Any) -> None:
        take_back(consumer)
        effects = lane.state.effects
        effects.records[:] = [record for record in effects.records if type(record) is not IncarnationEnded]
        effects.incarnations.pop(consumer.number, None)

    revocation.revoke = silently


@planted("loss", seed=43)
def redelivered_flag_ignored(lane: Any, session: Any, store: Any) -> None:
    """A delivery that was never delivered before is matched with an entry."""
    (claims,) = lane.state.signals.claiming

    def anything(inbound: Any, delivered: Any) -> bool:
        delivered.redelivered = True
        return bool(claims(inbound, delivered))

    lane.state.signals.claiming[:] = [anything]


@planted("duplicates", "loss", "order", seed=66)
def matched_by_message_id_alone(lane: Any, session: Any, store: Any) -> None:
    """A delivery is matched by its `message_id`, not by all of its bytes."""

    def by_id(event: Any) -> None:
        for message in event.messages:
            identity = message.content.properties.partition(b"id-")[2]
            if identity:
                message.fingerprint = hashlib.blake2b(identity, digest_size=16).digest()

    lane._handlers[MessagesArrived].insert(0, by_id)


@planted("loss", "order", seed=2)
def numbers_go_on_from_what_redis_has(lane: Any, session: Any, store: Any) -> None:
    """Numbers go on from those in Redis, which may have gone back."""
    state = lane.state
    state.first_number = 1 << 20
    known = [row.epoch for row in store.snapshot.owners.values()]
    known += [message.epoch for consumer in state.by_uuid.values() for message in consumer.in_flight.values()]
    state.epoch_counter = max(known, default=1 << 20)
    for consumer in state.by_uuid.values():
        consumer.next_seq = max(consumer.in_flight, default=1 << 20) + 1
    lane.state.feature(Membership)._reports.heard_of = lambda seq: None


@planted("fence", seed=72)
def lane_epoch_not_checked(lane: Any, session: Any, store: Any) -> None:
    """Redis takes a commit of a former leader."""
    keys = store.world.redis.keys
    commit = type(keys).commit

    def unchecked(leader: bytes, before: bytes, ordinal: bytes, *rest: bytes) -> bytes:
        keys.meta[b"ordinal"] = before
        return commit(keys, keys.meta[b"leader"], before, ordinal, *rest)

    keys.commit = unchecked


@planted("loss", seed=294)
def settle_of_a_stale_incarnation_obeyed(lane: Any, session: Any, store: Any) -> None:
    """A settle of an incarnation that has ended counts for the id's present one."""
    handlers = lane._handlers[Settle]

    def for_whoever(event: Any) -> None:
        present = lane.state.by_id.get(event.consumer)
        for handle in handlers:
            handle(replace(event, incarnation=present.uuid) if present is not None else event)

    lane._handlers[Settle] = [for_whoever]


@planted("order", seed=18)
def dispatched_again_behind_newer_ones(lane: Any, session: Any, store: Any) -> None:
    """A message that is taken back goes behind the newer messages of its group."""
    revocation = lane.state.feature(Membership)._revocation
    take_back = revocation._return_messages

    def behind(consumer: Any, *rest: Any) -> Any:
        messages = list(consumer.in_flight.values())
        touched = take_back(consumer, *rest)
        for message in messages:
            if message.tag and message.group is not None:
                waiting = message.group.backlogs[message.inbound].messages
                waiting.remove(message)
                waiting.append(message)
        return touched

    revocation._return_messages = behind


@planted("order", "overlap", seed=6)
def batch_released_one_early(lane: Any, session: Any, store: Any) -> None:
    """A group is free while one message of its batch is unsettled."""
    settled = lane.state.settled

    def early(message: Any) -> None:
        settled(message)
        group = message.group
        if group is not None and group.in_flight == 1 and group.state is GroupState.BATCHED:
            change_owner(lane.state, group)

    lane.state.settled = early


@planted("share", seed=7)
def blocked_queues_earn_credit(lane: Any, session: Any, store: Any) -> None:
    """An inbound queue whose messages are all blocked earns credit."""
    turns = lane._delivery._turns
    inbounds, pick = lane.state.inbounds, turns.pick

    def generous() -> Any:
        for inbound in inbounds:
            if inbound.waiting and inbound.head() is None:
                inbound.deficit += inbound.weight
        for inbound in inbounds:
            if inbound.head() is not None and inbound.deficit > 1 + inbound.weight:
                return inbound
        return pick()

    turns.pick = generous


@planted("deaths", "duplicates", seed=137)
def marker_of_an_earlier_connection_obeyed(lane: Any, session: Any, store: Any) -> None:
    """A marker for a connection before the latest one ends its incarnation."""
    membership = lane.state.feature(Membership)

    def any_marker(marker: Any) -> None:
        consumer = lane.state.by_uuid.get(marker.incarnation)
        if consumer is not None and marker.lane_epoch == lane.state.lane_epoch:
            membership.revoke(consumer)
        if (timeout := lane.state.find(AckTimeout)) is not None:
            timeout.marker(marker)

    lane._handlers[Marker] = [any_marker]


class _Forgetful(deque[Any]):
    def append(self, entry: Any) -> None:
        """Gone."""


@planted("duplicates", seed=113)
def unproven_settled_entries_forgotten(lane: Any, session: Any, store: Any) -> None:
    """A checkpoint forgets settled originals whose acks are not proven."""
    for inbound in lane.state.inbounds:
        inbound.settled.unproven = _Forgetful()


@planted("liveness", "order", "overlap", seed=545)
def group_goes_on_before_its_entries_are_resolved(lane: Any, session: Any, store: Any) -> None:
    """A new leader goes on with a group before its originals are back."""
    groups = lane.state.feature(Recovery).groups
    for group in list(lane.state.groups.values()):
        if group.unresolved:
            group.unresolved = 0
            groups._resolve(group)


@planted("duplicates", seed=7)
def sent_again_with_a_new_number(lane: Any, session: Any, store: Any) -> None:
    """A copy that may not have arrived is sent again with a new seq."""
    resending = lane.state.feature(Recovery).resending

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

    resending.send = renumbered


@planted("liveness", seed=4)
def returns_not_noticed(lane: Any, session: Any, store: Any) -> None:
    """A returned copy does not say that its consumer is gone."""
    lane.state.feature(Membership).liveness.queue_gone = lambda queue: None


@planted("liveness", seed=52)
def lost_copies_never_found(lane: Any, session: Any, store: Any) -> None:
    """A copy that gets lost is missed by nobody if none of its group follows."""
    lane.state.features[LostCopies]._count_lost = lambda *_: 0


@planted("poison", seed=16)
def a_death_counted_for_every_neighbour(lane: Any, session: Any, store: Any) -> None:
    """A death counts for every message in the same hands."""
    suspects = lane.state.features[Suspects]

    def blames_all(consumer: Any, _: Any) -> Any:
        guilty = [m for m in consumer.in_flight.values() if m.attempt > suspects.suspect_after]
        suspects._let_go(consumer)
        return (guilty[0], REASON_POISON) if guilty else None

    lane.state.signals.blaming[:] = [blames_all]
    suspects.before_pass = lambda: None
    suspects.suspect_after = 1_000_000


@planted("poison", seed=24)
def every_hand_over_counts_as_a_death(lane: Any, session: Any, store: Any) -> None:
    """A death counts for all that its consumer had, begun or not."""
    _count_deaths(lane, lambda before: before)


@planted("poison", seed=2)
def no_hand_over_counts_as_a_death(lane: Any, session: Any, store: Any) -> None:
    """A death counts for nothing that its consumer had, begun or not."""
    _count_deaths(lane, lambda before: before + 1)


def _count_deaths(lane: Any, unbegun: Callable[[int], int]) -> None:
    suspects = lane.state.features[Suspects]
    poison_of = suspects._poison_of

    def counted(consumer: Any, ending: Any) -> Any:
        before = {message: message.unbegun for message in consumer.in_flight.values()}
        poison = poison_of(consumer, ending)
        for message, count in before.items():
            message.unbegun = unbegun(count)
        return poison

    suspects._poison_of = counted


@planted("duplicates", seed=1)
def attempt_not_counted(lane: Any, session: Any, store: Any) -> None:
    """`x-dispatch-attempt` stays the same when a message is handed over again."""
    revocation = lane.state.feature(Membership)._revocation
    returned = revocation._return_messages

    def forgiving(consumer: Any, *rest: Any) -> Any:
        for message in consumer.in_flight.values():
            message.attempt -= 1
        return returned(consumer, *rest)

    revocation._return_messages = forgiving


@planted("liveness", seed=24)
def refused_copies_not_withdrawn(lane: Any, session: Any, store: Any) -> None:
    """A copy that RabbitMQ refused stays in its consumer's hands."""
    lane._handlers[CopyRefused] = []


@planted("duplicates", seed=62)
def broker_restart_not_noticed(lane: Any, session: Any, store: Any) -> None:
    """That a killed broker may have forgotten proven acks is not thought of."""
    for inbound in lane.state.inbounds:
        inbound.recovery._proven = {}


@planted("said", seed=2)
def flags_of_the_former_leader_ignored(lane: Any, session: Any, store: Any) -> None:
    """A new leader does not obey earlier pauses, pins and drains of operators."""
    state = lane.state
    state.lane_holds.lift(HoldKind.LANE_PAUSED)
    state.drained_consumers.clear()
    for consumer in state.by_uuid.values():
        consumer.drained = False
        state.refresh_credit(consumer)
    for group in list(state.groups_with_flags):
        state.groups_with_flags.discard(group)
        group.flags = None
        state.relist_backlogs(group)


@planted("operations", seed=53)
def operation_without_a_barrier(lane: Any, session: Any, store: Any) -> None:
    """An operation takes the messages that are here, not all that were confirmed before the command."""
    operations = lane.state.features[Operations]
    operations._raise_barrier = lambda operation: operation.unmarked.clear()


@planted("operations", "duplicates", seed=95)
def purge_not_in_the_journal(lane: Any, session: Any, store: Any) -> None:
    """A purged message is acked, and the journal does not say so."""
    operations, state = lane.state.features[Operations], lane.state
    purge = operations._purge

    def forgetful(*arguments: Any) -> None:
        records = list(state.effects.records)
        purge(*arguments)
        state.effects.records[:] = records

    operations._purge = forgetful


@planted("said", "order", seed=48)
def released_behind_its_followers(lane: Any, session: Any, store: Any) -> None:
    """A message at which its group has stopped waits behind those that came after it."""

    def wait_behind(message: Any) -> None:
        backlog = backlog_of(lane.state, message)
        if backlog is not None:
            backlog.messages.rotate(-1)

    lane.state.signals.stopped_at.append(wait_behind)


@planted("limits", seed=21)
def limit_of_an_id_not_obeyed(lane: Any, session: Any, store: Any) -> None:
    """An id of a concurrent lane has more in flight than its limit."""
    if (limits := lane.state.find(GroupLimits)) is not None:
        limits.limit.is_full = lambda group_id: False


@planted("limits", seed=7)
def smaller_prefetch_not_obeyed(lane: Any, session: Any, store: Any) -> None:
    """A consumer that joins again with a smaller prefetch gets as many messages as before."""
    membership = lane.state.feature(Membership)
    rejoin = membership._rejoin

    def keep(consumer: Any, join: Any) -> None:
        rejoin(consumer, replace(join, prefetch=max(join.prefetch, consumer.prefetch)))

    membership._rejoin = keep


@planted("replies", seed=15)
def several_requests_at_a_time(lane: Any, session: Any, store: Any) -> None:
    """The size of a queue is asked for while its consumer is being replaced."""
    commit = session._commit

    def commit_unlocked(effects: Any) -> None:
        for feed in session._feeds:
            feed._one_request = nullcontext()
        commit(effects)

    session._commit = commit_unlocked


@planted("loss", seed=23)
def id_in_the_window_before_its_entry(lane: Any, session: Any, store: Any) -> None:
    """An id enters the window when its message is here, before its first entry."""
    dedup = lane.state.find(Dedup)
    if dedup is None:
        return
    take_in = dedup._take_in

    def early(message: Any) -> None:
        if message.message_id is not None:
            dedup._entering.append(message.message_id)
        take_in(message)

    dedup._take_in = early


@planted("sequence", seed=634)
def last_number_committed_late(lane: Any, session: Any, store: Any) -> None:
    """The last number of a group is committed a step after its message's first entry."""
    take_effects, held = lane.state.take_effects, {}

    def late() -> Any:
        effects = take_effects()
        before = dict(held)
        held.clear()
        held.update(effects.sequences)
        effects.sequences = before
        return effects

    lane.state.take_effects = late
