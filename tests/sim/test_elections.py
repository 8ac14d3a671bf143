"""A quorum queue elects a leader, which may give back late what consumers had: after a kill of RabbitMQ, or
when it loses the node of its leader on a cluster."""

from __future__ import annotations

from dispatcher.sim.campaign import run_seed
from dispatcher.sim.run import SimulatedRun
from dispatcher.sim.scenario import RunScenario
from dispatcher.sim.seeds import make_scenario
from dispatcher.sim.watcher import Violation

#: Newer messages come first in it, if nobody waits.
SEED = 739
#: The same on a cluster, where the former leader's node lives, so that its witness says nothing.
ON_CLUSTER = 236
#: A leader's node is cut off from an inbound queue, and says that it is empty until that ends. Who consumes
#: there gets newer messages than the other leader has.
CUT_OFF = 282


def test_who_does_not_wait_for_an_election_loses_the_order() -> None:
    assert run_seed(SEED).problem is None
    failure = _run_without_waiting(make_scenario(SEED))
    assert isinstance(failure, Violation)
    assert failure.checker == "order"


def test_who_takes_a_queue_without_a_leader_for_empty_loses_the_order() -> None:
    assert run_seed(ON_CLUSTER, cluster=True).problem is None
    failure = _run_without_waiting(make_scenario(ON_CLUSTER, cluster=True))
    assert isinstance(failure, Violation)
    assert failure.checker == "order"


def test_a_node_that_is_cut_off_is_not_believed() -> None:
    assert run_seed(CUT_OFF, cluster=True).problem is None


def _run_without_waiting(scenario: RunScenario) -> BaseException | None:
    run = SimulatedRun(scenario)
    run.world.election_s = 0.0
    return run.carry_out()
