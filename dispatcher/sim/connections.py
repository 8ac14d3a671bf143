"""The broker's side of a connection: its pipes, its channels, and the operations that arrive on it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from pamqp import commands

from dispatcher.amqp.events import Blocked, ChannelClosed, Unblocked
from dispatcher.sim.broker import Broker
from dispatcher.sim.channels import Answer, BrokerChannel, Refusal
from dispatcher.sim.loop import ProcessLoop
from dispatcher.sim.pipes import Pipe
from dispatcher.sim.queues import Node, Queue, QueueConsumer, Stored

#: How long a node asks the leader of a quorum queue how many messages it has.
NO_ANSWER_MS: Final = 250


class BrokerConnection:
    """A connection of a process: two pipes, and what exists only as long as it does.

    `receiver` gets what the broker sends, `on_lost` is called once when the connection ends.
    """

    def __init__(
        self, broker: Broker, process: ProcessLoop, name: str, receiver: Callable[[list[Any]], None],
        on_lost: Callable[[str], None], node: Node | None = None,
    ) -> None:  # fmt: skip
        self.broker = broker
        self.node = node or broker.entry()
        self.process = process
        self.name = name
        self.up = Pipe(broker.scheduler, None, self._hear)
        self.down = Pipe(broker.scheduler, process, self._arrived)
        self.channels: dict[int, BrokerChannel] = {}
        self.open = True  # as the broker sees it
        self.gone = False  # as its process sees it
        self.end_code = 320  # AMQP's reply code, once the connection has ended
        self._receiver = receiver
        self._on_lost = on_lost
        self._blocked = False  # it published during an alarm: nothing of it is read, not even its end
        self._unread: list[Any] = []
        self._end_unread = False
        broker.connections.append(self)

    # -- what its process does --

    def send(self, operation: Callable[..., Any], *arguments: Any) -> None:
        """An operation of this connection, carried out when it arrives."""
        if not self.gone:
            self.up.send((operation, arguments))

    def close(self) -> None:
        """A clean goodbye: everything sent before arrives."""
        self.gone = True
        self.up.send((BrokerConnection._said_goodbye, ()))

    def reset(self, why: str, *, told: bool = True) -> None:
        """The connection breaks on its way, or its process does: both sides notice, in any order."""
        if self.gone and self.down.closed:
            return
        self.up.cut(self._end_is_there)
        if told:
            self.down.cut(lambda: self._lost(why))
        else:
            self.gone = True
            self.down.cut(everything_lost=True)

    def ended_by_broker(self, why: str, *, code: int = 320) -> None:
        """The broker ends it now; the process hears of it when it reads so far."""
        self.end_code = code
        self.up.cut(everything_lost=True)
        self._end()
        self.down.cut(lambda: self._lost(why))

    def _arrived(self, batch: list[Any]) -> None:
        if not self.gone:  # a process that has closed it reads nothing more
            self._receiver(batch)

    def _lost(self, why: str) -> None:
        if not self.gone:
            self.gone = True
            self.up.closed = True
            self._on_lost(why)

    # -- what the broker does --

    def _hear(self, batch: list[Any]) -> None:
        if self.node.frozen:
            self._unread += batch
        else:
            self._receive(batch)

    def _receive(self, batch: list[Any]) -> None:
        if not self.open:
            return
        answering: dict[int, BrokerChannel] = {}
        is_publish = BrokerConnection.publish
        for position, (operation, arguments) in enumerate(batch):
            if self._is_over():
                return
            if self.broker.alarm and operation is is_publish:
                self.block()  # behind the method frame: not even this message is read
            if self._blocked:
                self._unread += batch[position:]
                break
            number = arguments[0] if arguments else 0
            channel = self.channels.get(number)
            if channel is not None and channel.closed:
                continue
            try:
                operation(self, *arguments)
            except Refusal as refusal:
                self._refuse(number, refusal, arguments)
            self._note_confirms(number, answering)
        for _, channel in sorted(answering.items()):
            if not channel.closed:
                channel.send_confirms()

    def _note_confirms(self, number: int, answering: dict[int, BrokerChannel]) -> None:
        channel = self.channels.get(number)
        if channel is not None and channel.confirms:
            answering[number] = channel

    def _is_over(self) -> bool:
        return not self.open

    def _refuse(self, number: int, refusal: Refusal, arguments: tuple[Any, ...]) -> None:
        channel = self.channels[number]
        for queue in channel.requeue_all():
            self.broker.pump(queue)
        self.down.send(ChannelClosed(number, refusal.code, refusal.text, 0, 0))

    def _said_goodbye(self) -> None:
        self._end()

    def _end_is_there(self) -> None:
        if self._blocked or self.node.frozen:
            self._end_unread = True
        else:
            self._end()

    def replace(self, queue: Queue, others: dict[Stored, Stored]) -> None:
        for channel in self.channels.values():
            channel.replace(queue, others)

    def take_back(self, queue: Queue) -> int:
        return sum(channel.lose_unacked(queue) for channel in self.channels.values())

    def tell_acks(self) -> list[Queue]:
        return [queue for channel in self.channels.values() for queue in channel.tell_acks()]

    def freeze(self) -> None:
        """Its node stands still."""
        self.down.hold()

    def thaw(self) -> None:
        self.down.go_on()
        self._read_on()

    def block(self) -> None:
        """Read nothing more of it until the alarm ends."""
        if not self._blocked:
            self._blocked = True
            self.broker.observer.blocked()
            self.down.send(Blocked("low on memory"))

    def unblock(self) -> None:
        """Go on where reading stopped."""
        if self._blocked:
            self._blocked = False
            self.down.send(Unblocked())
            self._read_on()

    def _read_on(self) -> None:
        unread, self._unread = self._unread, []
        self._receive(unread)
        if self._end_unread:
            self._end()

    def _end(self) -> None:
        """Channels end, exclusive queues go."""
        if not self.open:
            return
        self.open = False
        if self in self.broker.connections:
            self.broker.connections.remove(self)
        touched: dict[Queue, None] = {}
        for channel in self.channels.values():
            for queue in channel.requeue_all():
                touched[queue] = None
        for queue in [queue for queue in self.broker.queues.values() if queue.owner is self]:
            self.broker.delete(queue)
        for queue in touched:
            self.broker.pump(queue)

    # -- operations, in the order of their arrival --

    def open_channel(self, number: int, token: Any) -> None:
        self.channels[number] = BrokerChannel(self, number)
        self.down.send(Answer(token, None))

    def close_channel(self, number: int, token: Any) -> None:
        for queue in self.channels[number].requeue_all():
            self.broker.pump(queue)
        self.down.send(Answer(token, None))

    def publish(
        self,
        number: int,
        exchange: str,
        key: str,
        mandatory: bool,
        properties: bytes,
        body: bytes,
        uid: int = 0,
        expires_ms: int = 0,
    ) -> None:
        if self.broker.before_publish is not None:
            self.broker.before_publish(self, exchange, key)
            if not self.open:
                return
        cost = self.broker.refuses(self, exchange, key, body) if self.broker.refuses is not None else None
        if cost == "channel":
            raise Refusal(406, "PRECONDITION_FAILED - message size 9 is larger than configured max size 8")
        if cost == "connection":
            self.ended_by_broker("INTERNAL_ERROR", code=541)
            return
        self.channels[number].publish(exchange, key, mandatory, properties, body, uid, expires_ms)

    def ack(self, number: int, tag: int, multiple: bool) -> None:
        self.channels[number].ack(tag, multiple)

    def reject(self, number: int, tag: int, _multiple: bool) -> None:
        """basic.nack without `requeue`."""
        self.channels[number].reject(tag)

    def get(self, number: int, token: Any, name: str) -> None:
        queue = self._queue(name)
        is_cut_off = queue.quorum and not queue.elects and not self.broker.reaches(self.node, queue)
        if queue.leaderless or is_cut_off:
            return self.ended_by_broker(
                f"541 INTERNAL_ERROR - Cannot get a message from queue '{name}'", code=541
            )
        if self._must_wait(queue):
            self._ask_later(queue, number, self.get, token, name)
            return
        self.broker.drop_expired(queue)
        fetched = self.channels[number].fetch(queue)
        self.down.send(Answer(token, fetched or commands.Basic.GetEmpty()))
        if self.broker.fetched is not None:
            self.broker.fetched(queue)

    def _must_wait(self, queue: Queue) -> bool:
        """Whether the queue does not answer now."""
        return queue.elects or not self.broker.reaches(self.node, queue)

    def _ask_later(self, queue: Queue, number: int, ask: Callable[..., object], *arguments: Any) -> None:
        self.broker.when_elected(queue, partial(self._ask_late, number, ask, arguments))

    def _ask_late(self, number: int, ask: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        if self.open and not self.channels[number].closed:
            try:
                ask(number, *arguments)
            except Refusal as refusal:
                self._refuse(number, refusal, arguments)

    def give_back(self, number: int, tag: int) -> None:
        self.broker.pump(self.channels[number].give_back(tag))

    def consume(self, number: int, token: Any, name: str, tag: str, no_ack: bool, exclusive: bool) -> None:
        channel = self.channels[number]
        queue = self._queue(name)
        if self._must_wait(queue):
            self._ask_later(queue, number, self.consume, token, name, tag, no_ack, exclusive)
            return
        if not queue.quorum and (
            (exclusive and queue.consumers) or any(consumer.exclusive for consumer in queue.consumers)
        ):
            raise Refusal(403, f"ACCESS_REFUSED - queue '{name}' in exclusive use")
        prefetch = 0 if no_ack else channel.prefetch
        consumer = QueueConsumer(
            channel, tag, no_ack=no_ack, exclusive=exclusive and not queue.quorum, prefetch=prefetch
        )
        channel.consumers[tag] = (queue, consumer)
        queue.consumers.append(consumer)
        channel.answer_for_queue(Answer(token, tag))
        self.broker.pump(queue)

    def consume_impossibly(self, number: int, token: Any, name: str) -> None:
        kind = "quorum" if self._queue(name).quorum else "classic"
        text = f"invalid arg 'x-stream-offset' for queue '{name}' of queue type rabbit_{kind}_queue"
        raise Refusal(406, f"PRECONDITION_FAILED - {text}")

    def cancel(self, number: int, token: Any, tag: str) -> None:
        channel = self.channels[number]
        queue, consumer = channel.consumers.pop(tag)
        queue.consumers.remove(consumer)
        channel.answer_for_queue(Answer(token, tag))

    def declare(
        self,
        number: int,
        token: Any,
        name: str,
        passive: bool,
        exclusive: bool,
        quorum: bool,
        length_max: int = 0,
        dead_letter: tuple[str, str] | None = None,
        stream: bool = False,
        single_active: bool = False,
        priorities: bool = False,
    ) -> None:
        """queue.declare: (name, ready messages, consumers)."""
        broker = self.broker
        queue = broker.find(self.node, name)
        if queue is None and passive:
            raise Refusal(404, f"NOT_FOUND - no queue '{name}'")
        if queue is not None and queue.owner not in (None, self):
            raise Refusal(405, f"RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{name}'")
        if queue is not None and priorities:  # no queue has them here
            text = f"inequivalent arg 'x-max-priority' for queue '{name}' in vhost 'sim': received"
            raise Refusal(
                406, f"PRECONDITION_FAILED - {text} the value 'a' of type 'longstr' but current is none"
            )
        if queue is not None and not passive and queue.quorum != quorum:
            raise Refusal(406, f"PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for queue '{name}'")
        if queue is None:
            queue = broker.declare(
                name, quorum=quorum, owner=self if exclusive else None, length_max=length_max,
                dead_letter=dead_letter, at=self.node, stream=stream,
            )  # fmt: skip
            queue.single_active = single_active
        if not (queue.replicated or broker.reaches(self.node, queue)):
            self._ask_later(queue, number, self.declare, token, name, passive, exclusive, quorum)
            return
        broker.drop_expired(queue)
        ready, readers = broker.counts(self.node, queue)
        answer = Answer(token, (queue.name, ready, readers))
        if passive and readers and queue.quorum:
            self.channels[number].has_answered(queue)
        if queue.elects and queue.node.frozen:
            broker.scheduler.after(NO_ANSWER_MS, self.down.send, answer)
        else:
            self.down.send(answer)

    def declare_exchange(self, number: int, token: Any, name: str, passive: bool) -> None:
        if name not in self.broker.exchanges:
            if passive:
                raise Refusal(404, f"NOT_FOUND - no exchange '{name}'")
            self.broker.exchanges[name] = {}
        self.down.send(Answer(token, None))

    def bind(self, number: int, token: Any, name: str, exchange: str, key: str) -> None:
        queue = self._queue(name)
        bindings = self.broker.exchanges.get(exchange)
        if bindings is None:
            raise Refusal(404, f"NOT_FOUND - no exchange '{exchange}'")
        bound = bindings.setdefault(key, [])
        if queue not in bound:
            bound.append(queue)
        self.down.send(Answer(token, None))

    def unbind(self, number: int, token: Any, name: str, exchange: str, key: str) -> None:
        bound = self.broker.exchanges.get(exchange, {}).get(key, [])
        bound[:] = [queue for queue in bound if queue.name != name]
        self.down.send(Answer(token, None))

    def select_confirms(self, number: int, token: Any) -> None:
        self.channels[number].confirms = True
        self.down.send(Answer(token, None))

    def qos(self, number: int, token: Any, prefetch: int) -> None:
        self.channels[number].prefetch = prefetch
        self.down.send(Answer(token, None))

    def delete(
        self, number: int, token: Any, name: str, if_empty: bool = False, if_unused: bool = False
    ) -> None:
        queue = self.broker.find(self.node, name)
        if if_empty and queue is not None and queue.quorum:
            self.ended_by_broker("NOT_IMPLEMENTED - if-empty flag set", code=540)
            return
        if if_unused and queue is not None and queue.consumers:
            raise Refusal(406, f"PRECONDITION_FAILED - queue '{name}' in vhost in use")
        if if_empty and queue is not None and queue.ready_count():
            raise Refusal(406, f"PRECONDITION_FAILED - queue '{name}' in vhost is not empty")
        if queue is not None and not self.broker.reaches(self.node, queue):
            self._ask_later(queue, number, self.delete, token, name, if_empty, if_unused)
            return
        if queue is not None:
            for consumer in list(queue.consumers):
                consumer.channel.lose_queue(consumer)
            self.broker.delete(queue)
        self.down.send(Answer(token, None))

    def _queue(self, name: str) -> Queue:
        queue = self.broker.find(self.node, name)
        if queue is None:
            raise Refusal(404, f"NOT_FOUND - no queue '{name}'")
        return queue
