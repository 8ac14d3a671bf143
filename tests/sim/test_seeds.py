"""Two thousand worlds: in none of them a message is lost, doubled, out of order or stuck."""

from __future__ import annotations

import pytest

from dispatcher.sim.campaign import run_seed

SEEDS = 2_000
#: So many per test: enough of them for several processes to share, each far from the timeout.
PART = 40


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1, SEEDS + 1, PART))
def test_every_guarantee_holds(first: int) -> None:
    for seed in range(first, first + PART):
        outcome = run_seed(seed)
        assert outcome.problem is None, "\n".join(
            [f"seed {seed} fails: {outcome.checker}: {outcome.problem}", *outcome.events]
        )
