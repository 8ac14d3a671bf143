"""After a kill of RabbitMQ a quorum queue elects a leader, which may give back late what consumers had."""

from __future__ import annotations

from dispatcher.sim.campaign import run_seed
from dispatcher.sim.run import SimulatedRun
from dispatcher.sim.seeds import make_scenario
from dispatcher.sim.watcher import Violation

#: Newer messages come first in it, if nobody waits.
SEED = 739


def test_who_does_not_wait_for_an_election_loses_the_order() -> None:
    assert run_seed(SEED).problem is None
    failure = _run_without_waiting(SEED)
    assert isinstance(failure, Violation)
    assert failure.checker == "order"


def _run_without_waiting(seed: int) -> BaseException | None:
    run = SimulatedRun(make_scenario(seed))
    run.world.election_s = 0.0
    return run.carry_out()
