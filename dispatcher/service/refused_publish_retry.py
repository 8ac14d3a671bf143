"""Publishes into the lane's own queues that RabbitMQ refused: they are tried again until it takes them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

#: When one of them is tried again: soon at first, then less often. Each attempt that fails closes a channel
#: of ours, which is a line in its log.
RETRY_S_MIN: Final = 1.0
RETRY_S_MAX: Final = 60.0


class RefusedPublishRetry:
    """Orders that RabbitMQ refused. One at a time is tried again; once RabbitMQ takes one, all are."""

    def __init__(
        self, later: Callable[[float, Callable[[], None]], None], publish: Callable[[Any], None]
    ) -> None:
        self._later = later
        self._publish = publish
        self._orders: deque[Any] = deque()
        self._tried: Any = None
        self._is_waiting = False
        self._retry_s = RETRY_S_MIN

    def __len__(self) -> int:
        return len(self._orders)

    def refused(self, order: Any) -> None:
        """It was refused (again)."""
        if order is self._tried:
            self._tried = None
        self._orders.append(order)
        if not self._is_waiting:
            self._is_waiting = True
            self._later(self._retry_s, self._try_one)
            self._retry_s = min(2 * self._retry_s, RETRY_S_MAX)

    def _try_one(self) -> None:
        self._is_waiting = False
        if self._orders:
            self._tried = self._orders.popleft()
            self._publish(self._tried)

    def confirmed(self, order: Any) -> None:
        """RabbitMQ has taken it."""
        if order is self._tried:
            self._tried = None
            self._retry_s = RETRY_S_MIN
            orders, self._orders = self._orders, deque()
            for other in orders:
                self._publish(other)
