"""Carries out a scenario's faults, and undoes all of them when they shall stop."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from dispatcher.client import properties as amqp_properties
from dispatcher.client.properties import Properties
from dispatcher.protocol import KEY_COMMAND
from dispatcher.sim.connections import BrokerConnection
from dispatcher.sim.consumers import ConsumerMachine
from dispatcher.sim.dispatchers import DispatcherMachine
from dispatcher.sim.queues import Stored
from dispatcher.sim.scenario import Fault

if TYPE_CHECKING:
    from dispatcher.sim.world import World

#: The broker ends the connection of a frozen process after 2 to 3 of its heartbeats of 10 s.
_SILENCE_MS_MIN: Final = 20_000
_TRIGGERED: Final = frozenset(
    {
        "kill_at_publish", "cut_at_publish", "kill_before_commit", "kill_after_commit",
        "cut_redis_before_commit", "cut_redis_after_commit", "kill_at_settle", "cut_at_settle",
    }
)  # fmt: skip


class Faults:
    """`over_at_ms`: when the last one has struck and has been undone."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._armed: list[list[Any]] = []  # [kind, publishes or commits still to come]
        self._commands = 0
        faults = world.scenario.faults
        last_ms = max((fault.at_ms for fault in faults), default=0)
        self.over_at_ms = world.begun_at_ms + last_ms + (3_000 if faults else 100)

    def schedule(self) -> None:
        world = self._world
        for fault in world.scenario.faults:
            world.scheduler.after(fault.at_ms, self._strike, fault)
        world.broker.before_publish = self._before_publish
        world.redis.around_commit = self._around_commit

    def _strike(self, fault: Fault) -> None:
        self._world.history.note("FAULT", fault.kind, fault.target, fault.amount)
        if fault.kind in _TRIGGERED:
            self._armed.append([fault.kind, fault.target % 30, fault])
        else:
            getattr(self, f"_{fault.kind}")(fault)

    def stop(self) -> None:
        """Everything is repaired, everybody is there again."""
        world = self._world
        self._armed.clear()
        world.history.note("FAULT", "over")
        world.broker.restart()
        world.broker.nack_next.clear()
        if not world.redis.up:
            world.redis.restart(0)
        world.redis.slow_ms = 0
        for connection in world.broker.connections:
            connection.up.slow_ms = connection.down.slow_ms = 0
        machines: list[DispatcherMachine | ConsumerMachine] = [*world.dispatchers, *world.consumers]
        for machine in machines:
            if machine.process is not None:
                machine.process.thaw()
            machine.start()

    # -- struck by a count --

    def _before_publish(self, connection: BrokerConnection, exchange: str) -> None:
        if not self._armed:
            return
        if exchange == self._world.names.exchange:
            self._count(connection, ("kill_at_publish", "cut_at_publish"))
        elif exchange == self._world.names.control_exchange:
            self._refuse_marker(connection)
            self._count(connection, ("kill_at_settle", "cut_at_settle"))

    def _refuse_marker(self, connection: BrokerConnection) -> None:
        for armed in self._armed:
            if armed[0] == "nack_marker" and connection.name.startswith("d"):
                self._armed.remove(armed)
                self._world.history.note("FAULT", "strikes", armed[0])
                self._world.broker.nack_next[self._world.names.control] = 1
                return

    def _count(self, connection: BrokerConnection, kinds: tuple[str, str]) -> None:
        for armed in self._armed:
            if armed[0] in kinds:
                armed[1] -= 1
                if armed[1] < 0:
                    self._armed.remove(armed)
                    self._world.history.note("FAULT", "strikes", armed[0], connection.name)
                    machine = self._world.machines.get(connection.process)
                    connection.ended_by_broker("cut at a publish")
                    if armed[0].startswith("kill") and machine is not None:
                        self._kill(machine, 200)
                    return

    def _around_commit(self, connection: Any, after: bool) -> None:
        word = "after" if after else "before"
        kinds = (f"kill_{word}_commit", f"cut_redis_{word}_commit")
        for armed in self._armed:
            if armed[0] in kinds:
                armed[1] -= 1
                if armed[1] < 0:
                    self._armed.remove(armed)
                    self._world.history.note("FAULT", "strikes", armed[0])
                    if armed[0].startswith("kill"):
                        machine = self._world.machines.get(connection._process)
                        if machine is not None:
                            self._kill(machine, 100)
                        if armed[2].amount % 2:  # who could have told of the settle goes with it
                            for consumer in self._world.consumers:
                                self._kill(consumer, 300)
                    else:
                        connection.cut("cut at a commit")
                    return

    # -- dispatchers --

    def _kill(self, machine: DispatcherMachine | ConsumerMachine, down_ms: int) -> None:
        machine.kill()
        self._world.scheduler.after(down_ms, machine.start)

    def _leader_or(self, fault: Fault) -> DispatcherMachine:
        world = self._world
        return world.leader() or world.dispatchers[fault.target % len(world.dispatchers)]

    def _kill_leader(self, fault: Fault) -> None:
        self._kill(self._leader_or(fault), fault.amount % 1_500)

    def _kill_dispatcher(self, fault: Fault) -> None:
        self._kill(self._world.dispatchers[fault.target % len(self._world.dispatchers)], fault.amount % 1_500)

    def _cut_leader(self, fault: Fault) -> None:
        self._cut(self._leader_or(fault), fault)

    def _cut(self, machine: DispatcherMachine | ConsumerMachine, fault: Fault) -> None:
        for connection in list(self._world.broker.connections):
            if connection.process is machine.process:
                if fault.amount % 2:
                    connection.ended_by_broker("cut")
                else:
                    connection.reset("cut")

    def _freeze_leader(self, fault: Fault) -> None:
        self._freeze(self._leader_or(fault), fault)

    def _freeze(self, machine: DispatcherMachine | ConsumerMachine, fault: Fault) -> None:
        """SIGSTOP; long ones are cut off by the broker, and wake up when others have their place."""
        process = machine.process
        if process is None:
            return
        process.freeze()
        if fault.amount % 3 == 0:  # a short stop
            self._world.scheduler.after(fault.amount % 700, process.thaw)
            return
        noticed_ms = fault.amount % 500
        self._world.scheduler.after(noticed_ms, self._end_connections, process)
        self._world.scheduler.after(noticed_ms + fault.amount % 2_000, process.thaw)

    def _end_connections(self, process: Any) -> None:
        for connection in list(self._world.broker.connections):
            if connection.process is process:
                connection.ended_by_broker("missed heartbeats from client")

    # -- consumers --

    def _consumer(self, fault: Fault) -> ConsumerMachine:
        consumers = self._world.consumers
        return consumers[fault.target % len(consumers)]

    def _kill_consumer(self, fault: Fault) -> None:
        down_ms = fault.amount % 2_000
        self._kill(self._consumer(fault), down_ms)
        if fault.amount % 3 == 0:  # what the former one said is read again by a dispatcher that has a new one
            after_ms = down_ms + fault.target // 2
            self._world.scheduler.after(after_ms, self._repeat_words_of, self._consumer(fault))

    def _cut_consumer(self, fault: Fault) -> None:
        self._cut(self._consumer(fault), fault)

    def _freeze_consumer(self, fault: Fault) -> None:
        self._freeze(self._consumer(fault), fault)

    def _leave_consumer(self, fault: Fault) -> None:
        consumer = self._consumer(fault)
        consumer.leave()
        self._world.scheduler.after(fault.amount % 3_000, consumer.start)

    # -- the broker --

    def _kill_broker(self, fault: Fault) -> None:
        broker = self._world.broker
        if broker.up:
            broker.kill()
            self._world.scheduler.after(200 + fault.amount % 2_000, broker.restart)

    def _nack(self, fault: Fault) -> None:
        broker = self._world.broker
        names = [queue.name for queue in broker.queues.values() if queue.owner is not None]
        names += [self._world.names.dead, self._world.names.control]
        broker.nack_next[names[fault.target % len(names)]] = 1 + fault.amount % 3

    def _slow_link(self, fault: Fault) -> None:
        connections = self._world.broker.connections
        if connections:
            connection = connections[fault.target % len(connections)]
            connection.up.slow_ms = connection.down.slow_ms = fault.amount % 400

    def _late_event(self, fault: Fault) -> None:
        """What the broker sends to the leader comes late."""
        leader = self._leader_or(fault)
        for connection in self._world.broker.connections:
            if connection.process is leader.process:
                connection.down.slow_ms = fault.amount % 1_000
                self._world.scheduler.after(500, setattr, connection.down, "slow_ms", 0)

    def _repeat_control(self, fault: Fault) -> None:
        """Control messages that were read come once more, as after a killed broker forgot their acks."""
        read = self._world.history.control_read
        first = max(0, len(read) - 1 - fault.target)
        self._put_again(list(read)[first : first + 1 + fault.amount % 20])

    def _repeat_words_of(self, consumer: ConsumerMachine) -> None:
        word = f'"consumer":"{consumer.plan.consumer_id}"'.encode()
        self._put_again([message for message in self._world.history.control_read if word in message.body])

    def _put_again(self, messages: list[Stored]) -> None:
        broker = self._world.broker
        queue = broker.queues.get(self._world.names.control)
        if queue is not None:
            for message in messages:
                again = broker.put(
                    queue, message.exchange, message.routing_key, message.properties, message.body
                )
                again.synced = True

    def _nack_marker(self, fault: Fault) -> None:
        """A consumer comes back while the marker for its former connection waits to be published again."""
        self._armed.append(["nack_marker", 0, fault])
        self._cut(self._consumer(fault), fault)

    # -- Redis --

    def _stop_redis(self, fault: Fault, lost: int | None) -> None:
        redis, history = self._world.redis, self._world.history
        if not redis.up:
            return
        redis.stop()
        if lost != 0:
            history.doubt = True
        self._world.scheduler.after(100 + fault.amount % 1_500, self._start_redis, lost)

    def _start_redis(self, lost: int | None) -> None:
        if not self._world.redis.up:
            self._world.redis.restart(lost)

    def _restart_redis(self, fault: Fault) -> None:
        self._stop_redis(fault, 0)

    def _redis_loses_last(self, fault: Fault) -> None:
        self._stop_redis(fault, 1 + fault.target)

    def _redis_loses_all(self, fault: Fault) -> None:
        self._stop_redis(fault, None)

    def _slow_redis(self, fault: Fault) -> None:
        redis = self._world.redis
        redis.slow_ms = fault.amount % 3_000
        self._world.scheduler.after(1_000, setattr, redis, "slow_ms", 0)

    def _wipe(self, fault: Fault) -> None:
        """Redis loses everything while no dispatcher lives."""
        self._world.history.doubt = True
        for machine in self._world.dispatchers:
            self._kill(machine, 1_000 + fault.amount % 1_000)
        if self._world.redis.up:
            self._world.redis.stop()
            self._world.scheduler.after(500, self._start_redis, None)

    # -- operators --

    def _rebalance(self, fault: Fault) -> None:
        self._command({})

    def _reset_owners(self, fault: Fault) -> None:
        self._command({"reset": True})

    def _close_group(self, fault: Fault) -> None:
        self._command({"group": f"g{fault.amount % 3}"}, "groups.close")

    def _command(self, arguments: dict[str, Any], name: str = "rebalance") -> None:
        world = self._world
        queue = world.broker.queues.get(world.names.command)
        if queue is None:
            return
        self._commands += 1
        body = {
            "type": "command", "uuid": f"command-{self._commands}", "name": name,
            "sent_at_ms": world.scheduler.now_ms, "arguments": arguments,
        }  # fmt: skip
        properties = amqp_properties.write(Properties(delivery_mode=2), {})
        message = world.broker.put(
            queue, world.names.command_exchange.encode(), KEY_COMMAND.encode(), properties,
            json.dumps(body).encode(),
        )  # fmt: skip
        message.synced = True
