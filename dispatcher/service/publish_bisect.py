"""Finds out which publish makes RabbitMQ close the channel, or the whole connection.

RabbitMQ doesn't say which one it was; it is one of those that it had not answered. They become candidates
and are published again with nothing else under way, first one alone, then, as long as all goes well, twice as
many as before at a time. If it happens again the next attempt is one alone. The one that does it alone is
rejected. Publishes that come after a candidate wait, so the order stays as it was.
A copy may go out twice by this: its consumer knows the number and drops it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from dispatcher.amqp.events import ConnectionClosed
from dispatcher.core.orders import DeadLetter
from dispatcher.core.parking.orders import ParkCopy
from dispatcher.core.records import Dispatched

#: Reply codes of a channel that was closed over a publish: too large, or with properties that
#: RabbitMQ can't obey. (404 and 403 say that the exchange is missing, or our rights.)
BLAMES_A_PUBLISH: Final = frozenset({311, 406})
#: Reply codes of a connection that may have been ended over a publish: RabbitMQ could not read it, or failed
#: at it.
_ENDS_OVER_A_PUBLISH: Final = frozenset({501, 502, 541})
#: What RabbitMQ names then: basic.publish, or nothing if the channel failed at it.
_PUBLISH_OR_NOTHING: Final = ((60, 40), (0, 0))
#: Suspects that are tried together at most: as many are published again when one of them is to blame.
TOGETHER_MAX: Final = 256
_COPY, _DEAD, _PARKED = "copy", "dead letter", "parked copy"
PublishKey = tuple[str, bytes]


class BisectState(NamedTuple):
    """What one session leaves to the next: fingerprints of candidates, and the publishes that closed the
    connection, by what they were published as, with RabbitMQ's words. Lost with the process: then they are
    found again."""

    candidates: frozenset[bytes] = frozenset()
    rejected: Mapping[PublishKey, str] = MappingProxyType({})
    #: Messages on their way to operators' targets when a connection ended so: they are not sent there again.
    transfers: Mapping[bytes, str] = MappingProxyType({})


NOTHING_REJECTED: Final = BisectState()


def ended_over_a_publish(closed: ConnectionClosed) -> bool:
    """Whether it may have been one. RabbitMQ says so if it failed at something else, at a queue.declare or
    basic.get while nodes of a cluster don't see each other, for one."""
    is_such = (closed.class_id, closed.method_id) in _PUBLISH_OR_NOTHING
    return closed.code in _ENDS_OVER_A_PUBLISH and is_such


class PublishBisector:
    """What waits to be published while there are candidates. Orders are compared by identity."""

    def __init__(self, state: BisectState) -> None:
        self._rejected = dict(state.rejected)
        #: By fingerprint, which is the same for messages that are equal in every byte, or by identity.
        self._candidates: set[bytes | int] = set(state.candidates)
        self._line: deque[Any] = deque()
        self._tried: list[Any] = []  # candidates that are under way
        self._together = 1

    def __len__(self) -> int:
        """How many orders wait."""
        return len(self._line)

    @property
    def is_needed(self) -> bool:
        """Whether orders must pass through here."""
        return bool(self._line or self._candidates or self._rejected)

    @property
    def is_searching(self) -> bool:
        """Whether one of several may be to blame."""
        return bool(self._candidates)

    def add(self, order: Any) -> None:
        """Something is to be published, after all that waits."""
        self._line.append(order)

    def add_candidate(self, order: Any) -> None:
        """Publish it with care, after all that waits."""
        self._candidates.add(_identity(order))
        self._line.append(order)

    def take(self, *, under_way: int) -> list[Any]:
        """What may be published now, in order; `under_way` counts the publishes that are not answered."""
        line, candidates = self._line, self._candidates
        if self._tried:
            return []
        taken = []
        while line and _identity(line[0]) not in candidates:
            taken.append(line.popleft())
        if taken or under_way:
            return taken
        while line and len(self._tried) < self._together and _identity(line[0]) in candidates:
            self._tried.append(line.popleft())
        return list(self._tried)

    def all_answered(self) -> None:
        """Nothing is under way any more: whatever was tried can be published."""
        if self._tried:
            self._clear_all(self._tried)
            self._tried = []
            self._together = min(2 * self._together, TOGETHER_MAX)

    def clear(self, order: Any) -> None:
        """It will never be published again, or was taken."""
        self._candidates.discard(_identity(order))

    def _clear_all(self, orders: Iterable[Any]) -> None:
        for order in orders:
            self.clear(order)

    def closed(self, unanswered: list[Any]) -> Any | None:
        """RabbitMQ closed the channel while these were unanswered: the publish that did it, or None and they
        wait again.

        That one stays a candidate: what it is published as next, or a twin of it, is published with care too.
        """
        tried, self._tried = self._tried, []
        self._together = 1
        if len(tried) == 1 and len(unanswered) == 1 and tried[0] is unanswered[0]:
            return tried[0]
        waiting = {id(order) for order in unanswered}
        self._clear_all(order for order in tried if id(order) not in waiting)
        self._candidates.update(_identity(order) for order in unanswered)
        self._line.extendleft(reversed(unanswered))
        return None

    def withdraw(self, orders: Iterable[Any]) -> None:
        """These need not wait: others come in their place, which are candidates as well."""
        gone = {id(order) for order in orders}
        self._line = deque(order for order in self._line if id(order) not in gone)

    # -- over the end of the connection --

    def reject(self, order: Any, problem: str) -> None:
        """It ended the whole connection: it is not published again by this process."""
        key = _key(order)
        if key is not None:
            self._rejected[key] = problem

    def rejection(self, order: Any) -> str | None:
        """Why this order must not be carried out, in RabbitMQ's words."""
        key = _key(order) if self._rejected else None
        return self._rejected.get(key) if key is not None else None

    def state(self) -> BisectState:
        """What the next session must know."""
        candidates = frozenset(name for name in self._candidates if isinstance(name, bytes))
        return BisectState(candidates, MappingProxyType(self._rejected))


def _identity(order: Any) -> bytes | int:
    key = _key(order)
    return key[1] if key is not None else id(order)


def _key(order: Any) -> PublishKey | None:
    match order:
        case Dispatched():
            return _COPY, order.message.fingerprint
        case DeadLetter():
            return _DEAD, order.message.fingerprint
        case ParkCopy():
            return _PARKED, order.message.fingerprint
        case _:
            return None
