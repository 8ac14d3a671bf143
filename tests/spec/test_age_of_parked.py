"""For how long the oldest message of a group waits is known of what is parked, too."""

from __future__ import annotations

from typing import Any

from dispatcher.core.parking.policy import BLOCKED_MS
from dispatcher.core.views.views import Views
from tests.spec.lane_bench import START_MS
from tests.spec.parking_bench import ParkingBench, blocked


def row(bench: ParkingBench, group: str = "a") -> dict[str, Any]:
    return Views(bench.lane.state).group({"group": group})


def since(bench: ParkingBench) -> int:
    """When the oldest that waits of group a came, after the bench's start."""
    oldest_ms: int = row(bench)["oldest_ms"]
    return bench.lane.state.now_ms - oldest_ms - START_MS


def by_age(bench: ParkingBench) -> list[str]:
    views = Views(bench.lane.state)
    listing = views.listing({"sort": "age"})
    assert listing.look_at(1_000)
    return [group["group"] for group in views.listed(listing)["groups"]]


def parked_later() -> ParkingBench:
    """Nothing of group a waits here: a2 to a10 are parked since about the start, a11 came much later."""
    bench = blocked()
    bench.run(10_000)
    bench.arrive("a11")
    bench.run()
    assert (row(bench)["held"], row(bench)["parked"]) == (0, 10)
    return bench


def test_a_group_that_is_only_parked_has_the_age_of_its_oldest() -> None:
    bench = parked_later()
    assert 0 <= since(bench) < 100


def test_groups_that_are_parked_have_their_place_by_age() -> None:
    bench = parked_later()
    bench.join("two", prefetch=1, n=2, in_hand=())
    bench.arrive("z1", "z2")
    bench.run(1_000)
    assert by_age(bench) == ["a", "z"]


def test_what_was_read_back_is_as_old_as_before() -> None:
    bench = parked_later()
    begun = since(bench)
    bench.settle_each("one", range(1, 3))
    assert row(bench)["held"] > 0
    assert since(bench) == begun
    bench.settle_each("one", range(3, 10))
    assert bench.in_parking() == ["a10", "a11"]
    assert since(bench) >= 10_000


def test_what_is_given_back_waits_since_it_came() -> None:
    bench = blocked(park_after_ms=60_000)
    begun = since(bench)
    bench.settle("one", "a1")
    bench.run()
    bench.run(200_000)
    assert row(bench)["held"] == 0
    assert since(bench) == begun


def test_a_new_leader_knows_it() -> None:
    bench = parked_later()
    begun = since(bench)
    bench.fail_over()
    bench.run()
    assert row(bench)["parked"] == 10
    assert since(bench) == begun


def test_a_checkpoint_says_it_of_what_was_read_too() -> None:
    bench = parked_later()
    bench.settle_each("one", range(1, 3))
    begun = since(bench)
    bench._take(bench.lane.checkpoint(everything=True))
    bench.fail_over()
    assert row(bench)["parked"] == 9
    assert since(bench) == begun


def test_what_comes_when_all_before_it_is_over_is_as_old_as_itself() -> None:
    """Its parking queue is kept for another group of the same consumer, which has more in it."""
    bench = ParkingBench(look_ahead=10)
    bench.join("one", prefetch=2)
    bench.arrive("a1", "b1")
    bench.join("two")
    bench.arrive("a2", *(f"b{number}" for number in range(2, 11)))
    bench.run(BLOCKED_MS)
    assert row(bench)["parked"] == 1
    bench.settle("one", "a1")
    bench.run()
    bench.settle("one", "a2")
    bench.run(5_000)
    assert row(bench)["parked"] == 0
    bench.arrive("a3")
    bench.run()
    assert since(bench) >= 5_000
    bench.hold_reads = True
    bench.fail_over()
    assert row(bench)["parked"] == 1
    assert row(bench)["oldest_ms"] is None, "a new leader does not know it, and makes nothing up"
    bench.hold_reads = False
    bench.run()
    assert since(bench) >= 5_000, "it has read it"
