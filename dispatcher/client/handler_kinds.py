"""Whether a handler is of the kind that a consumer calls: a wrong one would do nothing, or its work twice."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any


def _kind(handler: Any) -> Any:
    """What runs when the handler is called, for `inspect`."""
    while isinstance(handler, partial):
        handler = handler.func
    if inspect.isroutine(handler) or inspect.iscoroutinefunction(handler):
        return handler
    return getattr(handler, "__call__", handler)  # noqa: B004 - the method, not whether there is one


def _check_runs(handler: Any, kind: Any) -> None:
    if not callable(handler):
        raise TypeError(f"handler: must be a function, not {type(handler).__name__}")
    if inspect.isgeneratorfunction(kind) or inspect.isasyncgenfunction(kind):
        raise TypeError("handler: has a `yield`, so calling it runs nothing; iterate over the consumer")


def is_asynchronous(handler: Any) -> bool:
    """Whether it is for a GroupConsumer."""
    return inspect.iscoroutinefunction(_kind(handler))


def check_asynchronous(handler: Any) -> None:
    """Raises TypeError for a handler that is no coroutine function.

    Its work would be done when its result can't be awaited: the message would be handled again, and again.
    """
    kind = _kind(handler)
    _check_runs(handler, kind)
    if not inspect.iscoroutinefunction(kind):
        raise TypeError(
            "handler: must be an `async def` function; one that blocks belongs into a BlockingGroupConsumer"
        )


def check_blocking(handler: Any) -> None:
    """Raises TypeError for a coroutine function: calling it runs nothing, and the message would be acked."""
    kind = _kind(handler)
    _check_runs(handler, kind)
    if inspect.iscoroutinefunction(kind):
        raise TypeError("handler: is an `async def` function; those are for GroupConsumer")


def check_result(result: object) -> None:
    """Raises TypeError for the result of a blocking handler that must be awaited: nothing was processed."""
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise TypeError("handler: returned an awaitable, so nothing was processed; use a GroupConsumer")
