"""A modelled RabbitMQ cluster: nodes, who of them sees whom, leaders of quorum queues, homes of classic ones.

A quorum queue, or a stream, is one log here, which only a leader with a majority changes. What a node says to
a queue that it can't reach waits at that node, as long as the connection lives on which it came.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from random import Random
from typing import Any, Final, NamedTuple

from dispatcher.sim.broker import Broker, Observer
from dispatcher.sim.channels import Refusal
from dispatcher.sim.loop import Scheduler
from dispatcher.sim.queues import ChannelEnd, FormerLeader, Node, Queue, QueueAck, QueueConsumer

NODES: Final = 3
#: What nodes do that lose sight of others: RabbitMQ's cluster_partition_handling.
HANDLINGS: Final = ("pause_minority", "pause_minority", "autoheal", "ignore")
#: From when a node stands still until each other one gives it up: three to five quarters of `net_ticktime`,
#: which is 6 s here.
GIVEN_UP_MS: Final = (4_500, 7_500)
#: From when the leader of a queue is gone, or stands still, until another one can be elected.
GONE_MS: Final = (100, 1_000)
STILL_MS: Final = (1_000, 8_200)
#: How long a new leader of a queue tries to connect to a node that stands still, and that it has given up.
#: Until then it takes that node's consumers for alive. Erlang's net_setuptime is 7 s; somebody else may have
#: begun the attempt.
SETUP_MS: Final = (5_500, 7_200)
#: How long a client hears nothing from its node before it gives the connection up.
HEARTBEATS_MS: Final = (5_000, 10_000)
#: Until a node that is alone pauses.
PAUSES_MS: Final = (0, 1_000)
#: How long a node takes to start.
STARTS_MS: Final = (300, 2_000)
#: From when nodes see each other again until one of them is restarted, by `autoheal` or by an operator.
HEALS_MS: Final = (50, 3_000)
#: Until operators know that a node is lost for good.
FORGOTTEN_MS: Final = (1_000, 16_000)
#: How long a channel's first message waits for a quorum queue that its node can't reach before it is refused:
#: at most `net_ticktime` and 5 s.
REFUSED_MS: Final = (0, 11_000)
_LOOK_MS: Final = 200


class Waiting(NamedTuple):
    """A message on its way to a queue that its node can't reach."""

    channel: ChannelEnd
    queue: Queue
    tag: int
    store: Callable[[], None]


class Cluster(Broker):
    """Three nodes. At most one of them is hurt at a time."""

    def __init__(self, scheduler: Scheduler, observer: Observer, seed: int, handling: str) -> None:
        super().__init__(scheduler, observer)
        self.nodes = [Node(f"n{number}") for number in range(NODES)]
        self.handling = handling
        self.hurt: Node | None = None
        self.at_home: tuple[str, ...] = ()  # durable classic queues whose names begin so are on one node …
        self.is_all_at_home = False  # … or all of them
        self._chance = Random(f"{seed} nodes")  # apart: all that concerns nodes comes from it
        self._elections.seed(f"{seed} elections")
        self._refusals = Random(f"{seed} refusals")
        self._waiting: list[Waiting] = []
        self.alone_ms = 0  # for so long the leader of a quorum queue has an ack before another member
        #: Whose messages went to the leader of a quorum queue that their node had lost sight of.
        self._unheard: set[tuple[ChannelEnd, Queue]] = set()
        self._stored_counts: dict[str, int] = {}  # of queues that are lost for good
        self._times: dict[Node, int] = dict.fromkeys(self.nodes, 0)  # how often each was hurt, or mended

    def _after(self, bounds: tuple[int, int], act: Callable[..., object], *arguments: Any) -> None:
        self.scheduler.after(self._chance.randint(*bounds), act, *arguments)

    # -- who sees whom --

    @staticmethod
    def talk(one: Node, other: Node) -> bool:
        """Whether what one says reaches the other now."""
        if one is other:
            return one.works
        return one.works and other.works and one not in other.unseen and other not in one.unseen

    def _has_majority(self, node: Node) -> bool:
        return sum(self.talk(node, other) for other in self.nodes) > NODES // 2

    def entry(self) -> Node:
        return self._chance.choice([node for node in self.nodes if node.works])

    def reaches(self, node: Node, queue: Queue) -> bool:
        if queue.replicated and queue.elects:
            return self._has_majority(node)
        return self.talk(node, queue.node)

    def find(self, node: Node, name: str) -> Queue | None:
        queue = self.queues.get(name)
        if queue is None or node in queue.forgotten_by:
            return None
        if not queue.replicated and queue.node is not node and self._is_given_up(node, queue.node):
            home = f"home node '{queue.node.name}' of durable queue '{name}' in vhost 'sim'"
            raise Refusal(404, f"NOT_FOUND - {home} is down or inaccessible")
        return queue

    @staticmethod
    def _is_given_up(by: Node, other: Node) -> bool:
        return not other.running or other in by.unseen or by in other.unseen

    def routes(self, exchange: str, key: str, node: Node) -> list[Queue] | None:
        queues = super().routes(exchange, key, node)
        return queues and [
            queue for queue in queues
            if node not in queue.forgotten_by
            and (queue.replicated or queue.node is node or not self._is_given_up(node, queue.node))
        ]  # fmt: skip

    def place(self, queue: Queue, node: Node | None) -> None:
        if not queue.replicated and queue.owner is None:
            is_at_home = self.is_all_at_home or queue.name.startswith(self.at_home)
            node = self.nodes[0] if is_at_home else node
        queue.node = node or self._chance.choice(self.nodes)
        # Checkers compare the places of settles: behind those of a queue that was lost.
        queue.stored_count = self._stored_counts.pop(queue.name, 0)
        if queue.replicated and not self._has_majority(queue.node):
            self._lose_leader(queue, GONE_MS)
        if queue.owner is not None:
            queue.forgotten_by |= {other for other in self.nodes if self._is_given_up(other, queue.node)}
            queue.forgotten_by.discard(queue.node)

    # -- what can't be told to a queue yet --

    def counts(self, node: Node, queue: Queue) -> tuple[int, int]:
        """If a queue's leader does not answer, RabbitMQ says that there is nothing. One that is cut off
        answers at its own node as if it led."""
        if queue.former is not None and queue.former.node is node:
            return queue.former.ready, queue.former.readers
        if queue.replicated and (queue.elects or not self.reaches(node, queue)):
            return 0, 0
        return super().counts(node, queue)

    def takes(self, channel: ChannelEnd, queue: Queue) -> bool:
        if (channel, queue) in self._unheard and self.reaches(channel.node, queue):
            self._unheard.discard((channel, queue))  # the leader misses what went before, and asks for it
            self._store_waiting()
        if any(waiting[:2] == (channel, queue) for waiting in self._waiting):
            return False
        return self.reaches(channel.node, queue)

    def store_later(self, channel: ChannelEnd, queue: Queue, tag: int, store: Callable[[], None]) -> None:
        self._waiting.append(Waiting(channel, queue, tag, store))
        if queue.quorum and not queue.elects and self._is_given_up(channel.node, queue.node):
            self._unheard.add((channel, queue))
        if queue.quorum and channel.is_new_to(queue):
            self.scheduler.after(self._refusals.randint(*REFUSED_MS), self._refuse_first, channel, queue)

    def _refuse_first(self, channel: ChannelEnd, queue: Queue) -> None:
        """A queue has to know who publishes before it takes anything; nobody waits for longer for that."""
        if channel.is_new_to(queue):
            refused = [waiting for waiting in self._waiting if waiting[:2] == (channel, queue)]
            self._waiting = [waiting for waiting in self._waiting if waiting[:2] != (channel, queue)]
            for waiting in refused:
                channel.refuse(waiting.tag)
            channel.send_confirms()

    def _tell_queues(self) -> None:
        """Messages, acks and questions that had to wait."""
        self._store_waiting()
        for connection in list(self.connections):
            for queue in connection.tell_acks():
                self.pump(queue)
        for queue in list(self._waiting_consumes):
            if not queue.elects:
                for ask in self._waiting_consumes.pop(queue, ()):
                    ask()

    def _store_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        told: dict[ChannelEnd, None] = {}
        for position, (channel, queue, tag, store) in enumerate(waiting):
            node = channel.node
            if channel.closed:
                continue
            if self.reaches(node, queue) and (channel, queue) not in self._unheard:
                store()
                told[channel] = None
            elif not queue.replicated and self._is_given_up(node, queue.node):
                channel.refuse(tag)
                told[channel] = None
            else:
                self._waiting.append(waiting[position])
        for channel in told:
            channel.send_confirms()

    # -- leaders --

    def _replicated_queues(self) -> list[Queue]:
        return [queue for queue in self.queues.values() if queue.replicated]

    def _lose_leader(self, queue: Queue, after_ms: tuple[int, int]) -> None:
        if not queue.elects:
            queue.elects = True
            self._begin_election(queue, after_ms)
            if queue.node.running:  # it does not know that it leads no more
                queue.former = FormerLeader(queue.node, queue.ready_count(), queue.reader_count())
            since_ms = self.scheduler.now_ms - self.alone_ms
            fresh, queue.fresh_acks = queue.fresh_acks, deque()
            for ack in fresh:
                if ack.at_ms > since_ms:
                    ack.channel.take_back(ack)

    def _begin_election(self, queue: Queue, after_ms: tuple[int, int]) -> None:
        queue.elections += 1
        self._after(after_ms, self._look_for_leader, queue, queue.elections)

    def replicate_later(self, ack: QueueAck) -> None:
        fresh, since_ms = ack.queue.fresh_acks, ack.at_ms - self.alone_ms
        while fresh and fresh[0].at_ms <= since_ms:
            fresh.popleft()
        if self.alone_ms:
            fresh.append(ack)

    def replicated(self, queue: Queue) -> None:
        queue.fresh_acks.clear()

    def _forget_former(self, node: Node) -> None:
        """It does not take itself for the leader of any queue any more."""
        for queue in self.queues.values():
            if queue.former is not None and queue.former.node is node:
                queue.former = None

    def _look_for_leader(self, queue: Queue, election: int) -> None:
        if not queue.elects or queue.elections != election or self.queues.get(queue.name) is not queue:
            return
        found = [node for node in self.nodes if node.works and self._has_majority(node)]
        if not found:
            self.scheduler.after(_LOOK_MS, self._look_for_leader, queue, election)
            return
        queue.node = self._chance.choice(found)
        for consumer in list(queue.consumers):
            node = consumer.channel.node
            if node.frozen and self._is_given_up(queue.node, node) and not consumer.suspended:
                self._after(SETUP_MS, self._fail_to_connect, queue, queue.node, consumer)
            else:
                self._look_at(queue, consumer)
        self._elect(queue, self._sync_run)
        # Who publishes learns of a new leader, and sends again what nobody has answered.
        self._unheard = {(channel, known) for channel, known in self._unheard if known is not queue}
        self._tell_queues()

    def _fail_to_connect(self, queue: Queue, leader: Node, consumer: QueueConsumer) -> None:
        if consumer in queue.consumers and queue.node is leader and not queue.elects:
            self._look_at(queue, consumer)
            self.pump(queue)

    def _look_at(self, queue: Queue, consumer: QueueConsumer) -> None:
        """What the queue's leader makes of a consumer, after it lost sight of nodes, or sees them again."""
        node = consumer.channel.node
        if consumer.suspended and self.talk(queue.node, node):
            consumer.suspended = False
            queue.consumers.remove(consumer)
            if not consumer.channel.closed:  # else the leader hears of that only now
                queue.consumers.append(consumer)  # where one is active at a time it is the last in the line
        elif not consumer.suspended and self._is_given_up(queue.node, node):
            consumer.suspended = True
            consumer.channel.lose_unacked(queue)

    # -- who is given up, and seen again --

    def _give_up(self, by: Node, node: Node) -> None:
        """A node takes another one for down."""
        by.unseen.add(node)
        for queue in list(self.queues.values()):
            if queue.owner is not None and queue.node is node:
                queue.forgotten_by.add(by)
            elif queue.replicated and queue.node is by and not queue.elects:
                for consumer in list(queue.consumers):
                    self._look_at(queue, consumer)
                self.pump(queue)
            elif not queue.replicated and queue.node is by:
                self._drop_consumers(queue, lambda consumer: consumer.channel.node is node)

    def _drop_consumers(self, queue: Queue, is_meant: Callable[[QueueConsumer], bool]) -> None:
        """A classic queue and the nodes of its readers lose each other: both sides hear of that."""
        for consumer in [consumer for consumer in queue.consumers if is_meant(consumer)]:
            queue.consumers.remove(consumer)
            consumer.channel.lose_unacked(queue)
            consumer.channel.lose_queue(consumer)
        self.pump(queue)

    def _see_again(self, node: Node, others: Iterable[Node]) -> None:
        for other in others:
            node.unseen.discard(other)
            other.unseen.discard(node)
        self._forget_former(node)
        for queue in self._replicated_queues():
            if not queue.elects:
                for consumer in list(queue.consumers):
                    self._look_at(queue, consumer)
                self.pump(queue)
        self._changed()

    def _changed(self) -> None:
        self.up = any(node.works for node in self.nodes)
        self._tell_queues()

    def _others(self, node: Node) -> list[Node]:
        return [other for other in self.nodes if other is not node]

    def kill(self) -> None:
        """All nodes at once."""
        for node in self.nodes:
            if node.running:
                self.kill_node(node)

    # -- what happens to a node --

    def kill_node(self, node: Node) -> None:
        """kill -9."""
        self.hurt = node
        self._end_node(node, "the node was killed", in_order=False)

    def stop_node(self, node: Node) -> None:
        """As `rabbitmqctl stop_app` does it."""
        self.hurt = node
        self._end_node(node, "CONNECTION_FORCED - broker forced connection closure", in_order=True)

    def _end_node(self, node: Node, why: str, *, in_order: bool) -> None:
        self._times[node] += 1
        node.running, node.frozen = False, False
        self._forget_former(node)
        self.observer.killed()
        for queue in self._replicated_queues():
            if queue.node is node:
                self._lose_leader(queue, GONE_MS)
            for consumer in queue.consumers:
                # It is counted until the node is back.
                consumer.suspended |= consumer.channel.node is node and queue.elects
        for other in self._others(node):
            self._give_up(other, node)
        for connection in [connection for connection in self.connections if connection.node is node]:
            connection.ended_by_broker(why)
        for queue in list(self.queues.values()):
            if queue.node is node and not queue.replicated:
                self._end_classic(queue, in_order=in_order)
        node.unseen.clear()
        self._changed()

    def _end_classic(self, queue: Queue, *, in_order: bool) -> None:
        """The process of a classic queue ends with its node; the queue stays if it is durable."""
        if queue.owner is not None:
            self.delete(queue)
            return
        self._drop_consumers(queue, lambda _: True)
        for connection in self.connections:
            connection.take_back(queue)
        unsynced = [entry for entry in self._unsynced if entry[3] is queue]
        self._unsynced = [entry for entry in self._unsynced if entry[3] is not queue]
        for channel, tag, message, _ in unsynced:
            message.synced |= in_order
            if not channel.closed:
                channel.refuse(tag)
                channel.send_confirms()
        if in_order:
            queue.ack_log.clear()
        lost = queue.survive_kill(self.scheduler.now_ms, self._chance, in_order=in_order)
        self.observer.lost(queue, lost)
        self.observer.recovered(queue)

    def start_node(self, node: Node) -> None:
        """It starts, and finds the others."""
        if not node.running:
            self._times[node] += 1
            node.running = True
            for queue in self.queues.values():
                queue.forgotten_by.discard(node)
            self._see_again(node, self._others(node))
        if self.hurt is node:
            self.hurt = None

    def lose_node(self, node: Node) -> None:
        """For good: operators forget it, and a new one takes its place."""
        self.kill_node(node)
        self._after(FORGOTTEN_MS, self._forget, node)

    def _forget(self, node: Node) -> None:
        if node.running:
            return
        for queue in list(self.queues.values()):
            for consumer in [c for c in queue.consumers if c.channel.node is node]:
                queue.consumers.remove(consumer)
            if not queue.replicated and queue.node is node:
                self.observer.lost(queue, [*queue.returned, *queue.ready])
                self._stored_counts[queue.name] = queue.stored_count
                self.delete(queue)
        self._after(STARTS_MS, self.start_node, node)

    def freeze_node(self, node: Node) -> None:
        """SIGSTOP."""
        self.hurt = node
        self._times[node] += 1
        node.frozen = True
        for queue in self._replicated_queues():
            if queue.node is node:
                self._lose_leader(queue, STILL_MS)
        for connection in self.connections:
            if connection.node is node:
                connection.freeze()
                self._after(HEARTBEATS_MS, self._miss_heartbeats, connection, self._times[node])
        for other in self._others(node):
            self._after(GIVEN_UP_MS, self._give_up_still, other, node, self._times[node])
        self._changed()

    def _miss_heartbeats(self, connection: Any, times: int) -> None:
        if self._times[connection.node] == times:
            connection.reset("missed heartbeats from the server")

    def _give_up_still(self, by: Node, node: Node, times: int) -> None:
        if self._times[node] == times:
            self._give_up(by, node)
            self._changed()

    def thaw_node(self, node: Node) -> None:
        """SIGCONT. If others have given it up it is apart from them."""
        if not node.frozen:
            return
        self._times[node] += 1
        node.frozen = False
        apart = [other for other in self._others(node) if node in other.unseen]
        for connection in [connection for connection in self.connections if connection.node is node]:
            connection.thaw()
        if not apart:
            self._forget_former(node)
            for queue in self._replicated_queues():
                if queue.elects and queue.node is node:  # its followers were about to elect another one
                    self._begin_election(queue, GONE_MS)
            self.hurt = None
            self._changed()
            return
        for other in apart:
            self._give_up(node, other)
        self._changed()
        if self.handling == "pause_minority" and self._chance.random() < 0.5:
            self._after(PAUSES_MS, self._pause, node, self._times[node])
        self._after(HEALS_MS, self.heal_node, node)

    def part_node(self, node: Node) -> None:
        """It and the others lose sight of each other, at once. Clients reach it."""
        self.hurt = node
        self._times[node] += 1
        for other in self._others(node):
            node.unseen.add(other)
            other.unseen.add(node)
        for queue in self._replicated_queues():
            if queue.node is node:
                self._lose_leader(queue, GONE_MS)
        for other in self._others(node):
            self._give_up(other, node)
            self._give_up(node, other)
        self._changed()
        if self.handling == "pause_minority":
            self._after(PAUSES_MS, self._pause, node, self._times[node])

    def _pause(self, node: Node, times: int) -> None:
        if self._times[node] == times:
            self._end_node(node, "CONNECTION_FORCED - the node is alone", in_order=True)

    def heal_node(self, node: Node) -> None:
        """Nodes see each other again. One part is restarted: RabbitMQ does that, or an operator."""
        if not node.running:
            self._after(STARTS_MS, self.start_node, node)
            return
        self._times[node] += 1
        others = self._others(node)
        self._see_again(node, others)
        losers = [node]
        if self.handling == "autoheal":
            here = sum(connection.node is node for connection in self.connections)
            losers = others if here > len(self.connections) - here else losers
        self._after(HEALS_MS, self._restart, node, losers)

    def _restart(self, hurt: Node, nodes: list[Node]) -> None:
        for node in nodes:
            if node.running:
                self._end_node(node, "CONNECTION_FORCED - the node restarts", in_order=True)
            self._after(STARTS_MS, self.start_node, node)
        self._after((STARTS_MS[1], STARTS_MS[1]), self._is_well, hurt)

    def _is_well(self, node: Node) -> None:
        if self.hurt is node:
            self.hurt = None

    def restart(self) -> None:
        """All are well by then: `_REPAIR_CLUSTER_MS` before the end no node is hurt any more."""
        assert all(node.works and not node.unseen for node in self.nodes)
