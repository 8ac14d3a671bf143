"""Dispatcher processes: the service's own runner, session, store and core, on modelled servers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from dispatcher.amqp.link import Link
from dispatcher.core.effects import Effects, Snapshot
from dispatcher.core.events import Event, MessagesArrived
from dispatcher.core.lane import Lane
from dispatcher.core.model import Original
from dispatcher.core.operations.operation import PURGED_BY, TRANSFERRED_BY
from dispatcher.core.operators.reset_owners import OwnerReset
from dispatcher.core.operators.stopped_groups import REASON_DROPPED
from dispatcher.core.orders import AckInbound, DeadLetter
from dispatcher.core.parking.events import ParkingQueueRead
from dispatcher.core.queue_ids import QueueId
from dispatcher.core.records import DeadLetterPending, Discharged, OpenEntry
from dispatcher.core.records import Dispatched as DispatchedRecord
from dispatcher.core.recovery.journal_replay import Arrival
from dispatcher.errors import StoreUnavailable
from dispatcher.redis_store.store import LaneStore
from dispatcher.service.clock import Clock
from dispatcher.service.dead_letter_count import DeadLetterCount
from dispatcher.service.lane_runner import LaneRunner
from dispatcher.service.replicas import Replicas
from dispatcher.service.session import Session
from dispatcher.settings import LaneSettings, Settings
from dispatcher.sim.environment import Environment
from dispatcher.sim.facts import DispatchFact, StepFacts
from dispatcher.sim.link import SimLink
from dispatcher.sim.loop import ProcessLoop
from dispatcher.sim.queues import Node
from dispatcher.sim.redis import SimRedisConnection

_CONNECT_S = 0.001
_ANSWER_POLL_S = 0.1
#: How often a standby looks whether the lock is free. Were it more often, a quiet run would do little else.
LOCK_RETRY_S = 0.5


class Plant(Protocol):
    """A bug that a test plants: changes the pieces of a new leadership."""

    def __call__(self, lane: Lane, session: Session, store: SimStore) -> None: ...


class SimStore(LaneStore):
    """The real store on a modelled Redis; remembers what each commit says until it is applied."""

    world: Environment
    process: ProcessLoop
    backoff_jitter = 0  # the chance of a run is its seed's

    async def _connect(self) -> Any:
        await asyncio.sleep(_CONNECT_S)
        redis = self.world.redis
        if not redis.up:
            raise StoreUnavailable("Redis can't be reached")
        machine = self.world.machines[self.process]
        connection = SimRedisConnection(redis, self.process, self._lost, machine.way_ms)
        machine.redis_connections.append(connection)
        return connection

    async def lead(self, now_ms: int, inbounds: Any, parking: Any = ()) -> Snapshot:
        snapshot = await super().lead(now_ms, inbounds, parking)
        self.snapshot = snapshot
        self.leader = f"{self.process.name} {snapshot.lane_epoch}"
        self._uuids = {number: row.uuid for number, row in snapshot.incarnations.items()}
        self._leaving: dict[tuple[QueueId, Arrival], str] = {}
        self._ids = {number: row.consumer for number, row in snapshot.incarnations.items()}
        self.world.history.led(self.process.name, snapshot)
        return snapshot

    def commit(self, effects: Effects) -> Any:
        future = super().commit(effects)
        self._remember(effects)
        return future

    def restore(self, effects: Effects) -> Any:
        future = super().restore(effects)
        self._remember(effects)
        return future

    def _remember(self, effects: Effects) -> None:
        if self._chain is None:
            return
        facts = StepFacts()
        facts.flags, facts.results = dict(effects.operator_rows), dict(effects.commands)
        for number, row in effects.incarnations.items():
            if row is not None:
                self._uuids[number], self._ids[number] = row.uuid, row.consumer
                if row.state == "taken":
                    facts.taken.append((row.uuid, row.n))
        self._remember_messages(effects, facts)
        self.world.history.will_commit(self._chain.leader.encode(), self._chain.last, facts)

    def _remember_messages(self, effects: Effects, facts: StepFacts) -> None:
        dropped = {
            (r.inbound, r.arrival)
            for r in effects.records
            if type(r) is DeadLetterPending and r.reason == REASON_DROPPED
        }
        for record in effects.records:
            if type(record) is DispatchedRecord:
                uid, group = _uid(record.message), record.message.group
                holder, consumer = (
                    self._uuids.get(record.incarnation, ""),
                    self._ids.get(record.incarnation, ""),
                )
                key = group.id if group is not None else None
                fact = DispatchFact(uid, holder, consumer, record.attempt, key, record.seq)
                facts.dispatched.append(fact)
            if type(record) is DispatchedRecord or type(record) is OpenEntry:
                facts.journalled.append((self._uuids.get(record.incarnation, ""), record.seq))
        left = self._left(effects)
        for action in effects.actions:
            if type(action) is DeadLetter:
                facts.given_up.append(_uid(action.message))
            if type(action) is AckInbound:
                tags = [(self.leader, message.queue, message.tag) for message in action.messages]
                facts.acked += tags
                for message, tag in zip(action.messages, tags, strict=True):
                    uuid = left.get((message.queue, message.arrival))
                    if uuid is not None:
                        facts.left.append((self.world.history.uid_of[tag], uuid))
                    if (message.queue, message.arrival) in dropped:
                        facts.dropped.append(self.world.history.uid_of[tag])

    def _left(self, effects: Effects) -> dict[tuple[QueueId, Arrival], str]:
        """The messages that have left, each with the operation that took it, by these and earlier records."""
        left = {}
        for record in effects.records:
            if type(record) is DeadLetterPending and record.reason.startswith((TRANSFERRED_BY, PURGED_BY)):
                uuid = record.reason.removeprefix(TRANSFERRED_BY).removeprefix(PURGED_BY)
                self._leaving[record.inbound, record.arrival] = uuid
            elif type(record) is OpenEntry:
                self._leaving.pop((record.inbound, record.arrival), None)
            elif type(record) is Discharged and (record.inbound, record.arrival) in self._leaving:
                place = record.inbound, record.arrival
                left[place] = self._leaving.pop(place)
        return left


def _uid(message: Original) -> int:
    return int(message.content.body.rstrip(b"!"))


class SimDeadLetterCount(DeadLetterCount):
    """Never looked at: each look would draw from the seed's chance, and make another run of it."""

    async def look_after(self) -> None:
        pass


class SimLane(Lane):
    """The real core; the world sees what goes in and out, checkpoints come more often, resets take longer,
    names of parking queues rest for less time than all that a run takes."""

    world: Environment
    process_name: str

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.state.parking.rest_ms = 1_000
        reset = self.state.find(OwnerReset)
        assert reset is not None
        reset.at_once = 2

    def step(self, events: Iterable[Event], now_ms: int) -> Effects:
        events = list(events)
        history = self.world.history
        for event in events:
            if type(event) is ParkingQueueRead:
                uids = [_uid(message) for message in event.messages]
                history.note(self.process_name, "reads", event.queue, *uids)
            if type(event) is MessagesArrived or type(event) is ParkingQueueRead:
                history.arrived(f"{self.process_name} {self.state.lane_epoch}", event.messages)
        effects = super().step(events, now_ms)
        history.decided(self.process_name, events, effects)
        return effects

    def checkpoint_is_due(self) -> bool:
        return self.state.records_since_checkpoint >= self.world.scenario.records_per_checkpoint


class SimReplicas(Replicas):
    """Says nothing and knows nothing: what it does is for people, and for processes of several lanes."""

    async def stand_by(self) -> None:
        pass

    async def lead(self, lane_epoch: int) -> None:
        pass

    async def makes_way(self) -> bool:
        return False


class SimRunner(LaneRunner):
    """The real runner; connections are made to the models."""

    replicas_type = SimReplicas

    def __init__(
        self, world: Environment, process: ProcessLoop, settings: Settings, lane: LaneSettings
    ) -> None:
        super().__init__(settings, lane)
        self._world = world
        self._process = process
        self._clock = Clock(process.wall_s, process.time)
        runner = self

        class BoundLane(SimLane):
            def __init__(self, *arguments: Any) -> None:
                self.world, self.process_name = world, process.name
                super().__init__(*arguments)

        class BoundSession(Session):
            dead_letters_type = SimDeadLetterCount

            def begin(self, lane: Lane, *arguments: Any, **options: Any) -> None:
                runner.lane = lane
                for plant in world.plants:
                    plant(lane, self, self._store)
                world.prepare_lane(lane)
                super().begin(lane, *arguments, **options)

        self.lane_type, self.session_type = BoundLane, BoundSession
        self.election_s, self.lock_retry_s = world.election_s, LOCK_RETRY_S
        self.retry_jitter = 0  # the chance of a run is its seed's
        self._has_nodes = len(world.broker.nodes) > 1
        self.lane: Lane | None = None

    def _collect_garbage(self) -> None:
        """A run is short, and all that it made goes at its end."""

    @property
    def parking_queues_max(self) -> int:  # type: ignore[override]
        return self._world.scenario.parking_queues

    async def _open_link(self, on_events: Callable[[list[Any]], None], node: Node | None = None) -> Link:
        machine = self._world.machines[self._process]
        link = await SimLink.open(
            self._world.broker, self._process, name=self._process.name, on_events=on_events, node=node
        )
        machine.links.append(link)
        return link  # type: ignore[return-value]

    async def _open_probe(self, on_events: Callable[[list[Any]], None]) -> Link:
        own: Any = self._link
        return await self._open_link(on_events, own.connection.node)

    async def _until_nodes_answer(self) -> None:
        """None that runs is too slow to answer."""
        nodes, until_s = self._world.broker.nodes, self._process.time() + self._world.still_node_s
        while any(node.frozen for node in nodes):
            await asyncio.sleep(_ANSWER_POLL_S)
            if self._process.time() >= until_s:
                return

    async def _open_store(self) -> LaneStore:
        store = SimStore(
            self._settings.redis, self.name, self._settings.prefix, self._redis_lost_writes,
            self._redis_available,
        )  # fmt: skip
        store.world, store.process = self._world, self._process
        store._adopt(await store._connect())
        return store


class DispatcherMachine:
    """One dispatcher process that can be killed, frozen and started again."""

    def __init__(self, world: Environment, name: str, way_ms: int) -> None:
        self.world = world
        self.name = name
        self.way_ms = way_ms  # to Redis, and back
        self.process: ProcessLoop | None = None
        self.links: list[SimLink] = []
        self.redis_connections: list[SimRedisConnection] = []
        self.runner: SimRunner | None = None
        self._task: asyncio.Task[None] | None = None
        self.starts = 0
        self._clock_offset_ms = 0

    @property
    def leads(self) -> bool:
        return self.runner is not None and self.runner.state.name == "LEADING"

    def start(self) -> None:
        if self.process is not None:
            return
        world = self.world
        self.starts += 1
        offset_ms = self._clock_offset_ms
        process = ProcessLoop(world.scheduler, f"{self.name}.{self.starts}", offset_ms)
        self.process = process
        self.links, self.redis_connections = [], []
        world.machines[process] = self
        process.call_soon(self._begin, process)
        world.history.note(process.name, "starts", offset_ms)

    def set_clock(self, offset_ms: int) -> None:
        """Set the machine's wall clock wrong by that much."""
        self._clock_offset_ms = offset_ms
        if self.process is not None:
            self.process.clock_offset_ms = offset_ms

    def _begin(self, process: ProcessLoop) -> None:
        settings = self.world.next_settings()
        (lane,) = settings.lanes.values()
        self.runner = SimRunner(self.world, process, settings, lane)
        self._task = process.create_task(self.runner.run())

    def kill(self) -> None:
        """kill -9."""
        process, self.process = self.process, None
        if process is None:
            return
        self.world.history.note(process.name, "killed")
        process.dead = True
        for link in self.links:
            if link._connection is not None:
                link.connection.reset("killed", told=False)
        for connection in self.redis_connections:
            connection.cut("killed", told=False)
        process.kill([self._task] if self._task is not None else [])
        self.runner, self._task = None, None
        del self.world.machines[process]
