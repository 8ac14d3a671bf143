"""Copies that are sent again reach their consumer before anything newer.

They keep the numbers of a former leader, so their consumer can't see that one is missing. If its queue does
not take one (a nack: it is full) and takes a newer copy behind it, the consumer handles the newer one first.
So new copies for that queue wait until RabbitMQ has answered all that were sent again to it. After a nack
they are not sent at all: the consumer joins again then, and gets all messages that it does not name.
"""

from __future__ import annotations

from dispatcher.core.records import Dispatched


class Resends:
    """Which queues RabbitMQ still owes such answers, and what waits for them."""

    def __init__(self) -> None:
        self._sent: dict[int, Dispatched] = {}  # those that are not answered, by the identity of the order
        self._open: dict[str, int] = {}  # how many of them, by queue
        self._refused: set[str] = set()  # queues that did not take one
        self._behind: dict[str, list[Dispatched]] = {}

    def __bool__(self) -> bool:
        return bool(self._open)

    def __len__(self) -> int:
        """How many copies wait."""
        return sum(map(len, self._behind.values()))

    def sent(self, copy: Dispatched) -> None:
        """This one is sent again now."""
        self._sent[id(copy)] = copy
        self._open[copy.queue] = self._open.get(copy.queue, 0) + 1

    def keeps(self, copy: Dispatched) -> bool:
        """Whether this new one has to wait; then it is kept here."""
        is_kept = copy.queue in self._open and id(copy) not in self._sent
        if is_kept:
            self._behind.setdefault(copy.queue, []).append(copy)
        return is_kept

    def answered(self, copy: Dispatched, *, nacked: bool) -> tuple[list[Dispatched], bool]:
        """RabbitMQ has answered this copy. Returns those that wait no more, and whether they may be sent."""
        if self._sent.pop(id(copy), None) is None:
            return [], True
        queue = copy.queue
        if nacked:
            self._refused.add(queue)
        self._open[queue] -= 1
        if self._open[queue]:
            return [], True
        del self._open[queue]
        may_go = queue not in self._refused
        self._refused.discard(queue)
        return self._behind.pop(queue, []), may_go

    def take_all(self) -> list[Dispatched]:
        """The channel is closed: all that wait, in the order of each queue."""
        behind = [copy for copies in self._behind.values() for copy in copies]
        for kept in (self._sent, self._open, self._refused, self._behind):
            kept.clear()
        return behind
