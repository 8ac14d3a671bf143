"""Deficit weighted round robin over the inbound queues.

In the field's words: weight, quantum, deficit. A queue's turn begins with one quantum added to its deficit
and lasts while the deficit covers the cost of its next message. Only *eligible* messages count, not the
backlog: a queue whose messages are all blocked loses its turn to the others, earns nothing, and keeps at
most what its next message costs; when all are blocked the turn stays where it is (D3–D6; Shreedhar and
Varghese, "Efficient fair queueing using deficit round robin"). What an emptied queue saved is forgotten,
what it overdrew is not.
"""

from __future__ import annotations

from collections.abc import Callable

from dispatcher.core.inbound import Inbound
from dispatcher.core.model import Original


class DeficitRoundRobin:
    """Whose turn it is. O(1) for a decision in the number of messages, groups and consumers."""

    def __init__(self, inbounds: list[Inbound]) -> None:
        self._inbounds = inbounds
        self._position = 0
        self.pick: Callable[[], Inbound | None] = self._pick  # see DeliveryPass

    def _pick(self) -> Inbound | None:
        """The queue to serve one message from, or None when nothing is eligible anywhere."""
        current = self._inbounds[self._position]
        head = current.head() if current.ring else None
        if head is not None and current.deficit >= head.cost:
            return current
        if not current.waiting and current.deficit > 0:
            current.deficit = 0
        if len(self._inbounds) > 1:
            return self._next_turn(current, head)
        while head is not None:  # its turn comes back at once
            current.deficit = min(current.deficit, head.cost) + current.weight
            if current.deficit >= head.cost:
                return current
            self._skip_hopeless_rounds()
        return None

    def _next_turn(self, current: Inbound, own: Original | None) -> Inbound | None:
        """The turn goes on from this queue, whose next eligible message is `own`."""
        inbounds = self._inbounds
        while True:
            any_eligible = False
            count, start = len(inbounds), self._position
            for step in range(1, count + 1):
                inbound = inbounds[(start + step) % count]
                # Of the queue whose turn it was nothing has changed since it was looked at.
                head = own if inbound is current else inbound.head() if inbound.ring else None
                if head is None:
                    if not inbound.waiting and inbound.deficit > 0:
                        inbound.deficit = 0
                    continue
                any_eligible = True
                inbound.deficit = min(inbound.deficit, head.cost) + inbound.weight
                self._position = inbound.index
                if inbound.deficit >= head.cost:
                    return inbound
            if not any_eligible:
                return None
            self._skip_hopeless_rounds()

    def _skip_hopeless_rounds(self) -> None:
        """No queue can afford its message: add at once the rounds that could only end the same way (D13)."""
        short = [(i, h.cost - i.deficit) for i in self._inbounds if i.ring and (h := i.head()) is not None]
        rounds = min(-(-missing // inbound.weight) for inbound, missing in short) - 1
        for inbound, _ in short:
            inbound.deficit += rounds * inbound.weight
