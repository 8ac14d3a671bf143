"""Modelled RabbitMQ queues: order, unacked messages, redelivered flags (rules as seen on 3.10 and 4.0)."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from operator import attrgetter
from random import Random
from typing import Final, NamedTuple, Protocol

from dispatcher.wire.protocol import LaneNames

_position: Final = attrgetter("position")
#: How many acks of a busy classic queue a killed broker may forget: its index journal was not flushed.
FORGOTTEN_ACKS_MAX: Final = 32_768
#: After this time without acks the index journal is on disk.
IDLE_FLUSH_MS: Final = 300
#: A declared queue is on disk this long after the answer to its declare.
DEFINITIONS_FLUSH_MS: Final = 2_000


#: Positions times this are in no order.
SCATTER: Final = 40_503


#: Queues that operators send groups to: one by its name, one through an exchange with a routing key.
TARGET: Final = "elsewhere"
REROUTED: Final = "rerouted"
SHOP: Final = ("shop", "k")


def is_parking_queue(names: LaneNames, queue: str) -> bool:
    """Whether this is the name of a parking queue of the lane."""
    return queue.startswith(f"{names.exchange}.park.")


def keeps_originals(names: LaneNames, queue: str) -> bool:
    """Whether the messages in this queue of the lane have taken over their originals' role."""
    return is_parking_queue(names, queue) or queue == names.rejected or queue.startswith(names.consumer(""))


def is_on_disk(queue: Queue, now_ms: int) -> bool:
    """Whether a kill leaves the queue: of those that dispatchers declare while messages flow. A durable
    queue that was younger was seen to be gone, with all that was confirmed."""
    return ".park." not in queue.name or now_ms - queue.declared_at_ms >= DEFINITIONS_FLUSH_MS


class Stored:
    """One message in one queue. `uid` is the simulator's own name of it, which no program sees."""

    __slots__ = (
        "body", "deliveries", "exchange", "expires_at_ms", "is_behind_newer", "persistent",
        "position", "properties", "redelivered", "routing_key", "synced", "uid",
    )  # fmt: skip

    def __init__(
        self, position: int, exchange: bytes, routing_key: bytes, properties: bytes, body: bytes, uid: int
    ) -> None:
        self.position = position  # in its queue, rising
        self.exchange = exchange
        self.routing_key = routing_key
        self.properties = properties
        self.body = body
        self.uid = uid
        self.persistent = is_persistent(properties)
        self.redelivered = False
        self.deliveries = 0
        self.is_behind_newer = False  # where acks were forgotten: it came back behind newer ones
        self.synced = False  # on disk: a killed broker has it
        self.expires_at_ms = 0


class Node:
    """A node of the broker: queues are there, and connections."""

    __slots__ = ("frozen", "name", "running", "unseen")

    def __init__(self, name: str) -> None:
        self.name = name
        self.running = True
        self.frozen = False  # it runs, and does nothing
        self.unseen: set[Node] = set()  # others, which it takes for down

    @property
    def works(self) -> bool:
        return self.running and not self.frozen

    def __repr__(self) -> str:
        return self.name


class ChannelEnd(Protocol):
    """The broker's side of a channel, as far as queues and the node know it."""

    closed: bool

    @property
    def node(self) -> Node:
        """That its connection is to."""

    def take(self, queue: Queue, consumer: QueueConsumer, message: Stored) -> None:
        """The queue hands a message to a consumer of this channel."""

    def is_new_to(self, queue: Queue) -> bool:
        """Whether the queue has taken nothing yet that was published here."""

    def lose_queue(self, consumer: QueueConsumer) -> None:
        """The queue of this consumer is deleted."""

    def lose_unacked(self, queue: Queue) -> int:
        """The queue takes back what its consumers on this channel have; returns how many messages."""

    def answer(self, tag: int) -> None:
        """The publish with this tag is on disk."""

    def refuse(self, tag: int) -> None:
        """The publish with this tag is not in its queue."""

    def send_confirms(self) -> None:
        """Confirm answered publishes to the publisher."""

    def take_back(self, ack: QueueAck) -> None:
        """The next leader of its queue does not have it: the channel sends it again, if it is open then."""


#: Of a queue that is not placed yet.
_NOWHERE: Final = Node("")


class QueueAck:
    """One that the leader of a quorum queue has, or that can't reach its queue yet."""

    __slots__ = ("at_ms", "channel", "is_answered", "is_reject", "message", "queue")

    def __init__(
        self, channel: ChannelEnd, queue: Queue, message: Stored, at_ms: int, *, is_reject: bool
    ) -> None:
        self.channel = channel
        self.queue = queue
        self.message = message
        self.at_ms = at_ms
        self.is_reject = is_reject  # the message goes to the dead letter exchange
        self.is_answered = False  # so is a passive declare that came after it on its channel


class FormerLeader(NamedTuple):
    """What a node that does not know that it leads no more says of a quorum queue."""

    node: Node
    ready: int
    readers: int


class QueueConsumer:
    """One basic.consume."""

    __slots__ = ("channel", "exclusive", "no_ack", "prefetch", "suspended", "tag", "unacked")

    def __init__(
        self, channel: ChannelEnd, tag: str, *, no_ack: bool, exclusive: bool, prefetch: int
    ) -> None:
        self.channel = channel
        self.tag = tag
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.prefetch = prefetch  # 0: unlimited
        self.unacked = 0
        self.suspended = False  # the queue's leader takes its node for down

    def has_room(self) -> bool:
        return not self.suspended and (self.no_ack or not self.prefetch or self.unacked < self.prefetch)


class Queue:
    """A queue that delivers to its consumers in turn."""

    def __init__(self, name: str, *, quorum: bool, owner: object, length_max: int = 0) -> None:
        self.name = name
        self.quorum = quorum
        self.owner = owner  # None, or the connection with which an exclusive queue ends
        self.length_max = length_max
        self.dead_letter: tuple[str, str] | None = None  # exchange and key for rejected messages
        self.single_active = False  # only the first of its consumers gets anything
        self.stream = False  # a log: a kill loses nothing but its end
        self.ready: deque[Stored] = deque()
        self.returned: deque[Stored] = deque()  # quorum: returned messages are served first
        self.consumers: deque[QueueConsumer] = deque()
        self.unacked_count = 0
        self.declared_at_ms = 0
        self.ack_log: list[tuple[int, Stored]] = []  # classic: not on disk yet
        self.was_asked = False  # for a message
        self.leaderless = False  # quorum: RabbitMQ has left it so until somebody mends that
        self.elects = False  # quorum, after a kill: it has no leader, and delivers nothing
        self.elections = 0  # how often its members began to elect a leader
        self.late: list[Stored] = []  # its consumers' messages at that kill; its next leader returns them
        self.returning: list[Stored] = []  # quorum: given back, and not taken back yet
        #: Quorum: what another member has in the place of a message, where that is another one.
        self.elsewhere: dict[Stored, Stored] = {}
        self.node = _NOWHERE  # its home; of a quorum queue that of its leader
        self.former: FormerLeader | None = None  # quorum: it is cut off, and answers what it knows
        self.has_forgotten = False  # acks: so more may come back than a consumer has room for
        self.fresh_acks: deque[QueueAck] = deque()  # quorum: perhaps no other member has them yet
        self.forgotten_by: set[Node] = set()  # nodes that took its node for down, and don't know it any more
        self.stored_count = 0  # how many messages it ever had

    @property
    def replicated(self) -> bool:
        """On a cluster it has a leader and a member on each node."""
        return self.quorum or self.stream

    # -- in --

    def store(self, exchange: bytes, routing_key: bytes, properties: bytes, body: bytes, uid: int) -> Stored:
        self.stored_count += 1
        stored = Stored(self.stored_count, exchange, routing_key, properties, body, uid)
        stored.persistent |= self.quorum  # which keeps everything on disk
        self.ready.append(stored)
        if self.length_max and len(self.ready) > self.length_max:
            self.ready.popleft()
        return stored

    def requeue(self, messages: list[Stored]) -> None:
        """Unacked messages return: to their places (classic), behind those that returned before (quorum)."""
        self.unacked_count -= len(messages)
        for message in messages:
            message.redelivered = True
        messages.sort(key=self._order_of_return)
        if self.quorum and self.was_asked:
            self._return_elsewhere(messages)
        if self.elects:
            self.late += messages
        elif self.quorum:
            self._return_behind(messages)
        else:
            self._merge(messages)

    def _return_behind(self, messages: list[Stored]) -> None:
        if self.has_forgotten:
            newest = max((message.position for message in self.returned), default=0)
            for message in messages:
                message.is_behind_newer |= message.position < newest
        self.returned.extend(messages)

    def take_back(self) -> None:
        """What was given back is in the queue from now on."""
        returning, self.returning = self.returning, []
        for message in returning:
            self.requeue([message])

    def reader_count(self) -> int:
        """Consumers, as RabbitMQ counts them: a quorum queue counts each message that somebody asked for."""
        return len(self.consumers) + (self.unacked_count if self.quorum and self.was_asked else 0)

    def _order_of_return(self, message: Stored) -> int:
        """A quorum queue takes each message that was asked for for a consumer of its own, and returns what
        these had in any order."""
        return message.position * SCATTER % 65_537 if self.quorum and self.was_asked else message.position

    def _return_elsewhere(self, messages: list[Stored]) -> None:
        """Up to RabbitMQ 4.1.0 another member puts them back in another order (rabbitmq-server#13971)."""
        there = sorted((self.elsewhere.pop(message, message) for message in messages), key=_position)
        pairs = zip(messages, there, strict=True)
        self.elsewhere |= {message: other for message, other in pairs if other is not message}

    def change_leader(self) -> dict[Stored, Stored]:
        """Another member leads. Returns the messages that this one has in the places of others."""
        there, self.elsewhere = self.elsewhere, {}
        for line in (self.returned, self.ready):
            for place, message in enumerate(line):
                line[place] = there.get(message, message)
        self.late = [there.get(message, message) for message in self.late]
        self.elsewhere = {other: message for message, other in there.items()}
        return there

    def _merge(self, messages: list[Stored]) -> None:
        ready = self.ready
        if not messages:
            return
        if not ready or ready[0].position > messages[-1].position:
            ready.extendleft(reversed(messages))
            return
        for message in messages:
            ready.insert(bisect_left(ready, message.position, key=_position), message)

    # -- out --

    def ready_count(self) -> int:
        return len(self.ready) + len(self.returned) + len(self.late)

    def deliver(self) -> None:
        """Hand out what the consumers have room for."""
        while self.returned or self.ready:
            consumer = self._consumer_with_room()
            if consumer is None:
                return
            message = self.returned.popleft() if self.returned else self.ready.popleft()
            consumer.channel.take(self, consumer, message)
            message.deliveries += 1
            if not (self.returned or self.late):  # one consumer has all of it, and gives it back in order
                self.has_forgotten = False

    def fetch(self) -> Stored | None:
        """The next message for a client that asks for one."""
        self.was_asked = True
        line = self.returned or self.ready
        if not line:
            return None
        message = line.popleft()
        message.deliveries += 1
        return message

    def _consumer_with_room(self) -> QueueConsumer | None:
        consumers = self.consumers
        if self.single_active:
            active = next((consumer for consumer in consumers if not consumer.suspended), None)
            return active if active is not None and active.has_room() else None
        for _ in range(len(consumers)):
            consumer = consumers[0]
            consumers.rotate(-1)
            if consumer.has_room():
                return consumer
        return None

    def acked(self, message: Stored, now_ms: int) -> None:
        self.unacked_count -= 1
        self.elsewhere.pop(message, None)
        if self.quorum or not message.persistent:
            return
        log = self.ack_log
        if len(log) >= FORGOTTEN_ACKS_MAX or (log and now_ms - log[-1][0] >= IDLE_FLUSH_MS):
            log.clear()
        log.append((now_ms, message))

    # -- a kill --

    def survive_kill(self, now_ms: int, random: Random, *, in_order: bool = False) -> list[Stored]:
        """Keep only messages on disk. Returns the lost messages (never those whose confirm was due). After an
        end in order a classic queue knows what it has delivered, and flags nothing else."""
        kept: list[Stored] = []
        lost: list[Stored] = []
        came_back = set(self.returned)
        cut, scattered = False, random.random() < 0.5  # large bodies and small ones are written apart
        for message in [*self.returned, *self.ready]:
            if not message.persistent:
                lost.append(message)
            elif message.synced:
                kept.append(message)
            else:
                cut = random.random() < 0.3 or (cut and (self.stream or not scattered))
                (lost if cut else kept).append(message)
        log = self.ack_log
        if log and now_ms - log[-1][0] < IDLE_FLUSH_MS and random.random() < 0.7:
            kept += [message for _, message in log[random.randrange(len(log)) :]]
        log.clear()
        if self.quorum:  # it goes on where its log ends: messages that returned before still go first
            self.elsewhere.clear()
            self.returned = deque(message for message in kept if message in came_back)
            self.ready = deque(message for message in kept if message not in came_back)
            return lost
        for message in kept:
            message.redelivered |= not in_order
        self.ready = deque(sorted(kept, key=lambda message: message.position))
        return lost

    def give_back_late(self) -> None:
        """Its leader has noticed that the consumers from before the kill are gone."""
        self._return_behind(sorted(self.late, key=self._order_of_return))
        self.late.clear()

    def __repr__(self) -> str:
        return f"<Queue {self.name} {self.ready_count()} ready {self.unacked_count} unacked>"


def is_persistent(properties: bytes) -> bool:
    """Whether a raw property list has delivery_mode 2."""
    flags, position = properties[0], 2
    if not flags & 0x10:
        return False
    for bit in (0x80, 0x40):
        if flags & bit:
            position += 1 + properties[position]
    if flags & 0x20:
        position += 4 + int.from_bytes(properties[position : position + 4])
    return properties[position] == 2


def with_death(properties: bytes, queue: str) -> bytes:
    """The properties with the headers that RabbitMQ adds when this queue's consumer rejects a message."""
    name = queue.encode()
    return _with_field(
        properties,
        b"\x13x-first-death-queueS" + len(name).to_bytes(4) + name
        + b"\x14x-first-death-reasonS" + (8).to_bytes(4) + b"rejected",
    )  # fmt: skip


def with_delivery_count(properties: bytes, count: int) -> bytes:
    """The properties with the header that a quorum queue adds when it delivers a message again."""
    return _with_field(properties, b"\x10x-delivery-countl" + count.to_bytes(8))


def _with_field(properties: bytes, field: bytes) -> bytes:
    flags, position = properties[0], 2
    for bit in (0x80, 0x40):
        if flags & bit:
            position += 1 + properties[position]
    if not flags & 0x20:
        table = len(field).to_bytes(4) + field
        return bytes((flags | 0x20,)) + properties[1:position] + table + properties[position:]
    end = position + 4 + int.from_bytes(properties[position : position + 4])
    table = properties[position + 4 : end] + field
    return properties[:position] + len(table).to_bytes(4) + table + properties[end:]
