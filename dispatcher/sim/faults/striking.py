"""The kinds of faults, and the class that carries out a scenario's faults and undoes all of them at the
end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from dispatcher.sim.broker import ConnectionEnd
from dispatcher.sim.consumers import ConsumerMachine
from dispatcher.sim.dispatchers import DispatcherMachine
from dispatcher.sim.loop import ProcessLoop
from dispatcher.sim.readers import ReaderMachine
from dispatcher.sim.scenario import Fault
from dispatcher.sim.world import World

Machine = DispatcherMachine | ConsumerMachine | ReaderMachine

#: How long after the last fault everything is repaired. A node that stands still is given up after 7.5 s, and
#: who had its place then goes on after some seconds more.
_REPAIR_MS: Final = 3_000
_REPAIR_CLUSTER_MS: Final = 30_000
#: How long a patient fault waits, and how often it looks.
_PATIENCE_MS: Final = 2_000
_LOOK_MS: Final = 13

#: True: it has hit something. False: it did not, or it will later and counts itself then.
Strike = Callable[["Faults", Fault], bool]


class FaultKind(NamedTuple):
    """A kind of fault. `often`: how often it is drawn, compared with the others; 0: apart."""

    often: int
    strike: Strike


KINDS: Final[dict[str, FaultKind]] = {}


def fault(*, often: int) -> Callable[[Strike], Strike]:
    """Make this function a kind of fault of that name. It is called when the fault strikes."""

    def register(strike: Strike) -> Strike:
        KINDS[strike.__name__] = FaultKind(often, strike)
        return strike

    return register


class Armed:
    """A fault that strikes at a moment, after that many others like it."""

    __slots__ = ("act", "kind", "moment", "others")

    def __init__(self, kind: str, moment: str, others: int, act: Callable[[Any], None]) -> None:
        self.kind = kind
        self.moment = moment
        self.others = others
        self.act = act


class Faults:
    """Strikes. `over_at_ms`: when the last fault has struck and has been undone."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._armed: list[Armed] = []
        faults = world.scenario.faults
        last_ms = max((fault.at_ms for fault in faults), default=0)
        repair_ms = _REPAIR_CLUSTER_MS if world.scenario.partitions else _REPAIR_MS
        self.over_at_ms = world.begun_at_ms + last_ms + (_PATIENCE_MS + repair_ms if faults else 100)

    def schedule(self) -> None:
        world = self.world
        for fault in world.scenario.faults:
            if fault.patient:
                until_ms = world.begun_at_ms + fault.at_ms + _PATIENCE_MS
                world.scheduler.after(fault.at_ms, self._strike_at_work, fault, until_ms)
            else:
                world.scheduler.after(fault.at_ms, self._strike, fault)
        world.broker.before_publish = self._before_publish
        world.redis.around_commit = self._around_commit

    def _strike_at_work(self, fault: Fault, until_ms: int) -> None:
        if self.world.is_working() or self.world.scheduler.now_ms >= until_ms:
            self._strike(fault)
        else:
            self.after(_LOOK_MS, self._strike_at_work, fault, until_ms)

    def _strike(self, fault: Fault) -> None:
        self.world.history.note("FAULT", fault.kind, fault.target, fault.amount)
        if KINDS[fault.kind].strike(self, fault):
            self.struck(fault.kind)

    def struck(self, kind: str) -> None:
        """A fault of this kind has hit something."""
        self.world.history.struck(kind)

    def after(self, delay_ms: int, act: Callable[..., object], *arguments: Any) -> None:
        self.world.scheduler.after(delay_ms, act, *arguments)

    def stop(self) -> None:
        """Everything is repaired, and all processes are there again."""
        world = self.world
        self._armed.clear()
        world.refusals.stop()
        world.history.note("FAULT", "over")
        world.broker.restart()
        world.broker.end_alarm()
        world.broker.declared = world.broker.fetched = None
        for queue in world.broker.queues.values():
            queue.leaderless = False
        world.broker.nack_next.clear()
        world.broker.lose_next.clear()
        world.declare_targets()
        if not world.redis.up:
            world.redis.restart(0)
        world.redis.slow_ms = 0
        for connection in world.broker.connections:
            connection.up.slow_ms = connection.down.slow_ms = 0
        for consumer in world.consumers:
            consumer.slowness = 1
        machines: list[Machine] = [*world.dispatchers, *world.consumers]
        for machine in machines:
            if machine.process is not None:
                machine.process.thaw()
            machine.start()

    # -- moments: "copy", "word" (of a consumer), "marker", "before commit", "after commit" --

    def arm(self, fault: Fault, moment: str, others: int, act: Callable[[Any], None]) -> bool:
        """Strike at that moment, once `others` more like it have passed; `act` gets the connection."""
        self._armed.append(Armed(fault.kind, moment, others, act))
        return False

    def _pass(self, moment: str, connection: Any) -> None:
        for armed in self._armed:
            if armed.moment != moment:
                continue
            armed.others -= 1
            if armed.others < 0:
                self._armed.remove(armed)
                self.world.history.note("FAULT", "strikes", armed.kind, connection.process.name)
                self.struck(armed.kind)
                armed.act(connection)
                return

    def _before_publish(self, connection: ConnectionEnd, exchange: str, key: str) -> None:
        if not self._armed:
            return
        names = self.world.names
        if exchange == names.exchange:
            self._pass("marker" if key == names.control else "copy", connection)
        elif exchange == names.control_exchange:
            self._pass("word", connection)

    def _around_commit(self, connection: Any, after: bool) -> None:
        if self._armed:
            self._pass("after commit" if after else "before commit", connection)

    # -- to whom --

    def leader_or(self, fault: Fault) -> DispatcherMachine:
        """The leader; while there is none, any dispatcher."""
        return self.world.leader() or self.dispatcher(fault)

    def dispatcher(self, fault: Fault) -> DispatcherMachine:
        return self.world.dispatchers[fault.target % len(self.world.dispatchers)]

    def consumer(self, fault: Fault) -> ConsumerMachine | ReaderMachine:
        return self.world.consumers[fault.target % len(self.world.consumers)]

    def connections_of(self, process: ProcessLoop | None) -> list[ConnectionEnd]:
        """Its connections to the broker."""
        return [connection for connection in self.world.broker.connections if connection.process is process]

    # -- what happens to processes of either sort --

    def kill(self, machine: Machine, down_ms: int) -> bool:
        """kill -9, and a start after that time. False: it was down."""
        was_up = machine.process is not None
        machine.kill()
        self.after(down_ms, machine.start)
        return was_up

    def kill_owner(self, connection: Any, down_ms: int) -> None:
        """Kill the process whose connection this is."""
        machine = self.world.machines.get(connection.process)
        if machine is not None:
            self.kill(machine, down_ms)

    def cut(self, machine: Machine, fault: Fault, away_ms: int | None = None) -> bool:
        """Its connections to the broker end, at the broker at once or somewhere on the way. It can
        make no other for `away_ms` (None: for as long as the fault says, often not at all). False: it had
        none.
        """
        if away_ms is None:
            away_ms = fault.amount % 700 if fault.amount % 3 else 0
        if machine.process is not None:
            machine.process.cut_off_until_ms = self.world.scheduler.now_ms + away_ms
        connections = self.connections_of(machine.process)
        for connection in connections:
            if fault.amount % 2:
                connection.ended_by_broker("cut")
            else:
                connection.reset("cut")
        return bool(connections)

    def freeze(self, machine: Machine, fault: Fault) -> bool:
        """SIGSTOP; long ones are cut off by the broker, and wake up when others have their place."""
        process = machine.process
        if process is None:
            return False
        process.freeze()
        if fault.amount % 3 == 0:  # a short stop
            self.after(fault.amount % 700, process.thaw)
            return True
        noticed_ms = fault.amount % 500
        self.after(noticed_ms, self._end_connections, process)
        self.after(noticed_ms + fault.amount % 2_000, process.thaw)
        return True

    def _end_connections(self, process: ProcessLoop) -> None:
        for connection in self.connections_of(process):
            connection.ended_by_broker("missed heartbeats from client")
