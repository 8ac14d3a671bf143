"""The blocking producer, on pika."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from concurrent.futures import Future, InvalidStateError, wait
from functools import partial
from types import TracebackType
from typing import Any, Self

from dispatcher.client.io_thread import IoThread
from dispatcher.client.links import CLOSE_TIMEOUT_S
from dispatcher.client.pika_link import PikaLink
from dispatcher.client.properties import Properties
from dispatcher.client.send_queue import Outgoing, SendQueue
from dispatcher.client.sending import GroupId, ProducerBase, ProducerEngine
from dispatcher.client.unseen import BlockingAnswer, UnseenFailures
from dispatcher.errors import BrokerUnavailable


class BlockingGroupProducer(ProducerBase):
    """`GroupProducer` for threads; see there for the promises.

        with BlockingGroupProducer(url, "orders.in") as producer:
            producer.send(b"place", group="order-17")

    Its methods may be called from any thread; the order of a group is that of the calls, so let one thread
    send it.
    """

    def _set_up(self) -> None:
        self._io: IoThread | None = None
        self._engine: ProducerEngine | None = None
        self._submitting = threading.Lock()  # numbers are submitted in their order
        self._answers: set[BlockingAnswer] = set()
        self._failures: UnseenFailures[BlockingAnswer] = UnseenFailures()

    def open(self) -> None:
        """Begin to connect; `with` does it. Returns at once: sends wait for the connection."""
        if self._io is None:
            endpoint = self._endpoint
            io = self._io = IoThread(f"dispatcher {endpoint.connection_name}", self._crashed)
            self._engine = ProducerEngine(
                SendQueue(), io, lambda receiver: PikaLink(endpoint, receiver, io), io.end,
                self._give_up_after_s,
            )  # fmt: skip
            io.start()
            io.submit(self._engine.start)

    def send(
        self,
        body: bytes,
        group: GroupId | None = None,
        *,
        headers: Mapping[str | bytes, Any] | None = None,
        properties: Properties | None = None,
        routing_key: str | None = None,
        close: bool = False,
        timeout_s: float | None = None,
    ) -> str:
        """Send a message and wait until the broker has it; returns its message id.

        `close` closes the group: its later messages may go to another consumer.
        Raises SendFailed when the broker does not take it, ConfigurationError when it does not take this
        producer, ValueError for a header or property that can't be sent. Raises TimeoutError after
        `timeout_s`: a message whose turn has not come by then is not sent, of another it is not known.
        """
        answer = self.submit(
            body, group, headers=headers, properties=properties, routing_key=routing_key, close=close
        )
        try:
            return answer.result(timeout_s)
        except TimeoutError:
            answer.cancel()
            raise

    def submit(
        self,
        body: bytes,
        group: GroupId | None = None,
        *,
        headers: Mapping[str | bytes, Any] | None = None,
        properties: Properties | None = None,
        routing_key: str | None = None,
        close: bool = False,
    ) -> Future[str]:
        """`send` without waiting: the place in the order is fixed when this returns.

        Ask what it returns for its result, or `flush`: that raises the failures for which nobody has asked.
        """
        if self._io is None or self._engine is None:
            raise RuntimeError("the producer is not open: use `with`, or call its open()")
        answer = BlockingAnswer()
        with self._submitting:
            key, publication = self._labels.publication(
                next(self._tokens), body, group, headers, properties, routing_key, close
            )
            self._answers.add(answer)
            answer.add_done_callback(lambda _: self._answers.discard(answer))
            resolve = partial(_resolve, answer, publication.message_id, self._failures)
            self._io.submit(
                partial(self._engine.submit, Outgoing(key, publication, resolve, answer.cancelled))
            )
        return answer

    def close_group(self, group: GroupId | None = None) -> str:
        """Close a group by an empty message. A consumer gets it: prefer `close` on the last real one."""
        return self.send(b"", group, close=True)

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until every message submitted so far is confirmed or has failed. Raises TimeoutError.

        Raises what failed since the last flush and for whose result nobody has asked: the exception of its
        `send`, or SendFailed for several.
        """
        if wait(list(self._answers), timeout_s).not_done:
            raise TimeoutError(f"not within {timeout_s} s")
        self._failures.raise_them()

    def close(self) -> None:
        """Close the connection. Unconfirmed messages fail."""
        if self._io is not None and self._engine is not None:
            io, self._io = self._io, None
            io.submit(self._engine.close)
            io.join(2 * CLOSE_TIMEOUT_S)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.flush()
        finally:
            self.close()

    def _crashed(self, error: Exception) -> None:
        for answer in list(self._answers):
            unavailable = BrokerUnavailable(f"the connection's thread ended: {error}")
            _resolve(answer, "", self._failures, unavailable)


def _resolve(
    answer: BlockingAnswer,
    message_id: str,
    failures: UnseenFailures[BlockingAnswer],
    error: Exception | None,
) -> None:
    with contextlib.suppress(InvalidStateError):  # cancelled meanwhile
        if error is None:
            answer.set_result(message_id)
        else:
            failures.note(answer, error)  # first: who waits in `flush` goes on with the next line
            answer.set_exception(error)
