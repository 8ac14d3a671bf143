"""Faults of consumers: killed, cut off, frozen, slow, gone on purpose."""

from __future__ import annotations

from typing import Final

from dispatcher.sim.faults.broker import repeat_words
from dispatcher.sim.faults.striking import Faults, fault
from dispatcher.sim.scenario import Fault

_SLOWER: Final = 30


@fault(often=10)
def kill_consumer(faults: Faults, fault: Fault) -> bool:
    """A consumer is killed and starts again; now and then what its id said is read once more."""
    down_ms = fault.amount % 2_000
    consumer = faults.consumer(fault)
    was_up = faults.kill(consumer, down_ms)
    if fault.amount % 3 == 0:  # what the former one said is read again by a dispatcher that has a new one
        faults.after(down_ms + fault.target // 2, repeat_words, faults, consumer)
    return was_up


@fault(often=8)
def cut_consumer(faults: Faults, fault: Fault) -> bool:
    """The connection of a consumer is lost, which may not come back for a while."""
    return faults.cut(faults.consumer(fault), fault)


@fault(often=2)
def cut_all_consumers(faults: Faults, fault: Fault) -> bool:
    """A load balancer between them and the broker is restarted."""
    return any([faults.cut(consumer, fault) for consumer in faults.world.consumers])


@fault(often=5)
def freeze_consumer(faults: Faults, fault: Fault) -> bool:
    """A consumer is stopped; a long stop costs its connection, and it wakes up when others have its work."""
    return faults.freeze(faults.consumer(fault), fault)


@fault(often=2)
def slow_consumer(faults: Faults, fault: Fault) -> bool:
    """Its handlers take much longer for a while."""
    consumer = faults.consumer(fault)
    consumer.slowness = _SLOWER
    faults.after(fault.amount % 3_000, setattr, consumer, "slowness", 1)
    return consumer.process is not None


@fault(often=3)
def leave_consumer(faults: Faults, fault: Fault) -> bool:
    """A consumer is asked to leave, and starts again."""
    consumer = faults.consumer(fault)
    was_up = consumer.process is not None
    consumer.leave()
    faults.after(fault.amount % 3_000, consumer.start)
    return was_up
