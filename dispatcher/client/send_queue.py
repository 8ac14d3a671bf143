"""What a producer has to send: in order, one unconfirmed message per group."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from dispatcher.client.links import Publication
from dispatcher.errors import SendFailed

#: More unconfirmed messages don't make a broker faster.
UNCONFIRMED_MAX: Final = 1_000
#: Messages that wait for an answer. A sender that is faster than the broker must wait for it.
WAITING_MAX: Final = 100_000


class Outgoing:
    """One message on its way, and whom to tell how it ended."""

    __slots__ = ("abandoned", "group", "number", "publication", "resolve")

    def __init__(
        self,
        group: bytes | None,
        publication: Publication,
        resolve: Callable[[Exception | None], None],
        abandoned: Callable[[], bool],
    ) -> None:
        self.group = group
        self.publication = publication
        self.number = publication.token  # rises with every submission
        self.resolve = resolve  # called once: with None when the broker has confirmed the message
        self.abandoned = abandoned  # its sender no longer waits: it is not sent if it wasn't yet


class Failure(NamedTuple):
    outgoing: Outgoing
    error: Exception


class SendQueue:
    """Decides what may be published now.

    The next message of a group goes out when the broker has confirmed the one before: so no later one can
    overtake one that fails. Messages of different groups, and those without one, don't wait for each other.
    After a lost connection unconfirmed messages are published again, in the order of submission; the broker
    may have had it, then it has it twice, with the same message id.
    """

    def __init__(self) -> None:
        self._lines: dict[bytes, deque[Outgoing]] = {}  # by group; the first is ready or in flight
        self._ready: deque[Outgoing] = deque()
        self._in_flight: dict[int, Outgoing] = {}
        self._message_ids: set[str] = set()

    def __len__(self) -> int:
        """Messages that are not answered yet."""
        return len(self._message_ids)

    def submit(self, outgoing: Outgoing) -> None:
        """Queue a message. Raises SendFailed when too many wait, ValueError for a message id among them."""
        message_id = outgoing.publication.message_id
        if len(self._message_ids) >= WAITING_MAX:
            raise SendFailed(f"{WAITING_MAX} messages wait to be sent: wait for some of them first")
        if message_id in self._message_ids:
            raise ValueError(f"a message with the message_id {message_id!r} is being sent")
        self._message_ids.add(message_id)
        if outgoing.group is not None:
            line = self._lines.setdefault(outgoing.group, deque())
            line.append(outgoing)
            if len(line) > 1:
                return
        self._ready.append(outgoing)

    def take(self) -> list[Publication]:
        """What may be published now, in this order."""
        publications = []
        while self._ready and len(self._in_flight) < UNCONFIRMED_MAX:
            outgoing = self._ready.popleft()
            if outgoing.abandoned():
                self._leave(outgoing)
                continue
            self._in_flight[outgoing.number] = outgoing
            publications.append(outgoing.publication)
        return publications

    def confirmed(self, token: int) -> Outgoing | None:
        """The broker has it. None: it is not in flight."""
        outgoing = self._in_flight.pop(token, None)
        if outgoing is not None:
            self._leave(outgoing)
        return outgoing

    def refused(self, token: int, reason: str) -> list[Failure]:
        """The broker refuses it for good: the waiting messages behind it in its group are not sent either."""
        outgoing = self._in_flight.pop(token, None)
        if outgoing is None:
            return []
        failures = [Failure(outgoing, SendFailed(f"RabbitMQ did not take the message: {reason}"))]
        if outgoing.group is None:
            self._leave(outgoing)
            return failures
        line = self._lines.pop(outgoing.group)
        for later in list(line)[1:]:
            error = SendFailed(f"not sent, because a message before it in its group failed: {reason}")
            failures.append(Failure(later, error))
        for one in line:
            self._message_ids.discard(one.publication.message_id)
        return failures

    def place(self, token: int) -> str | None:
        """Why no queue takes the message that is in flight with this token; None: it is not in flight."""
        outgoing = self._in_flight.get(token)
        if outgoing is None:
            return None
        exchange, key = outgoing.publication.exchange, outgoing.publication.routing_key
        if not exchange:
            return f"there is no queue {key!r}"
        return f"no queue is bound to the exchange {exchange!r} for {key!r}"

    def connection_lost(self) -> None:
        """Publish the unconfirmed messages again."""
        again = sorted([*self._in_flight.values(), *self._ready], key=lambda outgoing: outgoing.number)
        self._ready = deque(again)
        self._in_flight.clear()

    def fail_in_flight(self, reason: str) -> list[Failure]:
        """The broker closed the channel over one of these, and does not say which."""
        return [failure for token in list(self._in_flight) for failure in self.refused(token, reason)]

    def fail_all(self, error: Exception) -> list[Failure]:
        """Nothing is sent any more."""
        loose = [outgoing for outgoing in (*self._in_flight.values(), *self._ready) if outgoing.group is None]
        everything = [*loose, *(outgoing for line in self._lines.values() for outgoing in line)]
        self._lines.clear()
        self._ready.clear()
        self._in_flight.clear()
        self._message_ids.clear()
        return [Failure(outgoing, error) for outgoing in everything]

    def _leave(self, outgoing: Outgoing) -> None:
        self._message_ids.discard(outgoing.publication.message_id)
        if outgoing.group is None:
            return
        line = self._lines[outgoing.group]
        line.popleft()
        if line:
            self._ready.append(line[0])
        else:
            del self._lines[outgoing.group]
