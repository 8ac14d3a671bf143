"""Faults of Redis: restarted with all, some or none of its writes, slow."""

from __future__ import annotations

from dispatcher.sim.faults.striking import Faults, fault
from dispatcher.sim.scenario import Fault


def _stop(faults: Faults, fault: Fault, lost: int | None) -> bool:
    """Stop it, and start it again without its last writes (None: without any). False: it was down."""
    redis = faults.world.redis
    if not redis.up:
        return False
    redis.stop()
    if lost != 0:
        faults.world.history.redis_forgets()
    faults.after(100 + fault.amount % 1_500, _start, faults, lost)
    return True


def _start(faults: Faults, lost: int | None) -> None:
    if not faults.world.redis.up:
        faults.world.redis.restart(lost)


@fault(often=2)
def restart_redis(faults: Faults, fault: Fault) -> bool:
    """Redis restarts with everything."""
    return _stop(faults, fault, 0)


@fault(often=3)
def redis_loses_last(faults: Faults, fault: Fault) -> bool:
    """Redis restarts without its last writes."""
    return _stop(faults, fault, 1 + fault.target)


@fault(often=2)
def redis_loses_all(faults: Faults, fault: Fault) -> bool:
    """Redis restarts empty."""
    return _stop(faults, fault, None)


@fault(often=2)
def slow_redis(faults: Faults, fault: Fault) -> bool:
    """Its answers come late, or so late that the connection is given up."""
    redis = faults.world.redis
    redis.slow_ms = fault.amount % 3_000
    faults.after(1_000, setattr, redis, "slow_ms", 0)
    return redis.up


@fault(often=1)
def wipe(faults: Faults, fault: Fault) -> bool:
    """Redis loses everything while no dispatcher lives."""
    world = faults.world
    world.history.redis_forgets()
    for machine in world.dispatchers:
        faults.kill(machine, 1_000 + fault.amount % 1_000)
    if not world.redis.up:
        return False
    world.redis.stop()
    faults.after(500, _start, faults, None)
    return True
