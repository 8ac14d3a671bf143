"""Consumer processes: the SDK's own engine and state machines, and an application that takes its time."""

from __future__ import annotations

from itertools import count
from typing import Any

from dispatcher.amqp.events import ChannelClosed, Confirmed, ConsumerCancelled, Delivery, Returned
from dispatcher.client import links, tap
from dispatcher.client.begun import TOLD_WITHIN_S
from dispatcher.client.copies import Copy
from dispatcher.client.engine import ConsumerEngine
from dispatcher.client.membership import BUNDLE, OFFLINE_LIMIT_MS, LaneMembership
from dispatcher.client.schedule import GroupSchedule
from dispatcher.sim.broker import Broker
from dispatcher.sim.channels import Answer
from dispatcher.sim.connections import BrokerConnection
from dispatcher.sim.environment import Environment
from dispatcher.sim.loop import ProcessLoop
from dispatcher.sim.scenario import ConsumerPlan
from dispatcher.wire.bundle import BundleLimits

_CONNECT_MS = 3
#: A consumer that died of its message is started again after this long.
RESTART_MS = 200
#: A handler that hangs does so for this long.
HANG_MS = 3_000
#: A consumer of several shards changes its prefetch in this one whenever it has got so many more messages.
ANOTHER_PART_EVERY = 5
_CHANNEL = 1


class ConsumerLoop:
    """The engine's view of its process' event loop."""

    def __init__(self, process: ProcessLoop) -> None:
        self._process = process
        self.call_soon = process.call_soon

    def now_ms(self) -> int:
        return self._process.scheduler.now_ms

    def call_later(self, delay_ms: int, callback: Any) -> Any:
        return self._process.call_later(delay_ms / 1000, callback)


class ConsumerLink:
    """The engine's link on the modelled broker: one connection after another, each with one channel."""

    def __init__(self, broker: Broker, process: ProcessLoop, receiver: links.Receiver) -> None:
        self._broker = broker
        self._process = process
        self._receiver = receiver
        self.connection: BrokerConnection | None = None
        self._queue = ""
        self._tag = 0
        self._unconfirmed: dict[int, links.Publication] = {}
        self._returned: set[int] = set()

    def open(self, exchange: str | None) -> None:
        if self.connection is None:
            self._process.call_later(_CONNECT_MS / 1000, self._connect, exchange)
        else:
            self._ask_queue(exchange)

    def _connect(self, exchange: str | None) -> None:
        if self.connection is not None:
            return
        if not self._broker.up or self._process.scheduler.now_ms < self._process.cut_off_until_ms:
            self._receiver.lost("connection refused", 0)
            return
        self._tag, self._unconfirmed, self._queue = 0, {}, ""
        connection = BrokerConnection(
            self._broker, self._process, self._process.name, self._receive, self._lost
        )
        self.connection = connection
        connection.send(BrokerConnection.open_channel, _CHANNEL, None)
        connection.send(BrokerConnection.select_confirms, _CHANNEL, None)
        self._ask_queue(exchange)

    def _ask_queue(self, exchange: str | None) -> None:
        assert self.connection is not None
        self.connection.send(_make_queue, _CHANNEL, exchange)

    def publish(self, publication: links.Publication) -> None:
        if self.connection is None or self.connection.gone:
            return
        self._tag += 1
        self._unconfirmed[self._tag] = publication
        self.connection.send(
            BrokerConnection.publish, _CHANNEL, publication.exchange, publication.routing_key, True,
            publication.properties, publication.body,
        )  # fmt: skip

    def reset(self, reason: str, code: int) -> None:
        if self.connection is not None and not self.connection.gone:
            self.connection.close()
            self._process.call_soon(self._lost, reason, code)

    def close(self) -> None:
        if self.connection is not None and not self.connection.gone:
            self.connection.close()
        self.connection = None
        self._process.call_soon(self._receiver.closed)

    def _lost(self, reason: str, code: int = 0) -> None:
        if self.connection is not None:
            self.connection = None
            self._receiver.lost(reason, code)

    def _receive(self, batch: list[Any]) -> None:
        deliveries = []
        for item in batch:
            if self.connection is None or self.connection.gone:
                return
            kind = type(item)
            if kind is Delivery:
                if item.consumer_tag.decode() == self._queue:
                    deliveries.append(tap.TappedDelivery(item.consumer_tag, item.properties, item.body))
                continue
            if deliveries:
                self._receiver.delivered(deliveries)
                deliveries = []
            self._receive_rare(item)
        if deliveries and self.connection is not None:
            self._receiver.delivered(deliveries)

    def _receive_rare(self, item: Any) -> None:
        match item:
            case Answer(result=str() as queue):
                former, self._queue = self._queue, queue
                self._receiver.opened(queue)
                if former and self.connection is not None:
                    self.connection.send(BrokerConnection.delete, _CHANNEL, None, former)
            case Confirmed():
                self._confirmed(item)
            case Returned():
                tag = next(t for t, p in self._unconfirmed.items() if p.properties == item.properties)
                self._returned.add(tag)
                self._receiver.returned(self._unconfirmed[tag].token, item.text)
            case ConsumerCancelled() if item.consumer_tag.decode() == self._queue:
                self.reset("the consumer was cancelled", links.CANCELLED)
            case ChannelClosed():
                assert self.connection is not None
                self.connection.close()
                self._lost(f"{item.code} {item.text}", item.code)

    def _confirmed(self, item: Confirmed) -> None:
        tags = [t for t in self._unconfirmed if t <= item.tag] if item.multiple else [item.tag]
        for tag in tags:
            publication = self._unconfirmed.pop(tag)
            if tag in self._returned:
                self._returned.discard(tag)
            elif item.nacked:
                self._receiver.returned(publication.token, links.NACKED)
            else:
                self._receiver.confirmed(publication.token)


def _make_queue(connection: BrokerConnection, number: int, exchange: str | None) -> None:
    """Declare, bind and consume an exclusive queue, whose name is the consumer tag."""
    queue = connection.broker.declare("", owner=connection)
    if exchange is not None:
        connection.bind(number, None, queue.name, exchange, queue.name)
    connection.consume(number, None, queue.name, queue.name, True, False)  # its answer is the tag


class ConsumerMachine:
    """One consumer process that can be killed, frozen, asked to leave and started again."""

    def __init__(self, world: Environment, plan: ConsumerPlan) -> None:
        self.world = world
        self.plan = plan
        self.process: ProcessLoop | None = None
        self.link: ConsumerLink | None = None
        self.application: Application | None = None
        self.starts = 0
        self._is_wanted = False
        self.slowness = 1  # how many times longer its handlers take than planned

    @property
    def name(self) -> str:
        return self.plan.name

    @property
    def is_busy(self) -> bool:
        """Its handlers have something in hand, or wait for their turn."""
        return self.process is not None and self.application is not None and self.application.is_busy

    def start(self) -> None:
        self._is_wanted = self.process is not None  # one that leaves is followed when it has gone
        if self._is_wanted:
            return
        self.starts += 1
        world = self.world
        process = ProcessLoop(world.scheduler, f"{self.plan.name}.{self.starts}")
        self.process = process
        world.machines[process] = self
        world.history.note(process.name, "starts")
        process.call_soon(self._begin, process)

    def _begin(self, process: ProcessLoop) -> None:
        incarnations = count(1)
        membership: LaneMembership[Copy] = LaneMembership(
            self.plan.consumer_id, self.plan.prefetch,
            make_message=lambda numbers, raw, body: Copy(numbers, raw, body, self._settle),
            new_incarnation=lambda: f"{process.name}-{next(incarnations)}",
            offline_limit_ms=OFFLINE_LIMIT_MS, now_ms=self.world.scheduler.now_ms,
            bundle=self._bundle_limits(), chance=lambda: 0.0,  # the chance of a run is its seed's
        )  # fmt: skip
        membership.limit(self.plan.concurrency)
        self.membership = membership
        self.application = Application(self)
        self.engine: ConsumerEngine[Copy] = ConsumerEngine(
            membership,
            self.world.names,
            ConsumerLoop(process),
            self.application,
            self._make_link,
            user=self.plan.name if self.world.scenario.options["strict_identity"] else None,
        )
        self.engine.start()

    def _bundle_limits(self) -> BundleLimits | None:
        """What this life takes as one AMQP message. It draws nothing from the seed's chance."""
        kinds = (None, BundleLimits(messages=3, bytes=500), BUNDLE)
        return kinds[(self.world.scenario.seed + sum(self.name.encode()) + self.starts) % len(kinds)]

    def take_another_part(self) -> None:
        """Some lives are those of a consumer in several shards, which become more and fewer now and then: so
        does its part of its prefetch in this one. It draws nothing from the seed's chance."""
        if (self.world.scenario.seed + sum(self.name.encode()) + self.starts) % 4 == 0:
            whole = self.plan.prefetch
            has_whole = self.membership.member.prefetch == whole
            self.engine.share(max(1, whole // 2) if has_whole else whole)

    def _make_link(self, receiver: links.Receiver) -> ConsumerLink:
        assert self.process is not None
        self.link = ConsumerLink(self.world.broker, self.process, receiver)
        return self.link

    def _settle(self, message: Any, reason: str | None, attempts: int) -> bool:
        return self.engine.settle(message, reason, attempts)

    def leave(self) -> None:
        if self.process is not None:
            self.world.history.note(self.process.name, "is asked to leave")
            self.process.call_soon(lambda: self.engine.leave())

    def ended(self) -> None:
        """The engine has ended: so does the process."""
        if self.process is not None:
            self.world.history.note(self.process.name, "ended")
            self.kill()
            if self._is_wanted:
                self.start()

    def kill(self) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        self.world.history.note(process.name, "killed")
        process.dead = True
        if self.link is not None and self.link.connection is not None:
            self.link.connection.reset("killed", told=False)
        del self.world.machines[process]


class Application:
    """Handlers: a few at a time, one group's messages one after the other, each takes a while."""

    def __init__(self, machine: ConsumerMachine) -> None:
        self._machine = machine
        self._history = machine.world.history
        self._schedule: GroupSchedule[Copy] = GroupSchedule()
        self._running: dict[Copy, Any] = {}
        self._incarnations: dict[Copy, str] = {}
        self._received = 0

    @property
    def is_busy(self) -> bool:
        return bool(self._incarnations)

    def received(self, messages: list[Copy]) -> None:
        member = self._machine.membership.member
        for message in messages:
            self._incarnations[message] = member.incarnation
            self._history.handed(member.incarnation, message)
            self._schedule.add(message)
        before, self._received = self._received, self._received + len(messages)
        if before // ANOTHER_PART_EVERY != self._received // ANOTHER_PART_EVERY:
            self._machine.take_another_part()
        self._fill()

    def _fill(self) -> None:
        plan, scheduler = self._machine.plan, self._machine.world.scheduler
        while len(self._running) < plan.concurrency:
            message = self._schedule.start_next(scheduler.now_ms)
            if message is None:
                return
            if message.is_at_risk:
                self._begin_when_told(message)
            else:
                self._begin(message)

    def _begin_when_told(self, message: Copy) -> None:
        process = self._machine.process
        assert process is not None
        timer = process.call_later(TOLD_WITHIN_S, self._begin, message)
        self._running[message] = timer

        def begin() -> None:
            if self._running.get(message) is timer and timer is not None:
                timer.cancel()
                self._begin(message)

        message.when_told(begin)

    def _begin(self, message: Copy) -> None:
        plan, process = self._machine.plan, self._machine.process
        random = self._machine.world.scheduler.random
        assert process is not None
        life = self._history.begun(self._incarnations[message], message)
        work_ms, times = int(random.random() * 2 * plan.work_ms), self._machine.slowness
        if random.random() < 0.01:  # not of a slow one: both together would take longer than a run may
            times = max(times, 20)
        work_ms *= times
        if life.hangs:
            work_ms, life.hangs = HANG_MS, False
        then = self._die if life.kills else self._finish
        self._running[message] = process.call_later(work_ms / 1000, then, message)

    def _die(self, message: Copy) -> None:
        life = self._history._life(message)
        life.deaths += 1
        self._history.note(self._incarnations[message], "dies of", life.uid)
        self._machine.kill()
        self._machine.world.scheduler.after(RESTART_MS, self._machine.start)

    def _finish(self, message: Copy) -> None:
        del self._running[message]
        incarnation = self._incarnations.pop(message)
        fails = message.body.endswith(b"!")
        if message.settle("it fails" if fails else None):
            self._history.done(incarnation, message, failed=fails)
        self._schedule.finish(message)
        self._fill()

    def lost(self, messages: list[Copy]) -> None:
        for message in messages:
            self._history.abandoned(self._incarnations.pop(message, ""), message)
            timer = self._running.pop(message, None)
            if timer is not None:
                timer.cancel()
                self._schedule.finish(message)
        self._schedule.drop_lost(messages)
        self._fill()

    def changed(self) -> None:
        """Nothing to do: no code here waits for changes."""

    def ended(self, error: Exception | None) -> None:
        if error is not None:
            self._history.note(self._machine.name, "ended with an error", error)
        self._machine.ended()
