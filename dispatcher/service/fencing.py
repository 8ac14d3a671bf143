"""How a leader that has lost its lock, a quorum queue, and was not told, gives its messages back in time.

RabbitMQ gives such a lock to another dispatcher when the leader of its queue does not see the node of the one
that has it. The leader of an inbound queue may see that node: then the former leader keeps the messages that
it has, and the next one would get newer ones of their groups first. So the next one, if it sees another
consumer, raises the epoch in Redis before it consumes; and each leader asks Redis whether it still leads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from dispatcher.errors import Fenced
from dispatcher.redis_store.store import LaneStore

#: How often a leader asks.
LOOK_S: Final = 1.0
#: A former leader that lives is gone this long after the epoch was raised: it asks, ends, and RabbitMQ has
#: its messages back.
GONE_S: Final = LOOK_S + 1.0


class Fence:
    """Ends a former leader, at most once in a take-over. `prove` raises when the lock is not ours; it takes a
    majority of the nodes if the lock is a quorum queue."""

    def __init__(
        self, prove: Callable[[], Awaitable[None]], raise_epoch: Callable[[], Awaitable[None]]
    ) -> None:
        self._prove = prove
        self._raise_epoch = raise_epoch
        self._turn = asyncio.Lock()
        self._is_raised = False

    async def prove(self) -> None:
        """The lock is ours. Raises what `prove` raises."""
        async with self._turn:  # the lock answers one question at a time
            await self._prove()

    async def raise_epoch(self) -> None:
        """Several inbound queues may ask for it. Raises what `prove` and the store raise."""
        async with self._turn:
            if not self._is_raised:
                await self._prove()
                await self._raise_epoch()
                self._is_raised = True


async def until_fenced(store: LaneStore) -> None:
    """Wait until another dispatcher leads the lane. Raises Fenced then, and never returns."""
    while not await store.is_fenced():  # noqa: ASYNC110 - Redis tells nobody
        await asyncio.sleep(LOOK_S)
    raise Fenced("another dispatcher leads the lane now: this one had lost the lock")


async def unless_fenced(proof: Awaitable[None], fenced: asyncio.Task[None]) -> None:
    """Wait for a proof that the lock is ours. Raises Fenced if another dispatcher comes first."""
    proving = asyncio.ensure_future(proof)
    try:
        await asyncio.wait((proving, fenced), return_when=asyncio.FIRST_COMPLETED)
        if fenced.done():
            await fenced
        await proving
    finally:
        proving.cancel()
