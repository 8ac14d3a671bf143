"""Faults of the broker: killed, refusing, slow, forgetful."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dispatcher.sim.consumers import ConsumerMachine
from dispatcher.sim.faults.striking import Faults, fault
from dispatcher.sim.queues import REROUTED, TARGET, Queue, Stored, is_parking_queue
from dispatcher.sim.scenario import Fault

#: How often a fault looks whether it can strike.
_LOOK_MS: Final = 20


@fault(often=5)
def kill_broker(faults: Faults, fault: Fault) -> bool:
    """The node is killed and starts again: messages that were not on disk are gone, acks may be forgotten,
    and a quorum queue elects a leader first, which may return its consumers' messages late."""
    broker = faults.world.broker
    if not broker.up:
        return False
    broker.kill()
    faults.after(200 + fault.amount % 2_000, broker.restart)
    return True


@fault(often=2)
def nack(faults: Faults, fault: Fault) -> bool:
    """A queue refuses the next publishes to it, if there are any."""
    broker, names = faults.world.broker, faults.world.names
    queues = [queue.name for queue in broker.queues.values() if queue.owner is not None]
    queues += [names.dead, names.control, *(name for name in broker.queues if is_parking_queue(names, name))]
    queues += [queue.name for queue in broker.queues.values() if queue.stream]
    broker.nack_next[queues[fault.target % len(queues)]] = 1 + fault.amount % 3
    return False


@fault(often=0)
def lose_copy(faults: Faults, fault: Fault) -> bool:
    """The next copies to a consumer get lost on their way, if there are any, and the consumer is there."""
    broker = faults.world.broker
    queues = [queue.name for queue in broker.queues.values() if queue.owner is not None]
    if queues:
        broker.lose_next[queues[fault.target % len(queues)]] = 1 + fault.amount % 3
    return False


@fault(often=0)
def deliver_again(faults: Faults, fault: Fault) -> bool:
    """The leader of a quorum queue, inbound or the lane's own, lost sight of the node with its reader and
    sees it again: it delivers everything unacked again, on the same channel. The lock goes to one that
    stands by, and nobody tells its holder."""
    broker, names = faults.world.broker, faults.world.names
    known = [name for name, _, _ in faults.world.scenario.inbounds]
    known += [names.lock, names.control, names.command]
    queues = [broker.queues[name] for name in known if name in broker.queues and broker.queues[name].quorum]
    if not broker.up or not queues:
        return False
    queue = queues[fault.target % len(queues)]
    taken = sum(consumer.channel.lose_unacked(queue) for consumer in queue.consumers)
    if queue.single_active:
        queue.consumers.rotate(-1)
    broker.pump(queue)
    return taken > 0


@fault(often=0)
def lose_leader(faults: Faults, fault: Fault) -> bool:
    """A quorum queue in which messages are parked has no leader for up to 8 s; if there is none, the next
    that is declared. Who asks it for a message loses the connection, and it confirms nothing."""
    broker, names = faults.world.broker, faults.world.names

    def is_meant(queue: Queue) -> bool:
        return queue.quorum and is_parking_queue(names, queue.name)

    def strike(queue: Queue) -> None:
        queue.leaderless = True
        faults.after(1_000 + fault.amount % 7_000, setattr, queue, "leaderless", False)

    def declared(queue: Queue) -> None:
        if is_meant(queue):
            broker.declared = None
            strike(queue)
            faults.struck(fault.kind)

    found = [queue for queue in broker.queues.values() if is_meant(queue)]
    if found:
        strike(found[fault.target % len(found)])
    else:
        broker.declared = declared
    return bool(found)


@fault(often=0)
def change_leader(faults: Faults, fault: Fault) -> bool:
    """The leader of a lane is cut off while it has messages of a quorum queue in which messages are parked.
    Up to 500 ms after these came back another member of the queue leads. It has put them back in another
    order: so a tag may stand for another message there."""
    broker = faults.world.broker

    def strike() -> None:
        found = [queue for queue in broker.queues.values() if queue.elsewhere]
        if found and broker.change_leader(found[fault.target % len(found)]):
            faults.struck(fault.kind)

    _cut_with_parked(faults, fault, lambda: faults.after(fault.amount % 500, strike))
    return False


@fault(often=0)
def change_leader_midway(faults: Faults, fault: Fault) -> bool:
    """The same, but the other member leads from between two fetches of what came back: the rest comes in the
    order of that member, so some of it may come twice, and some not at all."""
    broker, others = faults.world.broker, fault.amount % 4

    def fetched(queue: Queue) -> None:
        nonlocal others
        if not (queue.elsewhere and queue.returned and queue.unacked_count):
            return
        others -= 1
        if others < 0:
            broker.fetched = None
            if broker.change_leader(queue):
                faults.struck(fault.kind)

    def arm() -> None:
        broker.fetched = fetched

    _cut_with_parked(faults, fault, arm)
    return False


def _cut_with_parked(faults: Faults, fault: Fault, then: Callable[[], object]) -> None:
    """Cut the leader of the lane off as soon as it has several messages of a quorum queue in which they are
    parked; call `then` when they came back in different orders."""
    names = faults.world.names

    def is_in_hand(queue: Queue) -> bool:
        return queue.quorum and is_parking_queue(names, queue.name) and queue.unacked_count > 1

    def cut() -> None:
        faults.cut(faults.leader_or(fault), fault, 0)
        _when(faults, lambda queue: queue.elsewhere, then)

    _when(faults, is_in_hand, cut)


def _when(faults: Faults, look: Callable[[Queue], object], act: Callable[[], object]) -> None:
    """As soon as a queue looks like that."""
    if any(look(queue) for queue in faults.world.broker.queues.values()):
        act()
    else:
        faults.after(_LOOK_MS, _when, faults, look, act)


@fault(often=0)
def take_back_parked(faults: Faults, fault: Fault) -> bool:
    """The leader of a quorum queue in which messages are parked loses sight of the node with their reader,
    who has not read all of it, and sees the node again: it takes back what is unacked there, on a channel
    that stays open."""
    broker, names = faults.world.broker, faults.world.names

    def is_read(queue: Queue) -> bool:
        return bool(is_parking_queue(names, queue.name) and queue.unacked_count and queue.ready)

    def strike() -> None:
        found = [queue for queue in broker.queues.values() if queue.quorum and is_read(queue)]
        taken = [connection.take_back(queue) for connection in broker.connections for queue in found]
        if sum(taken):
            faults.struck(fault.kind)

    _when(faults, lambda queue: queue.quorum and is_read(queue), strike)
    return False


@fault(often=0)
def refuse_target(faults: Faults, fault: Fault) -> bool:
    """The queues that operators send groups to refuse the next publishes, if there are any."""
    for queue in (TARGET, REROUTED):
        faults.world.broker.nack_next[queue] = 1 + fault.amount % 3
    return True


@fault(often=0)
def delete_target(faults: Faults, fault: Fault) -> bool:
    """An operator deletes the queues that operators send groups to, and declares them again up to 1 s
    later."""
    broker = faults.world.broker
    found = [broker.queues[name] for name in (TARGET, REROUTED) if name in broker.queues]
    for queue in found:
        broker.delete(queue)
    faults.after(fault.amount % 1_000, faults.world.declare_targets)
    return bool(found)


@fault(often=3)
def alarm(faults: Faults, fault: Fault) -> bool:
    """RabbitMQ is short of memory for up to 8 s: from connections that publish it reads nothing until that
    ends, not even that they were closed."""
    broker = faults.world.broker
    if broker.up and not broker.alarm:
        broker.alarm = True
        faults.after(200 + fault.amount % 8_000, broker.end_alarm)
    return False


@fault(often=2)
def slow_link(faults: Faults, fault: Fault) -> bool:
    """One connection, of any process, is slow until everything is repaired."""
    connections = faults.world.broker.connections
    if connections:
        connection = connections[fault.target % len(connections)]
        connection.up.slow_ms = connection.down.slow_ms = fault.amount % 400
    return bool(connections)


@fault(often=3)
def repeat_control(faults: Faults, fault: Fault) -> bool:
    """Control messages that were read come once more, as after a killed broker forgot their acks."""
    read = faults.world.history.control_read
    first = max(0, len(read) - 1 - fault.target)
    return _put_again(faults, list(read)[first : first + 1 + fault.amount % 20])


def repeat_words(faults: Faults, consumer: ConsumerMachine) -> None:
    """All that consumers of this id said comes once more."""
    word = f'"consumer":"{consumer.plan.consumer_id}"'.encode()
    _put_again(faults, [message for message in faults.world.history.control_read if word in message.body])


def _put_again(faults: Faults, messages: list[Stored]) -> bool:
    broker = faults.world.broker
    queue = broker.queues.get(faults.world.names.control)
    if queue is None:
        return False
    for message in messages:
        again = broker.put(queue, message.exchange, message.routing_key, message.properties, message.body)
        again.synced = True
    return bool(messages)
