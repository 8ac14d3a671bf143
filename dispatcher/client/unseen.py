"""Failures of submitted messages that nobody has looked at: `flush` raises them."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from concurrent.futures import Future
from typing import Any, Final, Generic, TypeVar

from dispatcher.errors import SendFailed

#: So many are told apart. Who neither looks at answers nor calls `flush` gets the oldest of them.
UNSEEN_MAX: Final = 1_000


class AsyncAnswer(asyncio.Future[str]):
    """Knows whether somebody has awaited it."""

    seen = False

    def result(self) -> str:
        self.seen = True
        return super().result()

    def exception(self) -> BaseException | None:
        self.seen = True
        return super().exception()

    def __await__(self) -> Generator[Any, None, str]:
        try:
            return (yield from super().__await__())
        finally:
            self.seen = True

    __iter__ = __await__


class BlockingAnswer(Future[str]):
    """Knows whether somebody has asked for its result."""

    seen = False

    def result(self, timeout: float | None = None) -> str:
        self.seen = True
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self.seen = True
        return super().exception(timeout)


A = TypeVar("A", AsyncAnswer, BlockingAnswer)


class UnseenFailures(Generic[A]):
    """The answers that failed, oldest first."""

    def __init__(self) -> None:
        self._failed: list[tuple[A, Exception]] = []

    def note(self, answer: A, error: Exception) -> None:
        if len(self._failed) >= UNSEEN_MAX:
            self._failed = self._unseen()
        if len(self._failed) < UNSEEN_MAX:
            self._failed.append((answer, error))

    def raise_them(self) -> None:
        """Raise what failed and was not looked at since the last call, if anything was."""
        unseen, self._failed = self._unseen(), []
        for answer, _ in unseen:
            answer.exception()  # asyncio would warn of one that nobody has looked at
        if not unseen:
            return
        first = unseen[0][1]
        if len(unseen) == 1:
            raise first
        raise SendFailed(f"{len(unseen)} messages failed, the first of them: {first}") from first

    def _unseen(self) -> list[tuple[A, Exception]]:
        return [(answer, error) for answer, error in self._failed if not answer.seen]
