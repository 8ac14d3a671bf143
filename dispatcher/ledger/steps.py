"""What the records of one step need to know of each other."""

from __future__ import annotations

from dispatcher.core.effects import Effects
from dispatcher.core.model import Original
from dispatcher.core.operations.orders import SendTransfer
from dispatcher.core.orders import AckInbound, DeadLetter, LogEvent
from dispatcher.core.queue_ids import QueueId
from dispatcher.ledger.schema import Event

#: The queue that an original is in, and its arrival there.
Place = tuple[QueueId, tuple[int, int]]


class Step:
    """What a step's rare records need to know of its others."""

    def __init__(self, effects: Effects) -> None:
        self._effects = effects
        self.done: set[Place] = set()  # of messages that have their record
        self._messages: dict[Place, Original] | None = None
        self._acked: dict[Place, Original] | None = None

    @property
    def messages(self) -> dict[Place, Original]:
        """The messages that this step sends to the dead queue or elsewhere."""
        if self._messages is None:
            leaving = [a.message for a in self._effects.actions if isinstance(a, DeadLetter | SendTransfer)]
            self._messages = {(message.queue, message.arrival): message for message in leaving}
        return self._messages

    @property
    def acked(self) -> dict[Place, Original]:
        if self._acked is None:
            acks = [a for a in self._effects.actions if isinstance(a, AckInbound)]
            self._acked = {(m.queue, m.arrival): m for ack in acks for m in ack.messages}
        return self._acked

    def failure(self, group: str | None) -> tuple[str | None, int | None]:
        """Why a message of the group failed at which the group stops, and after how many calls: of each group
        one is out at a time in such a lane, so one can fail in a step."""
        for action in self._effects.actions:
            if (
                isinstance(action, LogEvent)
                and action.event == "group_stopped"
                and action.fields["group"] == group
            ):
                return action.fields["reason"], action.fields["calls"]
        return None, None

    def why(self, message: Original) -> Event:
        """Why an original ended that no consumer got."""
        if message.redelivered and message.arrival[1] != message.tag:  # it met its settled entry
            return Event.ACKED_AGAIN
        repeats = (message.queue, message.arrival) in self._effects.repeated
        return Event.DEDUPLICATED if repeats else Event.PURGED
