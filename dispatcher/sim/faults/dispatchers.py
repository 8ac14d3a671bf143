"""Faults of dispatchers: killed, cut off, frozen, with a clock that jumps."""

from __future__ import annotations

from typing import Final

from dispatcher.sim.faults.kinds import Fault, fault
from dispatcher.sim.faults.striking import Faults, Machine

_JUMPS_MS: Final = (5_000, -5_000, 3_600_000, -3_600_000)


@fault(often=10)
def kill_leader(faults: Faults, fault: Fault) -> None:
    faults.kill(faults.leader_or(fault), fault.amount % 1_500)


@fault(often=3)
def kill_dispatcher(faults: Faults, fault: Fault) -> None:
    """Any of them; perhaps one that stands by."""
    faults.kill(faults.dispatcher(fault), fault.amount % 1_500)


@fault(often=2)
def kill_host(faults: Faults, fault: Fault) -> None:
    """Everything that runs here at once: all dispatchers and consumers, while commits are on their way."""
    for connection in faults.leader_or(fault).redis_connections:
        connection.way_ms += fault.target * 5
    faults.after(fault.target * 5, _kill_all, faults, fault)


def _kill_all(faults: Faults, fault: Fault) -> None:
    machines: list[Machine] = [*faults.world.dispatchers, *faults.world.consumers]
    for machine in machines:
        faults.kill(machine, 100 + fault.amount % 500)


@fault(often=6)
def cut_leader(faults: Faults, fault: Fault) -> None:
    faults.cut(faults.leader_or(fault), fault)


@fault(often=5)
def freeze_leader(faults: Faults, fault: Fault) -> None:
    """It may wake up after its successor started."""
    faults.freeze(faults.leader_or(fault), fault)


@fault(often=3)
def late_commits(faults: Faults, fault: Fault) -> None:
    """The broker loses sight of the leader, whose last commits are still on their way to Redis."""
    leader = faults.leader_or(fault)
    for connection in leader.redis_connections:
        connection.way_ms = fault.amount % 1_500
    faults.after(fault.target, faults.cut, leader, fault)


@fault(often=2)
def late_event(faults: Faults, fault: Fault) -> None:
    """What the broker sends to the leader comes late."""
    for connection in faults.connections_of(faults.leader_or(fault).process):
        connection.down.slow_ms = fault.amount % 1_000
        faults.after(500, setattr, connection.down, "slow_ms", 0)


@fault(often=2)
def clock_jump(faults: Faults, fault: Fault) -> None:
    """The wall clock of a dispatcher's machine is set; whoever starts there next starts with that."""
    faults.dispatcher(fault).set_clock(_JUMPS_MS[fault.amount % len(_JUMPS_MS)])
