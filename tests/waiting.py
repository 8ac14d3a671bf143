"""How tests wait: for a condition, with a deadline, and with a text that says what did not come."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

#: Between two looks. Short against every outcome that tests wait for, long enough to leave the core to it.
POLL_S = 0.01
#: A look that takes long takes the cores from what it waits for: after it so many times as long nobody looks.
RESTS, REST_MAX_S = 3, 0.2
#: Longer costs nothing when the condition comes; beside ten other programs all takes ten times as long.
TIMEOUT_S = 60.0
#: How many times longer a promise in seconds may take here, where other tests have the cores as well. The
#: promise itself is measured by `scripts/chaos --cluster` on a machine that does nothing else.
SHARED = 4


def wait_until(predicate: Callable[[], T], timeout_s: float = TIMEOUT_S, what: str = "") -> T:
    """Call `predicate` until its result is true and return that result.

    Fails with `what` (or the predicate's source) and its last result when `timeout_s` has passed.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        looks_at = time.monotonic()
        result = predicate()
        if result:
            return result
        if time.monotonic() >= deadline:
            raise AssertionError(_did_not_come(predicate, result, timeout_s, what))
        time.sleep(_rest_s(looks_at))


async def eventually(
    predicate: Callable[[], T | Awaitable[T]], timeout_s: float = TIMEOUT_S, what: str = ""
) -> T:
    """`wait_until` for coroutines; `predicate` may be a plain or a coroutine function."""
    deadline = time.monotonic() + timeout_s
    while True:
        looks_at = time.monotonic()
        answer = predicate()
        result = await answer if inspect.isawaitable(answer) else answer
        if result:
            return result
        if time.monotonic() >= deadline:
            raise AssertionError(_did_not_come(predicate, result, timeout_s, what))
        await asyncio.sleep(_rest_s(looks_at))


def _rest_s(looks_at: float) -> float:
    return max(POLL_S, min(REST_MAX_S, RESTS * (time.monotonic() - looks_at)))


def _did_not_come(predicate: Callable[[], object], result: object, timeout_s: float, what: str) -> str:
    if not what:
        try:
            what = inspect.getsource(predicate).strip()
        except (OSError, TypeError):
            what = repr(predicate)
    return f"not within {timeout_s} s: {what}\nlast result: {result!r}"
