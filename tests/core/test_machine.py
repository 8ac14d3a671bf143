"""The lane under everything that can happen, in any order; every promise is checked after every step."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.core.chaos import WEIGHTS, Chaos
from tests.core.world import world

OPERATIONS = st.sampled_from([operation for operation, weight in WEIGHTS.items() for _ in range(weight)])
#: What an operation chooses from; numbers that it does not need are left, missing ones count as 0.
CHOICES = st.lists(st.integers(0, 59), max_size=8)


class AnyLane(RuleBasedStateMachine):
    """See tests/core/chaos.py for the operations and tests/core/truth.py for the promises."""

    policy = "exclusive"
    top_up = False

    @initialize(
        weights=st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=3),
        grace_ms=st.sampled_from([0, 0, 2_000]),
        look_ahead=st.sampled_from([10_000, 10_000, 6]),
        look_ahead_bytes=st.sampled_from([1 << 28, 1 << 28, 800]),
        idle_ms=st.sampled_from([None, None, 400]),
        attempts=st.sampled_from([3, 1]),
        remembered=st.sampled_from([None, None, 1]),
        buckets=st.sampled_from([None, None, 1, 2]),
        on_join=st.sampled_from([None, None, "group", "lane"]),
        start_consumers=st.sampled_from([0, 0, 0, 2]),
    )
    def begin(
        self,
        weights: list[int],
        grace_ms: int,
        look_ahead: int,
        look_ahead_bytes: int,
        idle_ms: int | None,
        attempts: int,
        remembered: int | None,
        buckets: int | None,
        on_join: str | None,
        start_consumers: int,
    ) -> None:
        is_exclusive = self.policy == "exclusive"
        options = {
            "attempts": attempts,
            "rebalance_on_join": is_exclusive and on_join is not None,
            "rebalance_pause": on_join or "group",
            "start_consumers": start_consumers,
            "look_ahead": look_ahead,
            "look_ahead_bytes": look_ahead_bytes,
            "group_idle_timeout_ms": idle_ms if is_exclusive else None,
            "groups_remembered": remembered if is_exclusive and buckets is None else None,
            "buckets": buckets if self.policy != "concurrent" else None,
        }
        lane = world(
            self.policy, weights=tuple(weights), top_up=self.top_up, reconnect_grace_ms=grace_ms, **options
        )
        self.chaos = Chaos(lane)

    @rule(operation=OPERATIONS, choices=CHOICES)
    def happens(self, operation, choices: list[int]) -> None:  # type: ignore[no-untyped-def]
        left = list(reversed(choices))
        operation(self.chaos, lambda below: left.pop() % below if left else 0)

    def teardown(self) -> None:
        if hasattr(self, "chaos"):
            self.chaos.finish()


class Sequenced(AnyLane):
    policy = "sequenced"


class ToppedUp(AnyLane):
    policy = "sequenced"
    top_up = True


class Concurrent(AnyLane):
    policy = "concurrent"


BOUNDED = settings(
    max_examples=60, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.timeout(600)  # a failure is made small before it is reported
@pytest.mark.parametrize("machine", [AnyLane, Sequenced, ToppedUp, Concurrent], ids=lambda m: m.__name__)
def test_promises_hold_whatever_happens(machine: type[AnyLane]) -> None:
    case = machine.TestCase
    case.settings = BOUNDED
    case("runTest").runTest()
