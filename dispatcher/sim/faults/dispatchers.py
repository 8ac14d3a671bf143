"""Faults of dispatchers: killed, cut off, frozen, with a clock that jumps."""

from __future__ import annotations

from typing import Final

from dispatcher.sim.faults.striking import Faults, Machine, fault
from dispatcher.sim.scenario import Fault

_JUMPS_MS: Final = (5_000, -5_000, 3_600_000, -3_600_000)


@fault(often=10)
def kill_leader(faults: Faults, fault: Fault) -> bool:
    """The leader is killed."""
    return faults.kill(faults.leader_or(fault), fault.amount % 1_500)


@fault(often=3)
def kill_dispatcher(faults: Faults, fault: Fault) -> bool:
    """Any of them; perhaps one that stands by."""
    return faults.kill(faults.dispatcher(fault), fault.amount % 1_500)


@fault(often=2)
def kill_host(faults: Faults, fault: Fault) -> bool:
    """Everything that runs here at once: all dispatchers and consumers, while commits are on their way."""
    for connection in faults.leader_or(fault).redis_connections:
        connection.way_ms += fault.target * 5
    faults.after(fault.target * 5, _kill_all, faults, fault)
    return False


def _kill_all(faults: Faults, fault: Fault) -> None:
    machines: list[Machine] = [*faults.world.dispatchers, *faults.world.consumers]
    if any([faults.kill(machine, 100 + fault.amount % 500) for machine in machines]):
        faults.struck(fault.kind)


@fault(often=6)
def cut_leader(faults: Faults, fault: Fault) -> bool:
    """The leader's connection is lost; any prefix of the bytes sent on it arrives."""
    return faults.cut(faults.leader_or(fault), fault)


@fault(often=5)
def freeze_leader(faults: Faults, fault: Fault) -> bool:
    """The leader is stopped; it may wake up after its successor started."""
    return faults.freeze(faults.leader_or(fault), fault)


@fault(often=3)
def late_commits(faults: Faults, fault: Fault) -> bool:
    """The broker loses sight of the leader, whose last commits are still on their way to Redis."""
    leader = faults.leader_or(fault)
    for connection in leader.redis_connections:
        connection.way_ms = fault.amount % 1_500
    faults.after(fault.target, faults.cut, leader, fault)
    return bool(leader.redis_connections)


@fault(often=2)
def late_event(faults: Faults, fault: Fault) -> bool:
    """What the broker sends to the leader comes late."""
    connections = faults.connections_of(faults.leader_or(fault).process)
    for connection in connections:
        connection.down.slow_ms = fault.amount % 1_000
        faults.after(500, setattr, connection.down, "slow_ms", 0)
    return bool(connections)


@fault(often=2)
def clock_jump(faults: Faults, fault: Fault) -> bool:
    """The wall clock of a dispatcher's machine is set; the next process there starts with that clock."""
    faults.dispatcher(fault).set_clock(_JUMPS_MS[fault.amount % len(_JUMPS_MS)])
    return True
