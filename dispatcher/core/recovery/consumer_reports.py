"""Learning from the consumers what Redis has forgotten.

A new leader that can't be sure that Redis holds everything (it is empty, was restarted, or failed over)
asks every consumer to join again and dispatches nothing for two heartbeats. A message that a consumer
reports in hand is an open entry, whatever the journal says (docs/architecture.md, "When Redis forgets").
"""

from __future__ import annotations

from dispatcher.core.bounds import COUNTER_SHIFT, LANE_EPOCHS_AHEAD_MAX
from dispatcher.core.consumer_life import PRESENT
from dispatcher.core.entries import open_entry
from dispatcher.core.holds import Facts, HoldKind
from dispatcher.core.model import Consumer, MessageState, Original
from dispatcher.core.notices import send_notice
from dispatcher.core.queue_ids import UNKNOWN_INBOUND
from dispatcher.core.recovery.copies import Copies
from dispatcher.core.recovery.matching import Recovery
from dispatcher.core.state import LaneState
from dispatcher.core.waiting import remove_waiting
from dispatcher.errors import NumbersBehind
from dispatcher.wire.protocol import TYPE_REJOIN, InHand, Join

#: How many heartbeats consumers have to answer a `dispatch.rejoin`: one may be lost with a connection.
HEARTBEATS_TO_WAIT = 2


class ConsumerReports:
    """Takes over what consumers report."""

    def __init__(self, state: LaneState, recovery: Recovery) -> None:
        self._state = state
        self._recovery = recovery
        self._groups = recovery.groups
        self._by_fingerprint: dict[bytes, list[Original]] = {}
        self._asked: set[str] = set()  # consumer queues that got a `dispatch.rejoin`
        state.explanation.sentences[HoldKind.CONSUMERS_ASKED] = _sentence

    @property
    def open(self) -> bool:
        """Consumers are being asked: Redis is not trusted to know everything."""
        return self._state.lane_holds.consumers_asked

    def begin(self) -> None:
        """Dispatch nothing until the consumers have had time to answer."""
        self._state.signals.delivered.append(self.saw)
        self._wait()
        for message in self._recovery.open_entries():
            self.saw(message)

    def wait(self) -> None:
        """Their time begins now: no consumer could be heard before."""
        if self.open:
            self._wait()

    def _wait(self) -> None:
        holds, kind = self._state.lane_holds, HoldKind.CONSUMERS_ASKED
        until_ms = self._state.now_ms + HEARTBEATS_TO_WAIT * self._state.options.heartbeat_ms
        holds.put(kind, until_ms=max(until_ms, holds.until_ms(kind)))

    def ask(self, consumer: Consumer) -> None:
        """Have it join again, once for each of its queues: a join that we read may be older than the messages
        that it has now."""
        if self.open and consumer.queue not in self._asked:
            self._asked.add(consumer.queue)
            send_notice(self._state, consumer, TYPE_REJOIN)

    def saw(self, message: Original) -> None:
        """An open entry, or an original that came: a consumer may report it."""
        self._by_fingerprint.setdefault(message.fingerprint, []).append(message)

    def heard_of(self, seq: int) -> None:
        """A consumer has seen this number. Raises NumbersBehind if those that we would give are lower.

        Nothing was dispatched yet, so beginning again with a higher lane epoch costs nothing.
        """
        lane_epoch = seq >> COUNTER_SHIFT
        if self.open and lane_epoch >= self._state.lane_epoch and not self._is_made_up(seq):
            raise NumbersBehind(lane_epoch + 1)

    def _heard_of_epoch(self, epoch: int) -> None:
        """The same of an epoch: a copy that a leader sent again has its epoch and a former leader's number.
        Consumers that answer late must not wait for higher epochs for ever: then the next ones are."""
        if epoch > self._state.epoch_counter and not self._is_made_up(epoch):
            self.heard_of(epoch)
            self._state.epoch_counter = epoch

    def _is_made_up(self, seq: int) -> bool:
        """No leader can have given this number."""
        return (seq >> COUNTER_SHIFT) > self._state.lane_epoch + LANE_EPOCHS_AHEAD_MAX

    def closes_now(self) -> bool:
        """True once: the consumers have had their time."""
        state, holds = self._state, self._state.lane_holds
        if not self.open or holds.publishers_blocked or state.now_ms < holds.suspended_until_ms:
            return False
        state.signals.delivered.remove(self.saw)
        state.lane_holds.lift(HoldKind.CONSUMERS_ASKED)
        self._by_fingerprint.clear()
        return True

    def report(self, consumer: Consumer, join: Join) -> None:
        """Remember what a joining consumer has in hand, and adopt what we did not know of."""
        consumer.note(Copies).reported = frozenset(item.seq for item in join.in_hand)
        self._heard_of_epoch(join.epoch)
        if not self.open:
            return
        for item in join.in_hand:
            self.heard_of(item.seq)
        for item in join.in_hand:
            if self._is_made_up(item.seq):
                self._state.ignored_settles.note(consumer.id, 1)
            elif item.seq not in consumer.in_flight:
                self._adopt(consumer, item)

    def has_any(self, consumer: Consumer) -> bool:
        """It has said that it has something in hand."""
        return bool(consumer.note(Copies).reported)

    def send_missing(self, consumer: Consumer) -> None:
        """Send the copies again that were lost with the former queue: same seq, in the former order.

        A group of which the consumer waits for a number that will not come gets a new epoch and counts from
        1. The missing number belongs either to a copy whose original is gone, or to one that got another
        number while the first copy was still in the consumer's queue. The consumer ignores the second copy
        then, which shows when it lacks it once more.
        """
        copies = consumer.note(Copies)
        missing = [consumer.in_flight[seq] for seq in sorted(consumer.in_flight) if not copies.has(seq)]
        for message in missing:
            group = message.group
            if self._recovery.is_lost(message):
                self._recovery.lost_originals.drop(message, consumer)
            elif group is not None and (not message.group_seq or message.seq in copies.sent_again):
                copies.broken.add(group)
        copies.sent_again.clear()
        ready = [
            m for m in missing
            if m.consumer is consumer and m.is_here and (m.group is None or not m.group.unresolved)
        ]  # fmt: skip
        copies.sent_again.update(message.seq for message in ready)
        self._recovery.resending.send_all(ready)

    def _adopt(self, consumer: Consumer, item: InHand) -> None:
        self._state.counters["adopted"] += 1
        message = self._find(item)
        if message is None:
            arrival = (consumer.number, item.seq)
            message = Original(
                UNKNOWN_INBOUND, 0, arrival, item.fingerprint, item.group, None, 0, self._state.now_ms
            )  # fmt: skip
            self._hand_to(consumer, message, item)
            if self._recovery.is_through():  # its original does not come any more
                self._report_to_group(message)
            else:
                self._recovery.expect(message)
                self._groups.wait_for(message)
            self.saw(message)
        else:
            self._take_from_elsewhere(message)
            self._hand_to(consumer, message, item)
            if message.is_here:
                self._state.inbounds[message.inbound].count_out()
            self._report_to_group(message)
        self._state.effects.records.append(open_entry(message))

    def _report_to_group(self, message: Original) -> None:
        if message.group is None and message.group_id is not None and self._state.policy.grouped:
            message.group = self._state.group(message.group_id)
        self._groups.reported(message)

    def _hand_to(self, consumer: Consumer, message: Original, item: InHand) -> None:
        """It is in flight at this consumer. Its group's numbers are not known: a join doesn't name them."""
        message.seq, message.epoch, message.group_seq, message.first = item.seq, 0, 0, False
        message.attempt = max(message.attempt, 1)
        self._recovery.put_in_flight(message, consumer)

    def _find(self, item: InHand) -> Original | None:
        """An original or entry with these bytes, unless a live consumer has said that it has it."""
        for message in self._by_fingerprint.get(item.fingerprint, ()):
            holder = message.consumer
            if holder is not None and holder.state in PRESENT and holder.note(Copies).has(message.seq):
                continue
            if message.state in (MessageState.WAITING, MessageState.IN_FLIGHT):
                return message
        return None

    def _take_from_elsewhere(self, message: Original) -> None:
        """The journal was older than the truth: it waits here, or is in flight at another consumer."""
        state = self._state
        if message.consumer is not None:
            other = message.consumer
            del other.in_flight[message.seq]
            other.credit += 1
            if message.is_here:
                state.inbounds[message.inbound].count_back()
            if message.group is not None:
                message.group.count_back(message)
                state.relist_backlogs(message.group)
            state.refresh_credit(other)
        elif message.is_here and not any(withdraw(message) for withdraw in state.signals.withdrawing):
            remove_waiting(state, message)


def _sentence(facts: Facts) -> str:
    return (
        f"Redis may have forgotten messages in flight: waiting {facts['left_ms']} ms more for the "
        "consumers' word."
    )
