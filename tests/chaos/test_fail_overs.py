"""What the judge is told of a Redis that changes its primary by itself."""

from __future__ import annotations

from tests.chaos.fail_overs import Watched
from tests.chaos.verdict import NO_VERDICT, VIOLATED, Verdict
from tests.redis_store.sentinel_node import PROMOTED_S
from tests.waiting import wait_until


def test_a_fail_over_that_no_fault_has_made_is_seen() -> None:
    redis = Watched()
    redis.start()
    try:
        pair = redis.pair("dispatch", "orders")
        pair.primary.kill9()
        wait_until(lambda: redis.promotions() == 1, PROMOTED_S, "Sentinel to say so")
        assert redis.planned == 0
        redis.promote(pair)
        assert redis.planned == redis.promotions() == 1
    finally:
        redis.close()


def test_violations_of_a_run_with_such_a_fail_over_are_no_verdict() -> None:
    assert Verdict(problems=["doubled: 1"]).exit_code == VIOLATED
    assert Verdict(problems=["doubled: 1"], unplanned=1).exit_code == NO_VERDICT
    assert Verdict(unplanned=1).exit_code == 0
