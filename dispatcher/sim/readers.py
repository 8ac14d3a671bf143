"""Applications that know nothing of groups: each reads the queue of a hand-over consumer, does one message
after the other, and acks what it has done, or rejects what it can't do."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from dispatcher.amqp.events import ChannelClosed, ConsumerCancelled, Delivery
from dispatcher.sim.connections import BrokerConnection
from dispatcher.sim.environment import Environment
from dispatcher.sim.loop import ProcessLoop
from dispatcher.sim.scenario import ConsumerPlan

_CHANNEL: Final = 1
#: Before it tries again: there is no such queue yet, or it is being read back.
_RETRY_MS: Final = 70


class ReaderMachine:
    """One such process, which can be killed, frozen and started again."""

    def __init__(self, world: Environment, plan: ConsumerPlan) -> None:
        self.world = world
        self.plan = plan
        self.process: ProcessLoop | None = None
        self.slowness = 1  # how many times longer its work takes than planned
        self._starts = 0
        self._connection: BrokerConnection | None = None
        self._waiting: deque[Delivery] = deque()
        self._works = False

    @property
    def name(self) -> str:
        return self.plan.name

    @property
    def is_busy(self) -> bool:
        """It processes a message."""
        return self.process is not None and self._works

    # -- life --

    def start(self) -> None:
        if self.process is not None:
            return
        self._starts += 1
        self._waiting.clear()
        self._works = False
        process = self.process = ProcessLoop(self.world.scheduler, f"{self.plan.name}.{self._starts}")
        self.world.machines[process] = self
        self.world.history.note(process.name, "starts")
        process.call_soon(self._connect, process)

    def leave(self) -> None:
        """The process ends; what it has in hand goes back to its queue."""
        self.kill()

    def kill(self) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        self.world.history.note(process.name, "killed")
        process.dead = True
        if self._connection is not None:
            self._connection.reset("killed", told=False)
        self._connection = None
        del self.world.machines[process]

    # -- its connection --

    def _connect(self, process: ProcessLoop) -> None:
        broker, now_ms = self.world.broker, self.world.scheduler.now_ms
        if self._connection is not None or process is not self.process:
            return
        if not broker.up or now_ms < process.cut_off_until_ms:
            self._retry(process)
            return
        connection = BrokerConnection(
            broker, process, process.name, self._receive, lambda _: self._lost(process)
        )
        self._connection = connection
        connection.send(BrokerConnection.open_channel, _CHANNEL, None)
        connection.send(BrokerConnection.qos, _CHANNEL, None, self.plan.prefetch)
        queue = self.world.names.consumer(self.plan.consumer_id)
        connection.send(BrokerConnection.consume, _CHANNEL, None, queue, "reader", False, False)

    def _retry(self, process: ProcessLoop) -> None:
        process.call_later(_RETRY_MS / 1000, self._connect, process)

    def _lost(self, process: ProcessLoop) -> None:
        self._connection = None
        self._waiting.clear()
        self._retry(process)

    def _receive(self, batch: list[Any]) -> None:
        for item in batch:
            if isinstance(item, Delivery):
                self._waiting.append(item)
            elif isinstance(item, ChannelClosed | ConsumerCancelled) and self._connection is not None:
                assert self.process is not None
                self._connection.close()
                self._lost(self.process)
                return
        self._go_on()

    # -- its work --

    def _go_on(self) -> None:
        process = self.process
        if self._works or not self._waiting or process is None:
            return
        delivery = self._waiting.popleft()
        self._works = True
        self.world.history.application_begins(process.name, delivery.body)
        random = self.world.scheduler.random
        work_ms = int(random.random() * 2 * self.plan.work_ms) * self.slowness
        process.call_later(work_ms / 1000, self._finish, process, self._connection, delivery)

    def _finish(self, process: ProcessLoop, connection: BrokerConnection | None, delivery: Delivery) -> None:
        self._works = False
        if connection is not None and connection is self._connection:
            fails = delivery.body.endswith(b"!")
            act = BrokerConnection.reject if fails else BrokerConnection.ack
            if not fails:
                self.world.history.application_has_done(process.name, delivery.body)
            connection.send(act, _CHANNEL, delivery.tag, False)
        self._go_on()
