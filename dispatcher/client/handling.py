"""Messages on their way through handlers: order, calls, outcome. Shared by tasks and threads."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final, Generic, TypeVar

from dispatcher.client.copies import Copy
from dispatcher.client.retries import GiveUp, RejectMessage, RetryIn, RetryLater, RetryPolicyNow
from dispatcher.client.schedule import GroupSchedule
from dispatcher.wire.protocol import REASON_EXPIRED

LOG: Final = logging.getLogger("dispatcher.client")
M = TypeVar("M", bound=Copy)


class Handling(Generic[M]):
    """What the handlers of one `run` work on. Not safe for threads: the caller holds a lock."""

    def __init__(self, policy: RetryPolicyNow) -> None:
        self._policy = policy
        self._schedule: GroupSchedule[M] = GroupSchedule()
        self._free: dict[M, int] = {}  # calls that do not count, of messages that had any

    def add(self, messages: Iterable[M]) -> None:
        for message in messages:
            self._schedule.add(message)

    def drop_lost(self, messages: Iterable[M]) -> None:
        """These are lost: nothing of them will begin."""
        messages = list(messages)
        self._schedule.drop_lost(messages)
        for message in messages:
            self._free.pop(message, None)

    def begin(self, now_ms: int) -> M | None:
        """The next message to call the handler with; answer with `end`. None: nothing now."""
        while (message := self._schedule.start_next(now_ms)) is not None:
            if not message.expired:
                message.calls += 1
                return message
            self._free.pop(message, None)
            message.settle(REASON_EXPIRED, max(1, message.calls))
            self._schedule.finish(message)
        return None

    def end(self, message: M, error: BaseException | None, now_ms: int) -> None:
        """The handler returned, or raised `error`. A message that it settled itself stays as it said."""
        calls, free = message.calls, self._free.pop(message, 0)
        if message.lost or message.settled:
            if error is not None and not message.lost:
                LOG.error("the handler raised after it had settled %r", message, exc_info=error)
        elif error is None:
            message.settle(None, calls)
        else:
            asked = isinstance(error, RetryLater | RejectMessage)  # the handler's word, not its accident
            trace = None if asked else error
            policy = self._policy()
            free += isinstance(error, RetryLater) and not error.counts
            match policy.after(error, calls - free):
                case RetryIn(delay_ms):
                    LOG.warning(
                        "call %d (%d of %d that count) at %r failed, again in %d ms: %s",
                        calls, calls - free, policy.attempts, message, delay_ms, error, exc_info=trace,
                    )  # fmt: skip
                    if free:
                        self._free[message] = free
                    self._schedule.retry(message, now_ms + delay_ms)
                    return
                case GiveUp(reason):
                    LOG.error("gave up %r: %s", message, reason, exc_info=trace)
                    message.settle(reason, calls)
        self._schedule.finish(message)

    def discard(self, message: M) -> None:
        """The handler was stopped in the middle: nothing is known, nothing is settled."""
        self._free.pop(message, None)
        self._schedule.finish(message)

    def ready_count(self, now_ms: int) -> int:
        return self._schedule.ready_count(now_ms)

    def next_deadline_ms(self) -> int | None:
        return self._schedule.next_deadline_ms()

    def __len__(self) -> int:
        return len(self._schedule)
