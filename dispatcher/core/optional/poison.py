"""Poison: a message that kills its consumers, told from those that only were at the same consumer.

A death says nothing about one of many messages. So a message that was unsettled at `max(1, attempts − 1)`
deaths is a suspect: it goes next, with its group, to a consumer that has nothing else, and that one gets
nothing else until it is settled. If that one dies too, and any consumer has settled anything since the
suspect's first death (else all of them may be dying of something else), it is poison. Its neighbours go on.

A message can have killed its consumer only if that one may have begun to process it (`may_have_begun`).
Every hand-over ends in a settle or a death, so `deaths` is `attempt` without the hand-overs that had not
begun. Only this leader knows these: after a fail-over, and for a message that was parked, all count.

A message that failed and was released (`retry.on_exhausted: stop`) is suspected as early as if it had died
instead, but it is never poison before it was tried once more after its first death.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Final

from dispatcher.core.bounds import NEVER_MS
from dispatcher.core.consumer_life import Ending
from dispatcher.core.delivery import DeliveryPass
from dispatcher.core.effects import Snapshot
from dispatcher.core.feature import Feature, Handler
from dispatcher.core.holds import Facts, HoldKind
from dispatcher.core.model import Consumer, Group, GroupState, MessageState, Original
from dispatcher.core.rare_facts import NO_DEATH
from dispatcher.core.state import LaneState
from dispatcher.core.waiting import backlog_of, head_changed, waits_here
from dispatcher.core.wording import begin, counted, named, times
from dispatcher.wire.protocol import Begun, Heartbeat, Settle

REASON_POISON: Final = "poison"


class Told(dict[type, Begun]):
    """What a consumer says that it has begun, in its latest settle and in its latest heartbeat."""


class Suspects(Feature):
    """Tries suspects, the longest suspected first, and judges them when their consumers die.

    At most half of the live consumers (at least one) are with suspects at a time: the others' work goes on.
    """

    def __init__(self, state: LaneState, delivery: DeliveryPass) -> None:
        self._state = state
        self._delivery = delivery
        self._dispatch: Callable[[Original, Consumer], None] = self._dispatch_alone  # see DeliveryPass
        self._alone: dict[Consumer, None] = {}  # those with `alone_with`
        #: Suspects that died alone when nothing had been settled since their first death: the lane's settles
        #: at that moment.
        self._unproven: dict[Original, int] = {}
        self.pending = (self._alone, state.suspects)
        #: A message with this many deaths is a suspect. None is in a lane whose consumers only read.
        self.suspect_after = max(1, state.options.attempts - 1) if not state.options.handover else NEVER_MS
        state.eligibility.retry_checks.append(self._held_by)
        state.signals.blaming.append(self._blame)
        state.signals.setting_aside.append(self._note)
        state.explanation.facts[HoldKind.SUSPECT] = self._facts
        state.explanation.sentences[HoldKind.SUSPECT] = self._sentence
        state.explanation.sentences[HoldKind.KEPT_FREE] = self._sentence_of_others
        # A suspect keeps its place also while its group is on its way between consumers.
        for kind in (HoldKind.SUSPECT, HoldKind.RECOVERING, HoldKind.DRAINING, HoldKind.BATCHED):
            state.on_hold[kind] = lambda _, head: self._note(head)

    def load(self, snapshot: Snapshot) -> None:
        """Take over who was alone with a suspect when the former leader ended."""
        for consumer in self._state.by_uuid.values():
            messages = list(consumer.in_flight.values())
            if len(messages) == 1 and messages[0].deaths > self.suspect_after:
                self._reserve_for(consumer, messages[0])

    def events(self) -> Mapping[type, Handler]:
        return {Settle: self._told, Heartbeat: self._told}

    # -- deaths --

    def _told(self, told: Settle | Heartbeat) -> None:
        consumer = self._state.by_uuid.get(told.incarnation)
        if told.begun is None or consumer is None or consumer.id != told.consumer:
            return
        if isinstance(told, Heartbeat) and consumer.queue != told.queue:
            return  # of its former connection
        consumer.note(Told)[type(told)] = told.begun

    def _blame(self, consumer: Consumer, ending: Ending) -> tuple[Original, str] | None:
        """The message that has killed this consumer, if that is sure."""
        poison = self._poison_of(consumer, ending)
        return (poison, REASON_POISON) if poison is not None else None

    def _poison_of(self, consumer: Consumer, ending: Ending) -> Original | None:
        settles = self._state.settles
        begun = set() if ending is Ending.NOTHING else may_have_begun(consumer)
        for message in consumer.in_flight.values():
            if message not in begun:
                message.unbegun += 1
            elif message.deaths == 1 or message.settles_at_death == NO_DEATH:
                message.settles_at_death = settles
        suspect, is_alone = consumer.alone_with, len(consumer.in_flight) == 1
        self._let_go(consumer)
        if suspect is None or suspect.consumer is not consumer or not is_alone:
            return None
        if ending is not Ending.DEATH:
            return None
        if settles > suspect.settles_at_death:
            self._unproven.pop(suspect, None)
            self._state.counters["poisoned"] += 1
            return suspect
        self._unproven[suspect] = settles
        return None

    # -- trying --

    def _held_by(self, head: Original) -> HoldKind | None:
        return HoldKind.SUSPECT if head.deaths >= self.suspect_after else None

    def _note(self, message: Original) -> bool:
        """Whether it is a suspect: it is tried alone then."""
        is_suspect = self._held_by(message) is not None
        if is_suspect:
            self._state.suspects.add(message)
        return is_suspect

    def _facts(self, _: Group, head: Original | None) -> Facts:
        assert head is not None
        kept = [consumer.id for consumer in self._alone if consumer.alone_with is head]
        failed = self._state.stops_failed  # some attempts may have been failures, after which it was released
        return {"attempt": head.attempt, "consumer": kept[0] if kept else None, "failed": failed}

    @staticmethod
    def _sentence(facts: Facts) -> str:
        where = f"consumer {facts['consumer']} is" if facts["consumer"] is not None else "a consumer is"
        if facts["failed"]:
            became = f"Its first message was handed over {times(facts['attempt'])} in vain"
        else:
            had = "it" if facts["attempt"] == 1 else "they"
            became = f"{counted(facts['attempt'], 'consumer')} died while {had} had its first message"
        return f"{became}: it goes alone, as soon as {where} free of everything else."

    @staticmethod
    def _sentence_of_others(facts: Facts) -> str:
        """Of a group that is its consumer's own, or pinned to it."""
        return begin(f"{named(facts)} gets nothing else while it tries a message that others died with.")

    def before_pass(self) -> None:
        """Suspects go before everything else."""
        self._forget_what_is_over()
        self._offer(hopeful=True)

    def after_pass(self, *, idle: bool) -> bool:
        """Try those that died alone while no consumer has settled anything since. Other messages come first,
        because a consumer that settles one of them proves that consumers can live; so may messages that are
        being read from parking queues."""
        if self._unproven and self._state.suspects and not self._state.parking.is_reading():
            self._offer(hopeful=False)
        return False

    def _forget_what_is_over(self) -> None:
        for consumer in list(self._alone):
            message = consumer.alone_with
            assert message is not None
            is_its_own = message.state is MessageState.IN_FLIGHT and message.consumer is consumer
            if not is_its_own and not (self._may_go(message) and self._may_have(consumer, message)):
                self._let_go(consumer)
                self._state.refresh_credit(consumer)
        over = (MessageState.SETTLED, MessageState.ENDING)
        for message in [m for m in self._unproven if m.state in over]:
            del self._unproven[message]

    def _offer(self, *, hopeful: bool) -> None:
        state = self._state
        if state.eligibility.is_suspended(state.now_ms):
            return
        for consumer in list(self._alone):
            self._hand_over_if_empty(consumer)
        live = sum(consumer.is_open for consumer in state.by_id.values())
        while len(self._alone) < max(1, live // 2):
            chosen = self._choose(hopeful=hopeful)
            if chosen is None:
                return
            consumer, message = chosen
            self._reserve_for(consumer, message)
            state.refresh_credit(consumer)
            self._hand_over_if_empty(consumer)

    def _choose(self, *, hopeful: bool) -> tuple[Consumer, Original] | None:
        settles, suspects = self._state.settles, self._state.suspects
        promised = {consumer.alone_with for consumer in self._alone}
        chosen, listed_again_when_it_may = None, []
        for message in suspects:
            if not self._may_go(message):
                listed_again_when_it_may.append(message)
            elif message not in promised and hopeful is (self._unproven.get(message, -1) < settles):
                consumer = self._best_for(message)
                if consumer is not None and (hopeful or not consumer.in_flight):
                    chosen = consumer, message
                    break
        for message in listed_again_when_it_may:
            del suspects[message]
        return chosen

    def _best_for(self, message: Original) -> Consumer | None:
        """The consumer with the fewest messages in flight, of those that may have it."""
        free = [c for c in self._state.by_id.values() if c.alone_with is None and self._may_have(c, message)]
        return min(free, key=lambda consumer: len(consumer.in_flight), default=None)

    def _hand_over_if_empty(self, consumer: Consumer) -> None:
        """Hand over the suspect for which this consumer is kept free; or to one that is empty before it."""
        message = consumer.alone_with
        assert message is not None
        if message.state is not MessageState.WAITING:
            return
        if consumer.in_flight:
            other = self._best_for(message)
            if other is None or other.in_flight:
                return
            self._let_go(consumer)
            self._state.refresh_credit(consumer)
            self._reserve_for(other, message)
            self._state.refresh_credit(other)
            consumer = other
        self._state.log_message(message, "suspect_tried_alone", consumer=consumer.id, deaths=message.deaths)
        self._dispatch(message, consumer)

    def _dispatch_alone(self, message: Original, consumer: Consumer) -> None:
        """The consumer has nothing else. The inbound queue does not pay: many suspects would leave it in debt
        for long."""
        state = self._state
        inbound = state.inbounds[message.inbound]
        backlog = backlog_of(state, message)
        if backlog is None:
            self._delivery.dispatch(inbound, message, consumer, None)
        else:
            group = backlog.group
            if group.state is GroupState.FREE:
                tops_up = state.policy.tops_up
                state.assign(group, consumer, GroupState.OWNED if tops_up else GroupState.BATCHED)
            backlog.messages.popleft()
            self._delivery.dispatch(inbound, message, consumer, group)
            head_changed(state, backlog)
        inbound.repay(message.cost)

    def _reserve_for(self, consumer: Consumer, message: Original) -> None:
        consumer.alone_with = message
        self._alone[consumer] = None

    def _let_go(self, consumer: Consumer) -> None:
        consumer.alone_with = None
        self._alone.pop(consumer, None)

    # -- conditions --

    def _may_go(self, message: Original) -> bool:
        """It waits, it is the first of its group, and nothing keeps that back."""
        if not (waits_here(message) and message.is_here):
            return False
        backlog = backlog_of(self._state, message)
        if backlog is None:
            return True
        held_by = self._state.eligibility.group_held_by(backlog.group)
        return held_by is None and backlog.head() is message

    def _may_have(self, consumer: Consumer, message: Original) -> bool:
        backlog = backlog_of(self._state, message)
        if backlog is not None and backlog.group.state is GroupState.OWNED:
            return consumer is backlog.group.owner and consumer.receives
        if backlog is not None and backlog.group.taker not in (None, consumer):
            return False  # it is pinned to another
        return consumer.is_open


def may_have_begun(consumer: Consumer) -> set[Original]:
    """The unsettled messages that the consumer may have been processing when it was heard last.

    Of each group it is the first message, for a consumer processes them one after the other
    (docs/protocol.md, rule 2). One that says what it has begun, and how many it processes at a time, may have
    begun that many others since, in the order in which they came. One that says nothing may have begun the
    first of every group.
    """
    heads: dict[Group | Original, Original] = {}
    seqs = sorted(consumer.in_flight)
    for seq in seqs:
        message = consumer.in_flight[seq]
        heads.setdefault(message.group or message, message)
    told = consumer.note(Told).values()
    if not told:
        return set(heads.values())
    begun = {consumer.in_flight[seq] for seq in _named(seqs, told)}
    limits = [each.concurrency for each in told]
    others = None if None in limits else max(filter(None, limits))
    since = (message for message in heads.values() if message not in begun)
    return begun | set(islice(since, others))


def _named(seqs: list[int], told: Iterable[Begun]) -> Iterator[int]:
    """Those of these rising numbers that a consumer has named. Its settles and its heartbeats take different
    ways, so the older of the two may be read last; but what has begun stays begun until it is settled."""
    ranges = deque(sorted(pair for each in told for pair in each.ranges))
    reached = 0
    for seq in seqs:
        while ranges and ranges[0][0] <= seq:
            reached = max(reached, ranges.popleft()[1])
        if seq <= reached:
            yield seq
