"""The asynchronous producer, on aio-pika."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from types import TracebackType
from typing import Any, Self

from dispatcher.client.aio_link import AioLink, AioLoop
from dispatcher.client.properties import Properties
from dispatcher.client.send_queue import Outgoing, SendQueue
from dispatcher.client.sending import GroupId, ProducerBase, ProducerEngine
from dispatcher.client.unseen import AsyncAnswer, UnseenFailures


class GroupProducer(ProducerBase):
    """Sends messages that belong to groups: persistent, mandatory, confirmed, each with a unique message id.

        async with GroupProducer(url, "orders.in") as producer:
            await producer.send(b"place", group="order-17")
            await producer.send(b"ship", group="order-17", close=True)

    Give an inbound queue, or `exchange` and `routing_key`. A message's group is the one of its send; else
    `group`, the same for all; else, with `auto_group`, a random one of this producer; else it has none.
    `group_header` and `sequence_header` are what the lane's configuration says.

    Order: messages of one group are in the queue in the order in which `send` or `submit` were called, if one
    producer sends them all (two producers have no order between them, nor have tasks that race to call send).
    A message is sent when the broker has confirmed the one before it in its group. If one fails, those of its
    group that wait behind it fail too. After a lost connection unconfirmed messages are sent again in order:
    the broker may get a message twice, with the same message id.

    Leaving `async with` without an exception flushes: it waits until everything submitted is confirmed or has
    failed, and raises failures that nobody has awaited.

    With `give_up_after_s` messages fail with SendFailed when there was no connection for so long; without it
    they wait for as long as it takes.
    """

    def _set_up(self) -> None:
        self._engine: ProducerEngine | None = None
        self._ended = asyncio.Event()
        self._answers: set[AsyncAnswer] = set()
        self._failures: UnseenFailures[AsyncAnswer] = UnseenFailures()

    async def open(self) -> None:
        """Begin to connect; `async with` does it. Returns at once: sends wait for the connection."""
        if self._engine is None:
            endpoint = self._endpoint
            self._ended.clear()
            self._engine = ProducerEngine(
                SendQueue(), AioLoop(), lambda receiver: AioLink(endpoint, receiver), self._ended.set,
                self._give_up_after_s,
            )  # fmt: skip
            self._engine.start()

    async def send(
        self,
        body: bytes,
        group: GroupId | None = None,
        *,
        headers: Mapping[str | bytes, Any] | None = None,
        properties: Properties | None = None,
        routing_key: str | None = None,
        close: bool = False,
    ) -> str:
        """Send a message and wait until the broker has it; returns its message id.

        `close` closes the group: its later messages may go to another consumer.
        Raises SendFailed when the broker does not take it, ConfigurationError when it does not take this
        producer, ValueError for a header or property that can't be sent. A send that is cancelled before its
        turn is not sent.
        """
        return await self.submit(
            body, group, headers=headers, properties=properties, routing_key=routing_key, close=close
        )

    def submit(
        self,
        body: bytes,
        group: GroupId | None = None,
        *,
        headers: Mapping[str | bytes, Any] | None = None,
        properties: Properties | None = None,
        routing_key: str | None = None,
        close: bool = False,
    ) -> asyncio.Future[str]:
        """`send` without waiting: the place in the order is fixed when this returns.

        Await what it returns, or `flush`: that raises the failures which nobody has awaited.
        """
        if self._engine is None:
            raise RuntimeError("the producer is not open: use `async with`, or await its open()")
        key, publication = self._labels.publication(
            next(self._tokens), body, group, headers, properties, routing_key, close
        )
        answer = AsyncAnswer(loop=asyncio.get_running_loop())
        resolve = partial(_resolve, answer, publication.message_id, self._failures)
        self._answers.add(answer)
        answer.add_done_callback(self._answers.discard)
        self._engine.submit(Outgoing(key, publication, resolve, answer.cancelled))
        return answer

    async def close_group(self, group: GroupId | None = None) -> str:
        """Close a group by an empty message. A consumer gets it: prefer `close` on the last real one."""
        return await self.send(b"", group, close=True)

    async def flush(self) -> None:
        """Wait until every message submitted so far is confirmed or has failed.

        Raises what failed since the last flush and was not awaited: the exception of its `send`, or
        SendFailed for several.
        """
        if self._answers:
            await asyncio.wait(list(self._answers))
        self._failures.raise_them()

    async def close(self) -> None:
        """Close the connection. Unconfirmed messages fail."""
        if self._engine is not None:
            engine, self._engine = self._engine, None
            engine.close()
            await self._ended.wait()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                await self.flush()
        finally:
            await self.close()


def _resolve(
    answer: AsyncAnswer, message_id: str, failures: UnseenFailures[AsyncAnswer], error: Exception | None
) -> None:
    if answer.done():
        return  # cancelled meanwhile
    if error is None:
        answer.set_result(message_id)
    else:
        answer.set_exception(error)
        failures.note(answer, error)
