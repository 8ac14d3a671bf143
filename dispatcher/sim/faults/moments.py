"""Faults that strike exactly at a publish or a commit."""

from __future__ import annotations

from typing import Any, Final

from dispatcher.sim.faults.striking import Faults, fault
from dispatcher.sim.scenario import Fault

#: How many others of the same kind may pass before the fault strikes.
_OTHERS_MAX: Final = 30


def _others(fault: Fault) -> int:
    return fault.target % _OTHERS_MAX


def _cut(connection: Any) -> None:
    connection.ended_by_broker("cut at a publish")


def _cut_redis(connection: Any) -> None:
    connection.cut("cut at a commit")


@fault(often=6)
def kill_at_publish(faults: Faults, fault: Fault) -> bool:
    """A dispatcher dies: the copies before this one are out, their confirms are not read."""

    def strike(connection: Any) -> None:
        _cut(connection)
        faults.kill_owner(connection, 200)

    return faults.arm(fault, "copy", _others(fault), strike)


@fault(often=5)
def cut_at_publish(faults: Faults, fault: Fault) -> bool:
    """The connection is lost at a copy: those before it are out, their confirms are not read."""
    return faults.arm(fault, "copy", _others(fault), _cut)


@fault(often=4)
def kill_at_settle(faults: Faults, fault: Fault) -> bool:
    """A consumer dies: what it said before is stored, and it has not read the confirms."""

    def strike(connection: Any) -> None:
        _cut(connection)
        faults.kill_owner(connection, 200)

    return faults.arm(fault, "word", _others(fault), strike)


@fault(often=3)
def cut_at_settle(faults: Faults, fault: Fault) -> bool:
    """The connection of a consumer is lost at a settle."""
    return faults.arm(fault, "word", _others(fault), _cut)


@fault(often=5)
def kill_before_commit(faults: Faults, fault: Fault) -> bool:
    """A dispatcher dies, and Redis never sees its commit."""
    return faults.arm(fault, "before commit", _others(fault), _killer(faults, fault))


@fault(often=6)
def kill_after_commit(faults: Faults, fault: Fault) -> bool:
    """A dispatcher dies, and its commit is in Redis."""
    return faults.arm(fault, "after commit", _others(fault), _killer(faults, fault))


def _killer(faults: Faults, fault: Fault) -> Any:
    def strike(connection: Any) -> None:
        faults.kill_owner(connection, 100)
        if fault.amount % 2:  # the consumer that could repeat the settle dies with it
            for consumer in faults.world.consumers:
                faults.kill(consumer, 300)

    return strike


@fault(often=3)
def cut_redis_before_commit(faults: Faults, fault: Fault) -> bool:
    """The connection to Redis is lost, and the commit with it."""
    return faults.arm(fault, "before commit", _others(fault), _cut_redis)


@fault(often=4)
def cut_redis_after_commit(faults: Faults, fault: Fault) -> bool:
    """The connection to Redis is lost after the write, and the reply with it."""
    return faults.arm(fault, "after commit", _others(fault), _cut_redis)


@fault(often=3)
def nack_marker(faults: Faults, fault: Fault) -> bool:
    """A consumer comes back while the marker for its former connection waits to be published again."""
    world = faults.world

    def strike(_: Any) -> None:
        world.broker.nack_next[world.names.control] = 1

    faults.arm(fault, "marker", 0, strike)
    faults.cut(faults.consumer(fault), fault, _away_ms(fault))
    return False


@fault(often=3)
def late_marker(faults: Faults, fault: Fault) -> bool:
    """A consumer comes back while the marker for its former connection is on its way."""
    for connection in faults.connections_of(faults.leader_or(fault).process):
        connection.up.slow_ms = 100 + fault.amount % 500
        faults.after(2_000, setattr, connection.up, "slow_ms", 0)
    return faults.cut(faults.consumer(fault), fault, _away_ms(fault))


def _away_ms(fault: Fault) -> int:
    """Long enough to be missed, and back before long."""
    return 200 + fault.amount % 800
