"""Messages that can't be processed go to the dead queue, each with a reason."""

from __future__ import annotations

from collections.abc import Mapping

from dispatcher.core.entries import ended_entry
from dispatcher.core.events import DeadLetterConfirmed, DeadLetterRefused
from dispatcher.core.feature import Feature, Handler
from dispatcher.core.model import MessageState, Original
from dispatcher.core.orders import DeadLetter
from dispatcher.core.records import Discharged
from dispatcher.core.state import LaneState


def dead_letter(state: LaneState, message: Original, reason: str) -> None:
    """Send this message to the dead queue. No consumer has it now. If its original is not here yet, that
    waits until it is (G-7)."""
    if message.is_here:
        message.become(MessageState.ENDING)
        state.leave_wait(message)
        state.ending[message] = reason
        state.effects.records.append(ended_entry(message, reason))
        state.effects.actions.append(DeadLetter(message, reason))
    elif not state.absent.failed_before_its_return(message, reason):
        return
    state.counters["dead_lettered"] += 1
    facts = {"reason": reason, "attempt": message.attempt, "calls": message.calls}
    state.warn_message(message, "message_dead_lettered", **facts)


class DeadLetters(Feature):
    """Ends messages whose copy is in the dead queue, and keeps in sight what that does not take (D-8)."""

    def __init__(self, state: LaneState) -> None:
        self._state = state

    def events(self) -> Mapping[type, Handler]:
        return {
            DeadLetterConfirmed: lambda event: self.discharged(event.message),
            DeadLetterRefused: self.refused,
        }

    def discharged(self, message: Original) -> None:
        """The broker has stored the copy in the dead queue: the original is settled."""
        if message.state is not MessageState.ENDING:
            return
        state = self._state
        state.ending.pop(message, None)
        state.undeliverable.pop(message, None)
        state.effects.records.append(Discharged(message.queue, message.arrival))
        state.settled(message)

    def refused(self, event: DeadLetterRefused) -> None:
        """It stays in its inbound queue, unacknowledged; the edge tries again now and then."""
        message = event.message
        if message.state is MessageState.ENDING:
            self._state.undeliverable[message] = event.problem
