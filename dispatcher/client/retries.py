"""What becomes of a message whose handler raised an exception."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

BACKOFF_MAX_MS: Final = 60_000


class RetryLater(Exception):
    """Raised by a handler: call me again with this message after `delay_ms`, instead of the usual back-off.

    The group waits meanwhile, others go on. `reason` goes into the log, and into the dead queue if this was
    the last attempt. With `counts=False` the call is no attempt: the message waits for as long as it takes,
    as it should while a database is down. `message.calls` counts it anyway.
    """

    def __init__(self, delay_ms: int, reason: object = "", *, counts: bool = True) -> None:
        if delay_ms < 0:
            raise ValueError(f"delay_ms must not be negative, but is {delay_ms}")
        self.delay_ms = delay_ms
        self.counts = counts
        super().__init__(str(reason) or f"retry in {delay_ms} ms")


class RejectMessage(Exception):
    """Raised by a handler: no call will ever succeed, to the dead queue with it at once."""

    def __init__(self, reason: object) -> None:
        self.reason = str(reason)  # often an exception
        super().__init__(self.reason)


@dataclass(frozen=True, slots=True)
class RetryIn:
    delay_ms: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """`attempts` calls of the handler in one hand-over; the pause doubles each time, up to a minute.

    The defaults are those of a lane (`retry` in the dispatcher's configuration).
    """

    attempts: int = 3
    backoff_ms: int = 1_000

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"attempts must be at least 1, but is {self.attempts}")
        if self.backoff_ms < 0:
            raise ValueError(f"backoff_ms must not be negative, but is {self.backoff_ms}")

    @classmethod
    def of_welcome(cls, told: Any) -> RetryPolicy | None:
        """What a welcome says that the lane's `retry` is; None for anything else than that."""
        match told:
            case {"attempts": int(attempts), "backoff": int(backoff_ms)} if attempts >= 1 and backoff_ms >= 0:
                return cls(attempts=attempts, backoff_ms=backoff_ms)
        return None

    def after(self, error: BaseException, calls: int) -> RetryIn | GiveUp:
        """What to do when call number `calls` raised `error`: 1 first; 0 before any that counts."""
        if isinstance(error, RejectMessage):
            return GiveUp(error.reason)
        if isinstance(error, RetryLater) and not error.counts:
            return RetryIn(error.delay_ms)
        if calls >= self.attempts:
            text = str(error)
            return GiveUp(f"{type(error).__name__}: {text}" if text else type(error).__name__)
        if isinstance(error, RetryLater):
            return RetryIn(error.delay_ms)
        return RetryIn(min(self.backoff_ms << min(calls - 1, 30), BACKOFF_MAX_MS))


#: The policy that counts now: a lane's may come with each welcome.
RetryPolicyNow = Callable[[], RetryPolicy]


@dataclass(frozen=True, slots=True)
class RetryChoice:
    """What an application says of retries itself; None: as the lane's configuration does."""

    attempts: int | None
    backoff_ms: int | None

    def __post_init__(self) -> None:
        self.over(RetryPolicy())  # raises ValueError now, not at the first failure

    def over(self, lane: RetryPolicy) -> RetryPolicy:
        """The lane's policy with this choice."""
        return RetryPolicy(
            attempts=lane.attempts if self.attempts is None else self.attempts,
            backoff_ms=lane.backoff_ms if self.backoff_ms is None else self.backoff_ms,
        )
