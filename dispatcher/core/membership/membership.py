"""Who consumes: joins, leaves, deaths and returns of incarnations.

When a consumer's queue is gone (Liveness), a marker goes through the control queue after the grace. When it
is read, every settle that the broker had confirmed has been read too: only then is the incarnation REVOKED,
and its messages go to others. A join of the same incarnation in between brings it back with its messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dispatcher.core.consumer_life import PRESENT, REACHABLE, ConsumerState
from dispatcher.core.effects import Effects, Snapshot
from dispatcher.core.events import PingRouted, PublishersBlocked, QueueNacked, QueueReturned
from dispatcher.core.feature import Feature, Handler
from dispatcher.core.forwarding.orders import ReclaimQueue
from dispatcher.core.forwarding.rules import NOBODY_JOINS, of_this_lane
from dispatcher.core.membership.liveness import Liveness
from dispatcher.core.membership.revocation import Revocation, vacate
from dispatcher.core.membership.rows import commit_incarnation, incarnation_row
from dispatcher.core.model import Consumer
from dispatcher.core.notices import answer, send_notice
from dispatcher.core.orders import SendNotice
from dispatcher.core.recovery.consumer_reports import ConsumerReports
from dispatcher.core.state import LaneState
from dispatcher.core.tables import IncarnationRow
from dispatcher.wire.bundle import BundleLimits
from dispatcher.wire.protocol import (
    TYPE_REFUSED,
    TYPE_REJOIN,
    TYPE_TAKEN,
    TYPE_WAIT,
    TYPE_WELCOME,
    Heartbeat,
    Join,
    Leave,
    Marker,
)

#: Uuids of ended incarnations, so that their late messages are answered with `taken`.
RETIRED_MAX = 1_000


#: Knuth's multiplicative hash: 2 to the 32, divided by the golden ratio.
EPOCH_MIXER: Final = 2_654_435_761


class Membership(Feature):
    """The lane's consumers, from join to end, and what happens to their messages."""

    def __init__(self, state: LaneState, reports: ConsumerReports) -> None:
        self._state = state
        self._reports = reports
        self._revocation = Revocation(state)
        self.liveness = Liveness(state, self._reports)
        self._retired: dict[str, tuple[int, IncarnationRow]] = {}  # by uuid, oldest first
        self._strangers: dict[str, None] = {}  # unknown uuids heard of once
        self._last_number = 0
        self._is_complete = True
        state.signals.consumer_drained.append(self.finish_leaving)

    # -- start --

    def events(self) -> Mapping[type, Handler]:
        liveness = self.liveness
        return {
            Join: self.join,
            Leave: self.leave,
            Heartbeat: self.heartbeat,
            Marker: self.marker,
            PingRouted: lambda event: self.ping_routed(event.queue),
            QueueReturned: lambda event: liveness.queue_gone(event.queue),
            QueueNacked: lambda event: liveness.queue_refused(event.queue),
            PublishersBlocked: lambda event: liveness.publishers_blocked(event.blocked),
        }

    def load_first(self, snapshot: Snapshot) -> None:
        """Take over the incarnations that Redis names; their queues are probed at once."""
        self._is_complete = snapshot.complete
        rows = sorted(snapshot.incarnations.items())
        self._last_number = max(snapshot.incarnations, default=0)
        for number, row in rows:
            if row.state == "taken":
                self._retire(number, row)
        present = [(number, row) for number, row in rows if row.state != "taken"]
        # They are pinged in this order, and get new groups in the order of the answers. So that leaders with
        # short lives begin with different ones, their epochs say where, well mixed: epochs may rise by
        # the same number each time.
        first = (snapshot.lane_epoch * EPOCH_MIXER >> 16) % len(present) if present else 0
        for number, row in present[first:] + present[:first]:
            self._enter(number, of_this_lane(self._state.options, row))

    def add_rows(self, effects: Effects) -> None:
        """All incarnations, those that have ended among them."""
        effects.incarnations = dict(self._retired.values())
        effects.incarnations |= {n: incarnation_row(c) for n, c in self._state.by_number.items()}

    def begin(self) -> None:
        """Ping every known queue; where Redis may have lost data, ask every consumer which messages it has.
        Consumers of a forwarding lane can't be asked. Those of a shard hear how many there are by now."""
        consumers = self._state.by_uuid.values()
        if not self._is_complete and not self._state.options.handover:
            self._reports.begin()
            for consumer in consumers:
                self._reports.ask(consumer)
        for consumer in consumers:
            if consumer.evicted_by is None:
                self.liveness.ping(consumer)
                if self._state.options.shards > 1:
                    send_notice(self._state, consumer, TYPE_WELCOME)

    def _enter(self, number: int, row: IncarnationRow) -> Consumer:
        state = self._state
        consumer = Consumer(
            number, row, inbounds=len(state.inbounds), first_seq=state.first_number, now_ms=state.now_ms
        )
        state.by_uuid[row.uuid] = state.by_id[row.consumer] = consumer
        state.by_queue[row.queue] = state.by_number[number] = consumer
        for entered in state.signals.consumer_entered:
            entered(consumer)
        return consumer

    # -- joins --

    def join(self, join: Join) -> None:
        state = self._state
        if state.options.handover:
            state.effects.actions.append(SendNotice(join.queue, TYPE_REFUSED, {"reason": NOBODY_JOINS}))
            return
        known = state.by_uuid.get(join.incarnation)
        if state.by_queue.get(join.queue, known) is not known:
            state.counters["joins_ignored"] += 1  # that queue is another incarnation's
            return
        if known is not None:
            if known.id == join.consumer:
                self._rejoin(known, join)
            return
        if self._is_over(join):
            self._answer(join, TYPE_TAKEN)
            return
        present = state.by_id.get(join.consumer)
        if present is not None and self._reports.open and join.in_hand and self._is_doubtful(present):
            # Redis forgot that this one took the other's place: else it would have nothing in hand.
            present.waiting = None
            send_notice(state, present, TYPE_TAKEN)
            self.revoke(present)
        elif present is not None:
            self._let_wait(join, present)
            return
        user = join.user if state.options.strict_identity else None
        consumer = self.enter(
            join.consumer, join.incarnation, join.queue, join.prefetch,
            n=join.n, user=user, bundle=join.bundle,
        )  # fmt: skip
        self._reports.report(consumer, join)
        self._welcome(consumer)

    def _let_wait(self, join: Join, present: Consumer) -> None:
        """That id is another one's. Who asks again while that one lives is told to people: two consumers may
        have been given one id."""
        state, before = self._state, present.waiting
        asks_again = before is not None and before.incarnation == join.incarnation
        present.waiting, present.waiting_heard_ms = join, state.now_ms
        if asks_again and present.state in PRESENT and present.waiting_told != join.incarnation:
            present.waiting_told = join.incarnation
            state.warn(
                "consumer_id_in_use", consumer=join.consumer, incarnation=join.incarnation, owner=present.uuid
            )
        self._answer(join, TYPE_WAIT)
        self.liveness.successor_waits(present)

    def enter(
        self, name: str, uuid: str, queue: str, prefetch: int, *, n: int = 1, user: str | None = None,
        bundle: BundleLimits | None = None,
    ) -> Consumer:  # fmt: skip
        """A new incarnation; without a uuid it gets one that no other one of the lane has."""
        state = self._state
        self._last_number += 1
        uuid = uuid or f"{name}#{self._last_number}"
        consumer = self._enter(
            self._last_number, IncarnationRow(name, uuid, queue, n, prefetch, "live", user, bundle)
        )
        commit_incarnation(state, consumer)
        state.counters["joins"] += 1
        for joined in state.signals.consumer_joined:
            joined(consumer)
        state.log_event("consumer_joined", consumer=name, incarnation=uuid)
        return consumer

    def _is_doubtful(self, consumer: Consumer) -> bool:
        """It has not shown to us that it lives and has something in hand."""
        return consumer.state not in PRESENT or not self._reports.has_any(consumer)

    def _is_over(self, join: Join) -> bool:
        """An incarnation that was taken back, or that has joined before and is not known any more."""
        waits = self._awaited_by(join.consumer, join.incarnation) is not None
        is_forgotten = join.n > 1 and not waits and not self._reports.open
        return is_forgotten or join.incarnation in self._retired

    def _awaited_by(self, consumer: str, incarnation: str) -> Consumer | None:
        """The live incarnation of this id for whose end that other one waits, as it was told."""
        present = self._state.by_id.get(consumer)
        if present is None or present.waiting is None or present.waiting.incarnation != incarnation:
            return None
        return present

    def _rejoin(self, consumer: Consumer, join: Join) -> None:
        """The same incarnation with a new queue: what it does not have in hand is sent again, same seq."""
        if join.n < consumer.n:
            return
        if join.n == consumer.n:
            self._answer(join, TYPE_WELCOME)
            return
        state = self._state
        if state.by_queue.get(consumer.queue) is consumer:
            del state.by_queue[consumer.queue]
        consumer.queue, consumer.ping_unanswered = join.queue, False
        state.by_queue[join.queue] = consumer
        if consumer.evicted_by is not None:  # in the new one it will hear that it was taken back
            commit_incarnation(state, consumer)
            return
        consumer.n = join.n
        consumer.credit += join.prefetch - consumer.prefetch
        consumer.prefetch, consumer.bundle = join.prefetch, join.bundle
        state.counters["rejoins"] += 1
        state.log_event("consumer_returned", consumer=join.consumer, incarnation=join.incarnation, n=join.n)
        self._reports.report(consumer, join)
        if self.liveness.must_pause(consumer):
            commit_incarnation(state, consumer)
            self._answer(join, TYPE_WELCOME)
        else:
            self.resume(consumer)

    def resume(self, consumer: Consumer) -> None:
        """It is there again: send it the messages that it misses, and go on."""
        self._welcome(consumer)
        self._reports.send_missing(consumer)
        self.finish_leaving(consumer)

    def _welcome(self, consumer: Consumer) -> None:
        self.liveness.found(consumer)
        commit_incarnation(self._state, consumer)
        send_notice(self._state, consumer, TYPE_WELCOME)
        self._reports.ask(consumer)
        self._state.refresh_credit(consumer)

    # -- words --

    def leave(self, leave: Leave) -> None:
        state = self._state
        consumer = state.by_uuid.get(leave.incarnation)
        if consumer is None or consumer.id != leave.consumer:
            present = self._awaited_by(leave.consumer, leave.incarnation)
            if present is not None:
                present.waiting = None
            return
        if consumer.resumes_as is ConsumerState.LEAVING:
            return
        consumer.resumes_as = ConsumerState.LEAVING
        if consumer.state in REACHABLE:
            consumer.become(ConsumerState.LEAVING)
        state.counters["leaves"] += 1
        for leaves in state.signals.consumer_leaves:
            leaves(consumer)
        state.log_event("consumer_leaving", consumer=consumer.id, in_flight=len(consumer.in_flight))
        state.pool.discard(consumer)
        commit_incarnation(state, consumer)
        vacate(state, consumer)
        self.finish_leaving(consumer)

    def finish_leaving(self, consumer: Consumer) -> None:
        """A leaving consumer that has settled its last message ends, and is told so."""
        if consumer.state is ConsumerState.LEAVING and not consumer.in_flight and not self._reports.open:
            send_notice(self._state, consumer, TYPE_TAKEN)
            self.revoke(consumer)

    def finish_all_leaving(self) -> None:
        for consumer in list(self._state.by_uuid.values()):
            self.finish_leaving(consumer)

    def heartbeat(self, beat: Heartbeat) -> None:
        self._reports.heard_of(beat.last)
        consumer = self._state.by_uuid.get(beat.incarnation)
        if consumer is None or consumer.id != beat.consumer:
            self._stranger(beat)
            return
        consumer.last_heard_ms = self._state.now_ms
        if self._reports.open and beat.queue != consumer.queue:  # Redis forgot its latest join
            self._say(beat, TYPE_REJOIN)
        if consumer.state is ConsumerState.FROZEN:
            consumer.become(ConsumerState.LIVE)
            self._state.refresh_credit(consumer)

    def _stranger(self, beat: Heartbeat) -> None:
        """A consumer that we don't know. Its join may be on its way: only the second word is answered."""
        if self._awaited_by(beat.consumer, beat.incarnation) is not None:
            return  # it has its answer: wait
        if self._reports.open:
            self._say(beat, TYPE_REJOIN)
        elif beat.incarnation in self._strangers or beat.incarnation in self._retired:
            self._say(beat, TYPE_TAKEN)
        self._strangers[beat.incarnation] = None
        if len(self._strangers) > RETIRED_MAX:
            del self._strangers[next(iter(self._strangers))]

    def _say(self, beat: Heartbeat, kind: str) -> None:
        body = {"consumer": beat.consumer, "incarnation": beat.incarnation}
        self._state.effects.actions.append(SendNotice(beat.queue, kind, body))

    def ping_routed(self, queue: str) -> None:
        consumer = self._state.by_queue.get(queue)
        if consumer is None:
            return
        consumer.ping_unanswered = False
        if consumer.state is ConsumerState.EXPECTED:
            consumer.become(consumer.resumes_as)
            self._state.refresh_credit(consumer)
            self.finish_leaving(consumer)

    # -- deaths --

    def marker(self, marker: Marker) -> None:
        """Every settle confirmed to this consumer has been read: take back the messages that it still has."""
        consumer = self._state.by_uuid.get(marker.incarnation)
        if consumer is None or marker.lane_epoch != self._state.lane_epoch:
            return
        if consumer.state is not ConsumerState.MARKED or marker.n != consumer.n:
            return
        if consumer.depth is None:
            self.revoke(consumer)
        elif not consumer.reclaiming:
            consumer.reclaiming = True
            self._state.effects.actions.append(ReclaimQueue(consumer.queue))

    def revoke(self, consumer: Consumer) -> None:
        """It ends, and the messages that it still has wait again."""
        if consumer.evicted_by is not None:
            send_notice(self._state, consumer, TYPE_TAKEN)
        self.liveness.forget(consumer)
        self._revocation.revoke(consumer)
        self._retire(consumer.number, incarnation_row(consumer))
        if consumer.waiting is not None:
            self.join(consumer.waiting)

    def _retire(self, number: int, row: IncarnationRow) -> None:
        self._retired[row.uuid] = number, row
        if len(self._retired) > RETIRED_MAX:
            # The highest number stays, so that none is given twice.
            old, uuid = next((n, u) for u, (n, _) in self._retired.items() if n != self._last_number)
            del self._retired[uuid]
            self._state.effects.incarnations[old] = None

    # -- time --

    def before_pass(self) -> None:
        liveness = self.liveness
        if liveness.lost or liveness.refusing or self._state.now_ms >= liveness.wakes_at_ms:
            for consumer in liveness.run_timers():
                self.resume(consumer)
        if self._state.lane_holds and self._reports.closes_now():
            self.finish_all_leaving()

    def next_deadline_ms(self) -> int | None:
        return self.liveness.next_deadline_ms()

    # -- notices --

    def _answer(self, join: Join, kind: str) -> None:
        answer(self._state, join.queue, kind, consumer=join.consumer, incarnation=join.incarnation, n=join.n)
