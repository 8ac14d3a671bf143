"""A checker that never fails proves nothing: every planted bug is found by the checker that is for it."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.sim.campaign import RunOutcome, run_scenario
from dispatcher.sim.scenario import RunScenario
from dispatcher.sim.seeds import make_scenario
from tests.sim.plants import PLANTS, Plant
from tests.sim.test_seeds import SEEDS

#: So many more are tried where the written seed finds the bug no more: the rarest bugs need more, and whoever
#: changed what seeds mean names a new one, rather than that each run of the tests searches.
MORE_SEEDS = 100


def _run(scenario: RunScenario, plant: Plant) -> RunOutcome:
    outcome = run_scenario(scenario, plants=[plant])
    assert outcome.checker != "crash", f"no checker failed, the program did: {outcome.problem}"
    return outcome


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", PLANTS)
def test_the_bug_is_found(name: str) -> None:
    """The first seed is one that found it when it was written down."""
    planted = PLANTS[name]
    for seed in (planted.seed, *range(1, MORE_SEEDS + 1)):
        if _run(planted.scenario(seed), planted.plant).checker in planted.checkers:
            if planted.cluster or seed > SEEDS:  # without plants the others run in test_seeds
                without = run_scenario(planted.scenario(seed))
                assert without.problem is None, f"seed {seed} fails without the plant: {without.problem}"
            return
    pytest.fail(
        f"neither its seed {planted.seed} nor the first {MORE_SEEDS} find {name}: "
        f"`python -m tests.sim.plants {name}` names seeds that do"
    )


def test_a_plant_that_breaks_the_program_is_not_found() -> None:
    def broken(lane: Any, session: Any, store: Any) -> None:
        lane.no_such_part.grow()

    with pytest.raises(AssertionError, match="AttributeError"):
        _run(make_scenario(1), broken)
