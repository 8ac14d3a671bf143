"""A modelled RabbitMQ of one node: queues, direct exchanges, connections, restarts and kills.

It differs from a simple queue in ways that were seen of the real RabbitMQ: returns come before
confirms, confirms are late and sometimes `multiple`, exclusive queues end with their connection, a kill
flags every message of a classic queue, and may bring back messages that were acked.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final, Protocol

from dispatcher.sim.loop import ProcessLoop, Scheduler
from dispatcher.sim.pipes import Pipe
from dispatcher.sim.queues import ChannelEnd, Node, Queue, QueueAck, Stored, is_on_disk

#: From a start of the node until a quorum queue has a leader again.
ELECTION_MS_MAX: Final = 1_000
ELECTION_LOOK_MS: Final = 20
#: How long a quorum queue needs for what was given back.
TAKES_BACK_MS_MAX: Final = 50


class Observer(Protocol):
    """Watches the broker from outside of the system under test."""

    def stored(self, queue: Queue, message: Stored) -> None: ...
    def confirmed(self, queue: Queue, message: Stored) -> None: ...
    def acked(self, queue: Queue, message: Stored) -> None: ...
    def unacked(self, queue: Queue, message: Stored) -> None: ...
    def ack_forgotten(self, queue: Queue, message: Stored, *, is_answered: bool) -> None: ...
    def lost(self, queue: Queue, messages: list[Stored]) -> None: ...
    def recovered(self, queue: Queue) -> None: ...
    def exchanged(self, gone: list[Stored], back: list[Stored]) -> None: ...
    def killed(self) -> None: ...
    def expired(self, queue: Queue, message: Stored) -> None: ...
    def nacked(self, queue: Queue, body: bytes) -> None: ...
    def copy_lost(self, queue: Queue, body: bytes) -> None: ...
    def blocked(self) -> None: ...
    def note(self, who: str, what: str, *details: Any) -> None: ...


class ConnectionEnd(Protocol):
    """The broker's side of a connection, as far as the node and its channels know it."""

    broker: Broker
    node: Node
    process: ProcessLoop
    name: str
    up: Pipe
    down: Pipe
    open: bool  # as the broker sees it

    def replace(self, queue: Queue, others: dict[Stored, Stored]) -> None:
        """Another leader of the queue has other messages in the places of some."""

    def take_back(self, queue: Queue) -> int:
        """The queue takes back all that is unacked here, and the channels stay open. Returns how many
        messages that were."""

    def tell_acks(self) -> list[Queue]:
        """Acks reach queues that could not be reached. Returns these queues."""

    def freeze(self) -> None:
        """Its node stands still."""

    def thaw(self) -> None:
        """Its node goes on."""

    def unblock(self) -> None:
        """The alarm has ended: the broker reads the bytes that were sent meanwhile."""

    def ended_by_broker(self, why: str, *, code: int = 320) -> None:
        """The broker ends it now; the process learns of that when it has read everything before."""

    def reset(self, why: str, *, told: bool = True) -> None:
        """The connection breaks on its way, or its process does."""


class Broker:
    """One node, and all that is there. A `BrokerConnection` enters itself; everything else goes through its
    pipes."""

    def __init__(self, scheduler: Scheduler, observer: Observer) -> None:
        self.scheduler = scheduler
        self.observer = observer
        self.up = True  # clients can connect
        self.nodes = [Node("n0")]
        self.alarm = False  # short of memory: connections that publish are blocked
        self.queues: dict[str, Queue] = {}
        self.exchanges: dict[str, dict[str, list[Queue]]] = {}
        self.connections: list[ConnectionEnd] = []
        self.named = 0
        self.misread: list[str] = []  # what a link took for an error of the protocol
        self.nack_next: dict[str, int] = {}  # queue → publishes to it that will be refused
        self.lose_next: dict[str, int] = {}  # queue → copies that will be confirmed, and not be in it
        #: Called with each queue that is declared and was not there: where a fault may strike.
        self.declared: Callable[[Queue], None] | None = None
        #: Called with a queue when a client has asked it for a message: where a fault may strike.
        self.fetched: Callable[[Queue], None] | None = None
        #: Called with (connection, exchange) before each publish: where a fault may strike.
        self.before_publish: Callable[[ConnectionEnd, str, str], None] | None = None
        #: Whether this publish (connection, exchange, routing key, body) can't be taken: "channel" or
        #: "connection" is what it costs its publisher.
        self.refuses: Callable[[ConnectionEnd, str, str, bytes], str | None] | None = None
        self._elections = Random()  # apart, sown at each kill: elections change nothing else of a seed
        self._returns = Random(0)  # apart for the same reason
        self._waiting_consumes: dict[Queue, list[Callable[[], None]]] = {}  # of queues that elect
        self._unsynced: list[tuple[ChannelEnd, int, Stored, Queue]] = []
        self._sync_due = False
        self._sync_run = 0

    # -- names --

    def declare(
        self, name: str, *, quorum: bool = False, owner: ConnectionEnd | None = None, length_max: int = 0,
        dead_letter: tuple[str, str] | None = None, at: Node | None = None, stream: bool = False,
    ) -> Queue:  # fmt: skip
        if not name:
            self.named += 1
            name = f"amq.gen-{self.named}"
        queue = self.queues.get(name)
        if queue is None:
            queue = self.queues[name] = Queue(name, quorum=quorum, owner=owner, length_max=length_max)
            queue.declared_at_ms = self.scheduler.now_ms
            queue.dead_letter, queue.stream = dead_letter, stream
            self.place(queue, owner.node if owner is not None else at)
            if self.declared is not None:
                self.declared(queue)
        return queue

    def delete(self, queue: Queue) -> None:
        self.queues.pop(queue.name, None)
        for bindings in self.exchanges.values():
            for key, bound in list(bindings.items()):
                if queue in bound:
                    bound.remove(queue)
                    if not bound:
                        del bindings[key]

    def routes(self, exchange: str, key: str, node: Node) -> list[Queue] | None:
        """The queues that a publish at this node goes to; None: there is no such exchange."""
        if not exchange:
            queue = self.queues.get(key)
            return [queue] if queue is not None else []
        bindings = self.exchanges.get(exchange)
        return None if bindings is None else bindings.get(key, [])

    # -- nodes: with only one of them there is nothing to decide --

    def entry(self) -> Node:
        """The node that lets a client in."""
        return self.nodes[0]

    def place(self, queue: Queue, node: Node | None) -> None:
        """Give a new queue its node; None: it may be anywhere."""
        queue.node = self.nodes[0]

    def find(self, _node: Node, name: str) -> Queue | None:
        """The queue of that name, if this node knows it."""
        return self.queues.get(name)

    def reaches(self, _node: Node, _queue: Queue) -> bool:
        """Whether what a client says at this node gets to the queue."""
        return True

    def counts(self, _node: Node, queue: Queue) -> tuple[int, int]:
        """Ready messages and consumers, as a declare says it."""
        return 0 if queue.leaderless else queue.ready_count(), queue.reader_count()

    def takes(self, _channel: ChannelEnd, _queue: Queue) -> bool:
        """Whether a publish on the channel gets to the queue now; else see `store_later`."""
        return True

    def store_later(self, channel: ChannelEnd, queue: Queue, tag: int, store: Callable[[], None]) -> None:
        """Call `store` when the queue can be reached."""
        raise NotImplementedError("a single node reaches all its queues")

    def replicate_later(self, ack: QueueAck) -> None:
        """The leader of a quorum queue has an ack. With one node that is all."""

    def replicated(self, queue: Queue) -> None:
        """A quorum queue has confirmed something: other members have all that came before."""

    # -- messages --

    def put(
        self,
        queue: Queue,
        exchange: bytes,
        key: bytes,
        properties: bytes,
        body: bytes,
        uid: int = 0,
        expires_ms: int = 0,
    ) -> Stored:
        """Store a message and deliver what can be."""
        message = queue.store(exchange, key, properties, body, uid)
        if expires_ms:
            message.expires_at_ms = self.scheduler.now_ms + expires_ms
        self.observer.stored(queue, message)
        self.pump(queue)
        return message

    def pump(self, queue: Queue) -> None:
        if queue.consumers and (queue.ready or queue.returned) and not queue.elects:
            self.drop_expired(queue)
            queue.deliver()

    def take_back_later(self, queue: Queue) -> None:
        """A quorum queue may answer requests for messages before it takes back what was given back."""
        if not queue.returning:
            self.scheduler.after(self._returns.randint(0, TAKES_BACK_MS_MAX), self._take_back, queue)

    def _take_back(self, queue: Queue) -> None:
        queue.take_back()
        self.pump(queue)

    def drop_expired(self, queue: Queue) -> None:
        """Expired messages go when they are at the head."""
        now_ms = self.scheduler.now_ms
        for line in (queue.returned, queue.ready):
            while line and line[0].expires_at_ms and line[0].expires_at_ms <= now_ms:
                self.observer.expired(queue, line.popleft())

    def sync_later(self, channel: ChannelEnd, tag: int, message: Stored, queue: Queue) -> None:
        """Persistent and durable: confirmed once it is on disk."""
        self._unsynced.append((channel, tag, message, queue))
        if not self._sync_due:
            self._sync_due = True
            self.scheduler.after(self.scheduler.random.randint(0, 4), self._sync, self._sync_run)

    def _sync(self, run: int) -> None:
        if run != self._sync_run:
            return
        self._sync_due = False
        unsynced, self._unsynced = self._unsynced, []
        channels: dict[ChannelEnd, None] = {}
        for channel, tag, message, queue in unsynced:
            is_cut_off = not channel.closed and not self.reaches(channel.node, queue)
            if queue.elects or queue.leaderless or is_cut_off:  # it takes a leader to confirm
                self._unsynced.append((channel, tag, message, queue))
                continue
            message.synced = True
            self.observer.confirmed(queue, message)
            self.replicated(queue)
            channel.answer(tag)
            channels[channel] = None
        for channel in channels:
            if not channel.closed:
                channel.send_confirms()
        if self._unsynced:
            self._sync_due = True
            self.scheduler.after(ELECTION_LOOK_MS, self._sync, run)

    # -- faults --

    def end_alarm(self) -> None:
        """All connections that were blocked are read again."""
        self.alarm = False
        for connection in list(self.connections):
            connection.unblock()

    def kill(self) -> None:
        """kill -9 of the node: connections end, messages that were not on disk may be lost."""
        self.up = self.alarm = False
        self.observer.killed()
        self._sync_run += 1
        self._sync_due = False
        self._unsynced = []
        self._elections.seed(self.scheduler.now_ms)
        for queue in self.queues.values():
            queue.elects = queue.quorum
        self._waiting_consumes.clear()
        for connection in list(self.connections):
            connection.ended_by_broker("the broker was killed")
        for queue in list(self.queues.values()):
            if queue.owner is not None:
                self.delete(queue)
            elif not is_on_disk(queue, self.scheduler.now_ms):
                self.delete(queue)
                self.observer.lost(queue, list(queue.ready))
            else:
                lost = queue.survive_kill(self.scheduler.now_ms, self.scheduler.random)
                self.observer.lost(queue, lost)
                self.observer.recovered(queue)

    def restart(self) -> None:
        self.up = True
        for queue in self.queues.values():
            if queue.elects:
                took_ms = self._elections.randint(0, ELECTION_MS_MAX)
                self.scheduler.after(took_ms, self._elect, queue, self._sync_run)

    # -- elections --

    def change_leader(self, queue: Queue) -> bool:
        """Another member of a quorum queue leads. False: that changes nothing."""
        there = queue.change_leader()
        for connection in self.connections:
            connection.replace(queue, there)
        here, others = set(there), set(there.values())
        self.observer.exchanged(list(here - others), list(others - here))
        return bool(there)

    def when_elected(self, queue: Queue, consume: Callable[[], None]) -> None:
        """A consume waits to be what the queue's next leader hears of."""
        self._waiting_consumes.setdefault(queue, []).append(consume)

    def _elect(self, queue: Queue, run: int) -> None:
        """The leader learns of new consumers, and that former ones are gone, in any order. If it serves one
        at a time it has the messages of the former one back before that."""
        if run != self._sync_run:
            return
        queue.elects = False
        consumes = self._waiting_consumes.pop(queue, [])
        if self._elections.random() < 0.5 or queue.single_active:
            queue.give_back_late()
        for consume in consumes:
            consume()
        queue.give_back_late()
        self.pump(queue)
