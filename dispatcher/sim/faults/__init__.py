"""Faults: one function per kind, and the class that carries them out.

To add a kind, write one function with `@fault(often=…)` in one of the modules below. Scenarios draw it from
then on, and a test sees to it that it strikes.
"""

from dispatcher.sim.faults import broker, consumers, dispatchers, moments, nodes, operators, redis
from dispatcher.sim.faults.striking import KINDS, FaultKind, Faults

MODULES = (dispatchers, consumers, moments, broker, nodes, redis, operators)

__all__ = ["KINDS", "MODULES", "Faults", "FaultKind"]
