"""The broker's side of a channel: deliveries, acks, publishes, confirms."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import takewhile
from typing import Any, Final, NamedTuple

from dispatcher.amqp.events import Confirmed, ConsumerCancelled, Delivery, Fetched, Returned
from dispatcher.sim.broker import ConnectionEnd
from dispatcher.sim.queues import (
    Node,
    Queue,
    QueueAck,
    QueueConsumer,
    Stored,
    with_death,
    with_delivery_count,
)

#: How often a queue's answer comes a moment after what its channel says next.
LATE_SHARE: Final = 0.3


class Answer(NamedTuple):
    """The reply to a call, on its way to the caller."""

    token: Any
    result: Any


class Refusal(Exception):
    """The broker closes the channel."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code} {text}")
        self.code = code
        self.text = text


class BrokerChannel:
    """One channel as the broker has it."""

    def __init__(self, connection: ConnectionEnd, number: int) -> None:
        self.connection = connection
        self.number = number
        self.confirms = False
        self.prefetch = 0
        self.consumers: dict[str, tuple[Queue, QueueConsumer]] = {}
        self.unacked: dict[int, tuple[Queue, QueueConsumer | None, Stored]] = {}  # None: it was fetched
        self.closed = False
        self._void: set[int] = set()  # tags of messages that their queue has taken back: acks mean nothing
        self._unheard: list[QueueAck] = []  # their queue can't be told
        self._unreal: list[QueueAck] = []  # a leader that is cut off has them, and no other
        self._delivered = 0
        self._published = 0
        self._late: list[Any] | None = None  # what queues have said and the channel has not passed on yet
        self._unconfirmed: dict[int, bool] = {}  # tag → answered
        self._nacked: list[int] = []
        self._takers: set[Queue] = set()  # queues that have taken what was published here

    @property
    def node(self) -> Node:
        """That its connection is to."""
        return self.connection.node

    # -- deliveries --

    def take(self, queue: Queue, consumer: QueueConsumer, message: Stored) -> None:
        """The queue hands a message to a consumer of this channel."""
        self._delivered += 1
        tag = self._delivered
        if not consumer.no_ack:
            self.unacked[tag] = (queue, consumer, message)
            consumer.unacked += 1
            queue.unacked_count += 1
        properties = message.properties
        if queue.quorum and message.deliveries:
            properties = with_delivery_count(properties, message.deliveries)
        self._pass_on(
            Delivery(
                self.number, consumer.tag.encode(), tag, message.redelivered, message.exchange,
                message.routing_key, properties, message.body,
            )
        )  # fmt: skip

    def answer_for_queue(self, answer: Answer) -> None:
        """The queue answers a consume or a cancel, the channel everything else: a client that asks for more
        before that answer comes may get the answers in another order."""
        scheduler = self.connection.broker.scheduler
        if self._late is None and scheduler.random.random() < LATE_SHARE:
            self._late = []
            scheduler.after(1, self._catch_up)
        self._pass_on(answer)

    def _pass_on(self, item: Any) -> None:
        if self._late is None:
            self.connection.down.send(item)
        else:
            self._late.append(item)

    def _catch_up(self) -> None:
        late, self._late = self._late or [], None
        for item in late:
            if not self.closed:
                self.connection.down.send(item)

    def fetch(self, queue: Queue) -> Fetched | None:
        """basic.get; None: nothing is ready."""
        message = queue.fetch()
        if message is None:
            return None
        self._delivered += 1
        self.unacked[self._delivered] = (queue, None, message)
        queue.unacked_count += 1
        return Fetched(
            self._delivered, message.redelivered, message.exchange, message.routing_key, queue.ready_count(),
            message.properties, message.body,
        )  # fmt: skip

    def give_back(self, tag: int) -> Queue:
        """basic.nack with `requeue`."""
        if tag not in self.unacked:
            raise Refusal(406, f"PRECONDITION_FAILED - unknown delivery tag {tag}")
        queue, consumer, message = self.unacked.pop(tag)
        if tag in self._void:
            self._void.discard(tag)
            return queue
        if consumer is not None:
            consumer.unacked -= 1
        if queue.quorum and consumer is None:
            self.connection.broker.take_back_later(queue)
            queue.returning.append(message)
        else:
            queue.requeue([message])
        return queue

    def lose_unacked(self, queue: Queue) -> int:
        """A quorum queue takes back what is unacked on this channel, which stays open. Returns how many
        messages that were."""
        taken = []
        for tag, (holder, consumer, message) in self.unacked.items():
            if holder is queue and tag not in self._void:
                if consumer is not None:
                    consumer.unacked -= 1
                self._void.add(tag)
                taken.append(message)
        taken += self._take_unheard(queue)
        queue.requeue(taken)
        return len(taken)

    def _take_unheard(self, queue: Queue) -> list[Stored]:
        """Messages whose ack their queue will not hear of."""
        found = [ack for ack in self._unheard if ack.queue is queue]
        self._unheard = [ack for ack in self._unheard if ack.queue is not queue]
        return self._forgotten(found)

    def _forgotten(self, acks: list[QueueAck]) -> list[Stored]:
        """Their messages, which are in the queue again."""
        for ack in acks:
            ack.queue.has_forgotten = True
            if not ack.is_answered and not self.closed and self._is_misled(ack.queue):
                self._unreal.append(ack)  # it may be answered yet
            else:
                self.connection.broker.observer.ack_forgotten(
                    ack.queue, ack.message, is_answered=ack.is_answered
                )
        return [ack.message for ack in acks]

    def _is_misled(self, queue: Queue) -> bool:
        """Its node leads the queue no more, and does not know that."""
        return queue.former is not None and queue.former.node is self.node

    def take_back(self, ack: QueueAck) -> None:
        """The next leader of its queue does not have it: the channel sends it again, if it is open then."""
        ack.queue.unacked_count += 1
        self.connection.broker.observer.unacked(ack.queue, ack.message)
        if self.closed:
            ack.queue.requeue(self._forgotten([ack]))
        else:
            self._unheard.append(ack)

    def has_answered(self, queue: Queue) -> None:
        """A passive declare of the queue, with a consumer: who asked takes his acks for proven."""
        for ack in [ack for ack in self._unreal if ack.queue is queue]:
            self._unreal.remove(ack)
            ack.is_answered = True
            self._forgotten([ack])
        for ack in (*self._unheard, *queue.fresh_acks):
            if ack.channel is self and ack.queue is queue:
                ack.is_answered = True

    def tell_acks(self) -> list[Queue]:
        """Acks reach queues that could not be reached. Returns these queues."""
        broker, unheard = self.connection.broker, self._unheard
        self._unheard = []
        told: dict[Queue, None] = {}
        for ack in unheard:
            if broker.reaches(self.node, ack.queue):
                self._acked(ack)
                told[ack.queue] = None
            else:
                self._unheard.append(ack)
        return list(told)

    def _acked(self, ack: QueueAck) -> None:
        broker, queue = self.connection.broker, ack.queue
        if ack.is_reject:
            self._dead_letter(queue, ack.message)
        queue.acked(ack.message, broker.scheduler.now_ms)
        broker.observer.acked(queue, ack.message)
        if queue.quorum:
            broker.replicate_later(ack)

    def replace(self, queue: Queue, others: dict[Stored, Stored]) -> None:
        """Another leader of the queue takes the tags of these messages for those of others."""
        for tag, (holder, consumer, message) in self.unacked.items():
            if holder is queue and message in others and tag not in self._void:
                self.unacked[tag] = (holder, consumer, others[message])

    def reject(self, tag: int) -> None:
        """basic.nack without `requeue`: the message goes to its queue's dead letter exchange and is acked."""
        self.ack(tag, False, is_reject=True)

    def _dead_letter(self, queue: Queue, message: Stored) -> None:
        broker = self.connection.broker
        if queue.dead_letter is not None:
            exchange, key = queue.dead_letter
            properties = with_death(message.properties, queue.name)
            for target in broker.routes(exchange, key, self.node) or []:
                copy = broker.put(target, exchange.encode(), key.encode(), properties, message.body)
                copy.synced = True

    def ack(self, tag: int, multiple: bool, *, is_reject: bool = False) -> None:
        broker, tags = self.connection.broker, self._tags(tag, multiple)
        if not tags:
            raise Refusal(406, f"PRECONDITION_FAILED - unknown delivery tag {tag}")
        queues: dict[Queue, None] = {}
        for known in tags:
            queue, consumer, message = self.unacked.pop(known)
            ack = QueueAck(self, queue, message, broker.scheduler.now_ms, is_reject=is_reject)
            if known in self._void:
                self._void.discard(known)
                if self._is_misled(queue):
                    self._unreal.append(ack)
                continue
            if consumer is not None:
                consumer.unacked -= 1
            if broker.reaches(self.node, queue):
                self._acked(ack)
                queues[queue] = None
            else:
                self._unheard.append(ack)
        for queue in queues:
            broker.pump(queue)

    def _tags(self, tag: int, multiple: bool) -> list[int]:
        """The tags that an ack means."""
        if not multiple:
            return [tag] if tag in self.unacked else []
        return list(takewhile(lambda known: known <= tag, self.unacked))

    def is_new_to(self, queue: Queue) -> bool:
        """Whether the queue has taken nothing yet that was published here."""
        return queue not in self._takers

    def lose_queue(self, consumer: QueueConsumer) -> None:
        """The queue of this consumer is deleted: its client is told."""
        if self.connection.open and not self.closed:
            self.consumers.pop(consumer.tag, None)
            self.connection.down.send(ConsumerCancelled(self.number, consumer.tag.encode()))

    def requeue_all(self) -> list[Queue]:
        """The channel ends: its consumers are gone, and unacked messages return to their queues."""
        self.closed = True
        for queue, consumer in self.consumers.values():
            if consumer in queue.consumers and not consumer.suspended:  # else nobody can tell the queue
                queue.consumers.remove(consumer)
        self.consumers.clear()
        by_queue: dict[Queue, list[Stored]] = {}
        for tag, (queue, _, message) in self.unacked.items():
            if tag not in self._void:
                by_queue.setdefault(queue, []).append(message)
        self.unacked.clear()
        for queue in dict.fromkeys(ack.queue for ack in self._unheard):
            by_queue.setdefault(queue, []).extend(self._take_unheard(queue))
        for queue, messages in by_queue.items():
            queue.take_back()
            queue.requeue(messages)
        return list(by_queue)

    # -- publishes --

    def publish(
        self,
        exchange: str,
        key: str,
        mandatory: bool,
        properties: bytes,
        body: bytes,
        uid: int,
        expires_ms: int,
    ) -> None:
        broker = self.connection.broker
        tag = 0
        if self.confirms:
            self._published += 1
            tag = self._published
            self._unconfirmed[tag] = False
        queues = broker.routes(exchange, key, self.node)
        if queues is None:
            raise Refusal(404, f"NOT_FOUND - no exchange '{exchange}'")
        if not queues and mandatory:
            self.connection.down.send(
                Returned(self.number, 312, "NO_ROUTE", exchange.encode(), key.encode(), properties, body)
            )
        later = False
        for queue in list(queues):
            if broker.nack_next.get(queue.name):
                broker.nack_next[queue.name] -= 1
                broker.observer.nacked(queue, body)
                self._nacked.append(tag)
                self._unconfirmed.pop(tag, None)
                later = True
                continue
            if broker.lose_next.get(queue.name) and body.rstrip(b"!").isdigit():
                broker.lose_next[queue.name] -= 1
                broker.observer.copy_lost(queue, body)
                continue
            store = partial(
                self._store, queue, exchange.encode(), key.encode(), properties, body, uid, expires_ms, tag
            )
            if broker.takes(self, queue):
                later |= store()
            else:
                later = True
                broker.store_later(self, queue, tag, partial(self._store_late, store, tag))
        if tag and not later:
            self._unconfirmed[tag] = True

    def _store(
        self, queue: Queue, exchange: bytes, key: bytes, properties: bytes, body: bytes, uid: int,
        expires_ms: int, tag: int,
    ) -> bool:  # fmt: skip
        """Whether it is confirmed later."""
        broker = self.connection.broker
        self._takers.add(queue)
        message = broker.put(queue, exchange, key, properties, body, uid, expires_ms)
        if not message.persistent or queue.owner is not None:
            return False
        if tag:
            broker.sync_later(self, tag, message, queue)
        else:
            message.synced = True
        return True

    def _store_late(self, store: Callable[[], bool], tag: int) -> None:
        if not store():
            self.answer(tag)

    def refuse(self, tag: int) -> None:
        """The publish with this tag is not in its queue."""
        if self._unconfirmed.pop(tag, None) is not None:
            self._nacked.append(tag)

    def answer(self, tag: int) -> None:
        if tag in self._unconfirmed:
            self._unconfirmed[tag] = True

    def send_confirms(self) -> None:
        """Answer the publishes whose answer is due: one `multiple` for the oldest ones without a gap, the
        others singly."""
        down, number, unconfirmed = self.connection.down, self.number, self._unconfirmed
        if self._nacked:
            for tag in self._nacked:
                down.send(Confirmed(number, tag, False, True))
            self._nacked.clear()
        answered = [tag for tag, is_answered in unconfirmed.items() if is_answered]
        if not answered:
            return
        first_open = next((tag for tag, is_answered in unconfirmed.items() if not is_answered), None)
        for tag in answered:
            del unconfirmed[tag]
        oldest = [tag for tag in answered if first_open is None or tag < first_open]
        if oldest and self.connection.broker.scheduler.random.random() >= 0.3:
            down.send(Confirmed(number, oldest[-1], True, False))
        else:
            oldest = []
        for tag in answered[len(oldest) :]:
            down.send(Confirmed(number, tag, False, False))
