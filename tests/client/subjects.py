"""Both consumers, and both producers, behind one asynchronous surface: one test for each promise."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from dispatcher.client import BlockingGroupConsumer, BlockingGroupProducer, GroupConsumer, GroupProducer
from dispatcher.client.copies import Copy
from tests.client.lane_stub import LANE
from tests.waiting import TIMEOUT_S, eventually, wait_until

#: What a test's handler does with a message, between the marks of its beginning and end.
Act = Callable[[Copy], None]


class Work:
    """Records what handlers do. Handlers of bodies in `held` don't return until they are released."""

    def __init__(self, act: Act = lambda _: None) -> None:
        self.act = act
        self.held: set[bytes] = set()
        self.begun: list[Copy] = []
        self.ended: list[Copy] = []
        self.stopped: list[Copy] = []  # cancelled, or seen to be lost
        self.running = 0
        self.running_most = 0

    def bodies(self) -> list[bytes]:
        return [message.body for message in self.ended]

    def _begin(self, message: Copy) -> None:
        self.begun.append(message)
        self.running += 1
        self.running_most = max(self.running, self.running_most)

    def _end(self, message: Copy) -> None:
        self.act(message)
        self.ended.append(message)

    async def handle(self, message: Copy) -> None:
        self._begin(message)
        try:
            await eventually(lambda: message.body not in self.held)
            self._end(message)
        except asyncio.CancelledError:
            self.stopped.append(message)
            raise
        finally:
            self.running -= 1

    def handle_blocking(self, message: Copy) -> None:
        self._begin(message)
        try:
            wait_until(lambda: message.body not in self.held or message.lost)
            if message.lost:
                self.stopped.append(message)
            else:
                self._end(message)
        finally:
            self.running -= 1


class AsyncConsumer:
    kind = "async"

    def __init__(self, url: str, consumer_id: str = "c1", prefetch: int = 50, **options: Any) -> None:
        self.consumer = GroupConsumer(url, LANE, consumer_id, prefetch, **options)

    async def open(self) -> None:
        await self.consumer.open()

    async def joined(self) -> None:
        await asyncio.wait_for(self.consumer.joined(), TIMEOUT_S)

    async def next(self) -> Any:
        return await asyncio.wait_for(anext(self.consumer, None), TIMEOUT_S)

    async def ack(self, message: Any) -> bool:
        return bool(await message.ack())

    async def ack_all(self, messages: list[Any]) -> None:
        """One right after the other."""
        for message in messages:
            await message.ack()

    async def fail(self, message: Any, reason: str) -> bool:
        return bool(await message.fail(reason))

    async def flush(self) -> None:
        await asyncio.wait_for(self.consumer.flush(), TIMEOUT_S)

    async def stop(self) -> None:
        self.consumer.stop()

    async def close(self) -> None:
        await self.consumer.close()

    async def run(self, work: Work, **options: Any) -> None:
        await self.consumer.run(work.handle, stop_on_signals=False, **options)


class BlockingConsumer:
    kind = "blocking"

    def __init__(self, url: str, consumer_id: str = "c1", prefetch: int = 50, **options: Any) -> None:
        self.consumer = BlockingGroupConsumer(url, LANE, consumer_id, prefetch, **options)

    async def open(self) -> None:
        await asyncio.to_thread(self.consumer.open)

    async def joined(self) -> None:
        await asyncio.to_thread(self.consumer.joined, TIMEOUT_S)

    async def next(self) -> Any:
        return await asyncio.wait_for(asyncio.to_thread(next, self.consumer, None), TIMEOUT_S)

    async def ack(self, message: Any) -> bool:
        return bool(await asyncio.to_thread(message.ack))

    async def ack_all(self, messages: list[Any]) -> None:
        """One right after the other: in one thread, for another one may begin late."""
        await asyncio.to_thread(lambda: [message.ack() for message in messages])

    async def fail(self, message: Any, reason: str) -> bool:
        return bool(await asyncio.to_thread(message.fail, reason))

    async def flush(self) -> None:
        await asyncio.to_thread(self.consumer.flush, TIMEOUT_S)

    async def stop(self) -> None:
        await asyncio.to_thread(self.consumer.stop)

    async def close(self) -> None:
        await asyncio.to_thread(self.consumer.close)

    async def run(self, work: Work, **options: Any) -> None:
        await asyncio.to_thread(self.consumer.run, work.handle_blocking, stop_on_signals=False, **options)


Consumer = AsyncConsumer | BlockingConsumer
MakeConsumer = Callable[..., Awaitable[Consumer]]


class AsyncProducer:
    def __init__(self, url: str, *arguments: Any, **options: Any) -> None:
        self.producer = GroupProducer(url, *arguments, **options)

    async def open(self) -> None:
        await self.producer.open()

    async def send(self, *arguments: Any, **options: Any) -> str:
        return await asyncio.wait_for(self.producer.send(*arguments, **options), TIMEOUT_S)

    def submit(self, *arguments: Any, **options: Any) -> asyncio.Future[str]:
        return self.producer.submit(*arguments, **options)

    async def close_group(self, group: Any = None) -> str:
        return await self.producer.close_group(group)

    async def flush(self) -> None:
        await asyncio.wait_for(self.producer.flush(), TIMEOUT_S)

    async def close(self) -> None:
        await self.producer.close()


class BlockingProducer:
    def __init__(self, url: str, *arguments: Any, **options: Any) -> None:
        self.producer = BlockingGroupProducer(url, *arguments, **options)

    async def open(self) -> None:
        await asyncio.to_thread(self.producer.open)

    async def send(self, *arguments: Any, **options: Any) -> str:
        return await asyncio.to_thread(self.producer.send, *arguments, timeout_s=10, **options)

    def submit(self, *arguments: Any, **options: Any) -> asyncio.Future[str]:
        return asyncio.wrap_future(self.producer.submit(*arguments, **options))

    async def close_group(self, group: Any = None) -> str:
        return await asyncio.to_thread(self.producer.close_group, group)

    async def flush(self) -> None:
        await asyncio.to_thread(self.producer.flush, TIMEOUT_S)

    async def close(self) -> None:
        await asyncio.to_thread(self.producer.close)


Producer = AsyncProducer | BlockingProducer
MakeProducer = Callable[..., Awaitable[Producer]]
