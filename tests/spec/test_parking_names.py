"""The names of deleted parking queues rest before they are given again."""

from __future__ import annotations

import pytest

from dispatcher.core.parking.orders import ParkingQueueForgotten
from dispatcher.core.parking.policy import BLOCKED_MS, LINGER_MS
from dispatcher.core.parking.queue import REST_MS
from tests.spec.lane_bench import clause
from tests.spec.parking_bench import FIRST, ParkingBench, blocked

SECOND = FIRST + 1
#: So rarely that consumers who say nothing live on.
HEARTBEAT_MS = 3_600_000


def emptied(**options: object) -> ParkingBench:
    """The first parking queue was used, read to its end and deleted; consumer one has nothing."""
    bench = blocked(heartbeat_ms=HEARTBEAT_MS, **options)  # type: ignore[arg-type]
    bench.settle_each("one", range(1, 11))
    bench.run(LINGER_MS)
    assert bench.deleted == [FIRST]
    return bench


def block_again(bench: ParkingBench) -> None:
    """Its groups fill the look-ahead once more."""
    bench.arrive(*(f"a{n}" for n in range(11, 31)))
    bench.run(BLOCKED_MS)


def used(bench: ParkingBench) -> list[int]:
    return list(bench.lane.state.parking)


def test_the_name_of_a_deleted_parking_queue_is_not_given_again_soon() -> None:
    clause("P-5a", "The name of a deleted parking queue is given again after 30 s at the earliest")
    bench = emptied()
    block_again(bench)
    assert used(bench) == [SECOND]


def test_after_its_rest_it_is_given_again() -> None:
    bench = emptied()
    bench.run(REST_MS)
    block_again(bench)
    assert used(bench) == [FIRST]


def test_a_new_leader_lets_it_rest_from_its_own_beginning() -> None:
    clause("P-5a", "counts from its own beginning")
    bench = emptied()
    bench.run(REST_MS - 1_000)
    bench.fail_over()
    bench.run(1_000)
    block_again(bench)
    assert used(bench) == [SECOND]


def test_a_checkpoint_has_the_names_that_rest_and_no_others() -> None:
    bench = emptied()
    assert ParkingQueueForgotten(FIRST) in bench.lane.checkpoint().records
    bench.run(REST_MS)
    bench.step()
    assert ParkingQueueForgotten(FIRST) not in bench.lane.checkpoint().records


def test_a_new_leader_whose_journal_is_one_checkpoint_knows_it() -> None:
    bench = emptied()
    bench.fail_over()
    bench.fail_over()
    block_again(bench)
    assert used(bench) == [SECOND]


def test_without_redis_memory_a_new_leader_begins_in_the_upper_half() -> None:
    clause("P-5a", "the new leader does not use the numbers 1 to 32 for 30 s")
    bench = blocked()
    bench.settle_each("one", range(1, 11))
    bench.run(LINGER_MS)
    bench.fail_over(forget=True)
    for consumer in ("one", "two"):
        bench.join(consumer, prefetch=1 if consumer == "one" else 10, n=2)
    bench.run(11_000)
    block_again(bench)
    assert used(bench) == [FIRST + 2], "four names: the lower two rest"


@pytest.mark.parametrize("rested", [False, True])
def test_while_all_names_are_used_or_rest_nothing_is_parked(rested: bool) -> None:
    clause("P-6", "One whose name rests counts as in use")
    bench = emptied(parking=1)
    block_again(bench)
    assert ("parking_bound_reached", {"queues": 0}) in bench.told
    assert not used(bench)
    if rested:
        bench.run(REST_MS + 1_000)
        assert used(bench) == [FIRST]
