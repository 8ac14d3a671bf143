"""Originals go to parking queues: committed, published in order, confirmed, settled where they were."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dispatcher.core.dead_letters import dead_letter
from dispatcher.core.feature import Feature, Handler
from dispatcher.core.model import MessageState, Original
from dispatcher.core.parking.events import RelocationConfirmed, RelocationImpossible, RelocationRefused
from dispatcher.core.parking.orders import ParkCopy, Relocated, Relocating, TermNeeded
from dispatcher.core.parking.queue import ParkingQueue, Relocation
from dispatcher.core.state import LaneState
from dispatcher.wire.origin import origin_fingerprint, origin_text

#: Copies published and not yet confirmed: enough for the disk to be busy, and few enough that dispatches,
#: which share the connection with them, don't wait.
RELOCATIONS_UNCONFIRMED_MAX: Final = 256
RELOCATIONS_UNCONFIRMED_BYTES_MAX: Final = 2 * 1024 * 1024
#: After a refused publish everything unconfirmed in that parking queue is published again.
RETRY_MS: Final = 1_000


class Relocations(Feature):
    """The relocations of one lane."""

    def __init__(self, state: LaneState) -> None:
        self._state = state

    def events(self) -> Mapping[type, Handler]:
        return {
            RelocationConfirmed: self.confirmed,
            RelocationRefused: self.refused,
            RelocationImpossible: self.given_up,
        }

    def wait(self, message: Original, target: ParkingQueue) -> None:
        """Let a message that waits here wait there; it goes behind all earlier ones."""
        message.relocation = Relocation(target, self.fingerprint_of(message))
        target.waiting.append(message)

    def fingerprint_of(self, message: Original) -> bytes:
        """What the message is called in any parking queue."""
        if message.is_parked:
            return message.fingerprint
        name = self._state.inbounds[message.queue].name
        return origin_fingerprint(origin_text(name, message.arrival))

    # -- orders --

    def run(self) -> None:
        """Publish what may be published now."""
        for queue in self._state.parking.values():
            if queue.waiting and queue.is_open and not self._is_held_back(queue):
                self._publish(queue)

    def _is_held_back(self, queue: ParkingQueue) -> bool:
        """It is nearly read out, and a consumer can take all of it: waiting messages may go directly soon.
        Not while too many bytes are held: then nothing is read, and these messages are part of them."""
        if self._state.now_ms < queue.refused_until_ms:
            return True
        if len(queue.relocating) > len(queue.published):  # some must be published again
            return False
        if not queue.end_seen or not queue.is_wanted(self._state.pool):
            return False
        if self._state.bytes_held >= self._state.options.held_bytes_max:
            return False
        return not queue.holds_undecided(self._state.revoked)

    def _publish(self, queue: ParkingQueue) -> None:
        state, waiting = self._state, queue.waiting
        while (
            waiting
            and state.parking.unconfirmed < RELOCATIONS_UNCONFIRMED_MAX
            and state.parking.unconfirmed_bytes < RELOCATIONS_UNCONFIRMED_BYTES_MAX
        ):
            message = waiting.popleft()
            if message.state in (MessageState.WAITING, MessageState.RELOCATING):
                self._begin(message, queue)

    def _begin(self, message: Original, queue: ParkingQueue) -> None:
        state, relocation = self._state, message.relocation
        assert relocation is not None
        if message.state is MessageState.WAITING:
            state.inbounds[message.inbound].end_to_wait()
            state.revoked.discard(message)
            message.become(MessageState.RELOCATING)
            queue.relocating[relocation.copy] = message
        if not queue.term:
            queue.term = state.next_epoch()
        relocation.term = queue.term
        queue.published[relocation.copy] = message
        state.parking.unconfirmed += 1
        state.parking.unconfirmed_bytes += message.size
        state.effects.records.append(self.entry(message))
        state.effects.actions.append(ParkCopy(message, queue.index, relocation.term))

    @staticmethod
    def entry(message: Original) -> Relocating:
        """The journal entry of an open relocation."""
        relocation = message.relocation
        assert relocation is not None
        return Relocating(
            message.queue, message.arrival, message.fingerprint, message.group_id, message.attempt,
            relocation.target.index, relocation.copy, relocation.term_needed,
        )  # fmt: skip

    # -- answers --

    def confirmed(self, event: RelocationConfirmed) -> None:
        """The broker has this copy. It counts once it has all that were published before it, too: a killed
        broker may keep a later one and lose an earlier one."""
        relocation = event.message.relocation
        self._answered(event.message)
        if relocation is None or event.term != relocation.term or not relocation.is_published:
            return
        queue = relocation.target
        queue.confirmed.add(relocation.copy)
        self._take_confirmed(queue)

    def _take_confirmed(self, queue: ParkingQueue) -> None:
        while queue.published:
            copy, message = next(iter(queue.published.items()))
            if copy not in queue.confirmed:
                return
            del queue.published[copy]
            queue.confirmed.discard(copy)
            self._end_relocation(message, queue)

    def _end_relocation(self, message: Original, queue: ParkingQueue) -> None:
        state, relocation = self._state, message.relocation
        assert relocation is not None
        state.effects.records.append(Relocated(message.queue, message.arrival))
        del queue.relocating[relocation.copy]
        queue.additions += 1
        queue.store(message)
        if relocation.term_needed:
            queue.terms_needed[relocation.copy] = relocation.term_needed
        state.settled(message)
        message.relocation = None
        state.counters["parked"] += 1

    def refused(self, event: RelocationRefused) -> None:
        """The broker did not take it, and may have taken later ones: all are published again, in order."""
        relocation = event.message.relocation
        self._answered(event.message)
        if relocation is None or event.term != relocation.term or not relocation.is_published:
            return
        queue = relocation.target
        queue.term = self._state.next_epoch()
        queue.refused_until_ms = self._state.now_ms + RETRY_MS
        again = list(queue.published.values())
        for message in again:
            assert message.relocation is not None
            message.relocation.repeated = True
        queue.published.clear()
        queue.confirmed.clear()
        queue.waiting.extendleft(reversed(again))
        self._state.log_event("parking_refused", queue=queue.name, messages=len(again))

    def given_up(self, event: RelocationImpossible) -> None:
        """It can't be parked: it goes to the dead queue, and the copies behind it go on."""
        message, relocation = event.message, event.message.relocation
        self._answered(message)
        if message.state is not MessageState.RELOCATING or relocation is None:
            return
        queue = relocation.target
        queue.published.pop(relocation.copy, None)
        queue.relocating.pop(relocation.copy, None)
        message.relocation = None
        self._state.counters["unpublishable"] += 1
        dead_letter(self._state, message, f"unpublishable: {event.problem}")
        self._take_confirmed(queue)

    def _answered(self, message: Original) -> None:
        self._state.parking.unconfirmed -= 1
        self._state.parking.unconfirmed_bytes -= message.size


def resume_relocation(state: LaneState, message: Original, entry: Relocating, *, is_known: bool) -> None:
    """The journal has an open relocation of this message: it is done again when the original comes.

    A copy that came through all the same is void then. Not unless it `is_known` which relocations were open:
    if Redis has forgotten those of later messages, their copies count, and must not pass it.
    """
    target = state.parking[entry.target]
    message.become(MessageState.RELOCATING)
    message.relocation = Relocation(target, entry.copy)
    message.relocation.repeated = is_known
    message.relocation.resumed = True
    target.void_before = max(target.void_before, entry.term)
    target.relocating[entry.copy] = message


def forget_relocation(state: LaneState, message: Original, *, is_known: bool) -> None:
    """Its original is gone from where it was: a copy that came through all the same is none. Only if it
    is known that the relocation was not done: Redis may have forgotten that."""
    relocation = message.relocation
    assert relocation is not None
    queue = relocation.target
    queue.relocating.pop(relocation.copy, None)
    term = state.next_epoch() if is_known else relocation.term_needed
    if term:
        queue.terms_needed[relocation.copy] = term
        state.effects.records.append(TermNeeded(queue.index, relocation.copy, term))
    message.relocation = None
