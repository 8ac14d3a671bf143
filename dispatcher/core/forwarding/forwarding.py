"""Hand-over consumers: they only read their queue and ack (docs/architecture.md, "Hand-over lanes").

A copy is settled when the broker has stored it in its consumer's queue. The dispatcher inspects the queue to
find out who reads it and how many messages wait in it. When it has no reader, the dispatcher reads it
to its end as its only reader. Its messages go to others, in the order of their numbers, before all other
messages of the lane.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from dispatcher.core.consumer_life import ConsumerState
from dispatcher.core.effects import Snapshot
from dispatcher.core.feature import Feature, Handler
from dispatcher.core.forwarding.events import (
    CopiesStored,
    MessageRejected,
    QueueInspected,
    QueueInUse,
    QueueReclaimed,
    QueueReleased,
    ReadersChanged,
    ReclaimedForwarded,
    ReclaimedRefused,
)
from dispatcher.core.forwarding.orders import (
    AckReclaimed,
    DeadLetterReclaimed,
    ForwardReclaimed,
    InspectQueue,
    ReclaimedCopy,
    ReleaseQueue,
)
from dispatcher.core.forwarding.rules import (
    SENTENCES,
    begin_reclaiming,
    end_reclaiming,
    is_forwarding_queue,
    receivers,
)
from dispatcher.core.membership.membership import Membership
from dispatcher.core.membership.rows import incarnation_row
from dispatcher.core.model import Consumer, Group, GroupState, Original
from dispatcher.core.operators.commands import Commands
from dispatcher.core.queue_ids import FIRST_INBOUND
from dispatcher.core.records import NumbersUsed
from dispatcher.core.runs import runs
from dispatcher.core.settlement import Settlement
from dispatcher.core.state import LaneState
from dispatcher.core.tables import IncarnationRow
from dispatcher.wire.group_text import format_group
from dispatcher.wire.protocol import REASON_EXPIRED

#: A consumer that may get little more is looked at so soon again, then twice as late each time, until its
#: queue is shorter or `liveness_interval` is reached: its consumer should not have to wait for messages.
LOOK_SOON_MS: Final = 5
#: RabbitMQ 4 says that somebody ceased to read a queue, and counts that reader for a moment longer (4.0.5):
#: after the look at once, these pauses come before further ones.
LOOK_AGAIN_MS: Final = (100, 1_000)
#: The answer to commands that take groups from consumers which go on.
_NO_REASSIGNING: Final = "this lane hands over: a group moves only when its consumer's queue has no reader"


class _Reclaim:
    """The messages of one consumer's queue, on their way to others."""

    def __init__(self, number: int, row: IncarnationRow) -> None:
        self.number = number
        self.row = row
        self.pending: set[ReclaimedCopy] = set()


class Forwarding(Feature):
    """The consumers of a forwarding lane."""

    def __init__(
        self, state: LaneState, membership: Membership, settlement: Settlement, commands: Commands
    ) -> None:
        self._state = state
        self._membership = membership
        self._settlement = settlement
        self._declared = {consumer.queue: consumer for consumer in state.options.handover}
        self._due_ms = dict.fromkeys(self._declared, state.now_ms)  # when to look at which queue
        self._pause_ms: dict[str, int] = {}  # before the next look at one whose consumer has no room
        self._looks_left: dict[str, list[int]] = {}  # pauses before the further looks at a queue
        self._stored: Counter[Consumer] = Counter()  # copies that came into their queues
        self._asked: dict[str, int] = {}  # queues that are looked at, and what was stored in them before
        self._open: dict[str, _Reclaim] = {}
        self._crowded: set[str] = set()  # queues with several readers, which was told
        self._next_seq: dict[str, int] = {}  # by consumer: after all numbers of its former incarnations
        state.signals.consumer_entered.append(self._entered)
        state.signals.consumer_ended.append(self._ended)
        commands.forbid_reassigning(_NO_REASSIGNING)
        state.explanation.sentences |= SENTENCES

    def events(self) -> Mapping[type, Handler]:
        return {
            CopiesStored: self.stored,
            QueueInspected: self.seen,
            ReadersChanged: self.changed,
            QueueReclaimed: self.reclaimed,
            QueueInUse: self.kept,
            QueueReleased: self.released,
            ReclaimedForwarded: self.handed_on,
            ReclaimedRefused: self.refused,
            MessageRejected: self.rejected,
        }

    def _entered(self, consumer: Consumer) -> None:
        if is_forwarding_queue(self._state.options, consumer.queue):
            consumer.depth = 0
            # Its reader knows nothing of incarnations: to it a number that it knows is a repeated message.
            consumer.next_seq = max(consumer.next_seq, self._next_seq.get(consumer.id, 0))

    def _ended(self, consumer: Consumer) -> None:
        self._next_seq[consumer.id] = consumer.next_seq
        del self._stored[consumer]

    def load_first(self, snapshot: Snapshot) -> None:
        """Go on with what a former leader has left. The consumers must have been loaded."""
        state = self._state
        for number, row in snapshot.incarnations.items():
            if row.state == "taking" and number in state.by_number:
                begin_reclaiming(state, number)
        for consumer in state.by_uuid.values():
            if consumer.depth is None:
                continue
            self._due_ms.setdefault(consumer.queue, state.now_ms)
            declared = self._declared.get(consumer.queue)
            prefetch = declared.prefetch if declared is not None else 0  # named no more: it gets nothing
            consumer.credit += prefetch - consumer.prefetch
            consumer.prefetch = prefetch
            if consumer.number in state.reclaiming:
                self._membership.liveness.queue_gone(consumer.queue)
                consumer.lost_until_ms = state.now_ms

    # -- copies --

    def _settle(self, consumer: Consumer, seqs: Iterable[int]) -> None:
        """Its queue has these copies: that settles them (X-1). They wait there now, and take its capacity."""
        stored = sorted(seq for seq in seqs if seq in consumer.in_flight)
        for first, last in runs(stored):
            self._settlement.settle_range(consumer, first, last)
        if consumer.depth is not None:
            consumer.depth += len(stored)
            consumer.credit -= len(stored)
        self._state.refresh_credit(consumer)

    def stored(self, event: CopiesStored) -> None:
        """Its queue has them: they are settled."""
        consumer = self._state.by_number.get(event.incarnation)
        if consumer is None:
            return
        self._stored[consumer] += len(event.seqs)
        self._settle(consumer, event.seqs)
        if _is_short(consumer):
            self._look_soon(consumer)

    def _look_soon(self, consumer: Consumer) -> None:
        queue, now_ms = consumer.queue, self._state.now_ms
        pause_ms = self._pause_ms.setdefault(queue, LOOK_SOON_MS)
        self._due_ms[queue] = min(self._due_ms.get(queue, now_ms + pause_ms), now_ms + pause_ms)

    # -- looks --

    def next_deadline_ms(self) -> int | None:
        """When a queue is to be looked at."""
        return min((at for queue, at in self._due_ms.items() if queue not in self._asked), default=None)

    def before_pass(self) -> None:
        """Look at the queues whose time has come."""
        state = self._state
        for queue, at_ms in self._due_ms.items():
            if at_ms > state.now_ms or queue in self._asked:
                continue
            consumer = state.by_queue.get(queue)
            self._asked[queue] = self._stored[consumer] if consumer is not None else 0
            state.effects.actions.append(InspectQueue(queue))

    def changed(self, event: ReadersChanged) -> None:
        """Its queue is to be looked at now."""
        if event.queue in self._due_ms:
            self._due_ms[event.queue] = self._state.now_ms
            self._looks_left[event.queue] = list(LOOK_AGAIN_MS)

    def seen(self, event: QueueInspected) -> None:
        """What a look at a queue has shown."""
        state, queue = self._state, event.queue
        before = self._asked.pop(queue, 0)
        pauses = self._looks_left.pop(queue, [])
        pause_ms = min([state.options.liveness_interval_ms, *pauses[:1]])
        self._due_ms[queue] = state.now_ms + pause_ms
        if pauses[1:]:
            self._looks_left[queue] = pauses[1:]
        consumer = state.by_queue.get(queue)
        if consumer is None:
            consumer = self._found(event)
        if consumer is None:
            if queue not in self._declared:
                del self._due_ms[queue]
            return
        if consumer.reclaiming:
            return
        consumer.readers = event.readers
        self._measure(consumer, event.ready + self._stored[consumer] - before)
        self._tell_crowd(consumer)
        if not event.readers:
            self._membership.liveness.queue_gone(queue)
        else:
            self._is_read(consumer)

    def _found(self, event: QueueInspected) -> Consumer | None:
        """A queue whose consumer was not there has a reader, or something was left in it."""
        declared = self._declared.get(event.queue)
        if declared is None or event.queue in self._open or not (event.readers or event.ready):
            return None
        return self._membership.enter(declared.id, "", declared.queue, declared.prefetch)

    def _measure(self, consumer: Consumer, depth: int) -> None:
        assert consumer.depth is not None
        is_shorter = depth < consumer.depth
        consumer.credit += consumer.depth - depth
        consumer.depth = depth
        if is_shorter or not _is_short(consumer):
            self._pause_ms.pop(consumer.queue, None)
        if _is_short(consumer):
            self._look_soon(consumer)
            limit_ms = self._state.options.liveness_interval_ms
            self._pause_ms[consumer.queue] = min(2 * self._pause_ms[consumer.queue], limit_ms)
        self._state.refresh_credit(consumer)

    def _is_read(self, consumer: Consumer) -> None:
        """It is there: it gets what it misses, and goes on."""
        match consumer.state:
            case ConsumerState.EXPECTED:
                self._membership.ping_routed(consumer.queue)
            case ConsumerState.LOST | ConsumerState.MARKED:
                self._goes_on(consumer)
            case ConsumerState.REFUSING if not self._membership.liveness.must_pause(consumer):
                self._goes_on(consumer)

    def _goes_on(self, consumer: Consumer) -> None:
        consumer.n += 1  # a marker that is on its way says nothing any more
        end_reclaiming(self._state, consumer.number)
        self._state.log_event(
            "consumer_returned", consumer=consumer.id, incarnation=consumer.uuid, n=consumer.n
        )
        self._membership.resume(consumer)

    def _tell_crowd(self, consumer: Consumer) -> None:
        """Two that read one queue work on one group at the same time."""
        if consumer.readers <= 1:
            self._crowded.discard(consumer.queue)
        elif consumer.queue not in self._crowded:
            self._crowded.add(consumer.queue)
            self._state.warn("consumer_queue_shared", consumer=consumer.id, readers=consumer.readers)

    # -- queues that are read back --

    def kept(self, event: QueueInUse) -> None:
        """A reader came before we could read it."""
        consumer = self._state.by_queue.get(event.queue)
        if consumer is not None and consumer.reclaiming:
            consumer.reclaiming = False
            self._goes_on(consumer)

    def reclaimed(self, event: QueueReclaimed) -> None:
        """All that was in a queue is here: it goes to others, in its order."""
        state, queue = self._state, event.queue
        consumer = state.by_queue.get(queue)
        if consumer is None or not consumer.reclaiming:
            state.effects.actions.append(ReleaseQueue(queue))
            return
        if not receivers(state, consumer):  # the others have gone meanwhile
            consumer.reclaiming = False
            consumer.n += 1
            consumer.become(ConsumerState.LIVE)
            self._membership.liveness.queue_gone(queue)
            state.effects.actions.append(ReleaseQueue(queue))
            return
        self._settle(consumer, [handed.seq for handed in event.messages])
        over = self._open[queue] = _Reclaim(
            consumer.number, incarnation_row(consumer)._replace(state="taking")
        )
        self._membership.revoke(consumer)
        begin_reclaiming(state, over.number)
        state.effects.incarnations[over.number] = over.row
        self._hand_all_on(over, event.messages)
        if not over.pending:
            state.effects.actions.append(ReleaseQueue(queue))

    def _hand_all_on(self, over: _Reclaim, messages: Iterable[ReclaimedCopy]) -> None:
        state, last_seq = self._state, 0
        for handed in sorted(messages, key=lambda handed: handed.seq):
            handed.incarnation = over.number
            if handed.refusal is None and handed.seq == last_seq:  # it was sent twice
                state.effects.actions.append(AckReclaimed(handed))
                continue
            over.pending.add(handed)
            if handed.refusal is not None:
                self._bury(handed, handed.refusal)
            elif handed.deadline_at_ms is not None and handed.deadline_at_ms <= state.now_ms:
                self._bury(handed, REASON_EXPIRED)
                state.counters["expired"] += 1
            else:
                last_seq = handed.seq
                self._hand_on(handed)

    def _hand_on(self, handed: ReclaimedCopy) -> None:
        """To the owner of its group, or the consumer that has the least. Its prefetch does not count: the
        queue must be free again soon, for its own consumer."""
        state = self._state
        message = Original(
            FIRST_INBOUND, 0, (0, 0), handed.fingerprint, handed.group, None, handed.size, state.now_ms
        )
        message.epoch = state.epoch_counter
        if handed.group is not None and state.policy.grouped:
            group = state.group(handed.group)
            target = self._owner(group)
            message.first, group.fresh = group.fresh, False
            if group.epoch == 0:
                state.begin_epoch(group)
            group.number(message)
        else:
            target = self._least_loaded()
        seq, target.next_seq = target.next_seq, target.next_seq + 1
        assert target.depth is not None
        target.depth += 1
        self._stored[target] += 1
        target.credit -= 1
        state.refresh_credit(target)
        state.counters["handed_on"] += 1
        state.effects.records.append(NumbersUsed(target.number, seq))
        number, attempt = message.group_seq, handed.attempt + 1
        state.effects.actions.append(
            ForwardReclaimed(
                handed, target.number, target.queue, seq, number, message.epoch, attempt, message.first
            )
        )

    def _owner(self, group: Group) -> Consumer:
        if group.owner is not None and group.owner.stays:
            return group.owner
        owner = self._least_loaded()
        self._state.assign(group, owner, GroupState.OWNED)
        return owner

    def _least_loaded(self) -> Consumer:
        return min(receivers(self._state), key=lambda c: (len(c.groups), c.depth or 0, c.number))

    # -- what became of it --

    def handed_on(self, event: ReclaimedForwarded) -> None:
        """Its next queue has it."""
        self._state.effects.actions.append(AckReclaimed(event.handed))
        queue = event.handed.queue
        over = self._open.get(queue)
        if over is not None:
            over.pending.discard(event.handed)
            if not over.pending:
                self._state.effects.actions.append(ReleaseQueue(queue))

    def refused(self, event: ReclaimedRefused) -> None:
        """No consumer can get it."""
        self._bury(event.handed, f"unpublishable: {event.problem}")

    def rejected(self, event: MessageRejected) -> None:
        """Its consumer does not want it: that counts as exhausted at once."""
        self._state.counters["failed"] += 1
        self._bury(event.handed, event.reason)

    def _bury(self, handed: ReclaimedCopy, reason: str) -> None:
        state = self._state
        state.counters["dead_lettered"] += 1
        group = None if handed.group is None else format_group(handed.group)
        state.warn("message_dead_lettered", group=group, reason=reason, attempt=handed.attempt, calls=0)
        state.effects.actions.append(DeadLetterReclaimed(handed, reason))

    def released(self, event: QueueReleased) -> None:
        """Nothing of it is in its queue any more: its consumer may come back, as another incarnation. Until
        then a leader that follows has to read it back once more: acks are lost with a connection."""
        state, queue = self._state, event.queue
        over = self._open.pop(queue, None)
        if over is None:
            return
        end_reclaiming(state, over.number)
        state.effects.incarnations[over.number] = over.row._replace(state="taken")
        if queue in self._due_ms:
            self._due_ms[queue] = state.now_ms


def _is_short(consumer: Consumer) -> bool:
    """It may get no more than half of its prefetch, as far as is known."""
    return consumer.credit <= consumer.prefetch // 2
