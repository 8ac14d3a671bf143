"""Results of operators' commands: recorded once, bounded, and short whatever they did."""

from __future__ import annotations

from dispatcher.core.operators.commands import RESULTS_KEPT_MAX
from dispatcher.core.operators.rebalance import MOVES_SHOWN
from tests.spec.lane_bench import LaneBench


def with_groups(count: int) -> LaneBench:
    """One consumer that owns so many groups; another one has come since."""
    bench = LaneBench()
    bench.join("one", prefetch=count)
    bench.arrive(*(f"g{'x' * (n // 26)}{chr(97 + n % 26)}1" for n in range(count)))
    bench.join("two")
    return bench


def test_no_more_results_are_kept_in_memory_than_in_redis() -> None:
    bench = with_groups(1)
    for _ in range(RESULTS_KEPT_MAX + 5):
        bench.command()
    results = bench.lane.commands.results
    assert len(results) == RESULTS_KEPT_MAX
    assert list(results) == bench.command_uuids[5:]
    assert not bench.lane.commands.is_known(bench.command_uuids[4])


def test_a_dry_run_is_not_recorded_and_does_nothing() -> None:
    bench = with_groups(4)
    bench.command(reset=True, dry_run=True)
    (reply,) = bench.replies
    assert (reply.result["groups"], reply.result["applied"]) == (4, False)
    assert not bench.lane.commands.results
    assert not bench.lane.state.effects.commands
    assert bench.lane.state.counters["groups_moved"] == 0


def test_a_huge_result_has_the_first_moves_and_their_number() -> None:
    bench = with_groups(MOVES_SHOWN + 50)
    bench.command(reset=True)
    result = bench.replies[-1].result
    assert result["groups"] == MOVES_SHOWN + 50
    assert len(result["moves"]) == MOVES_SHOWN
    assert result["applied"]
    assert bench.lane.commands.results[bench.command_uuids[-1]] == result
    assert bench.lane.state.counters["groups_moved"] == MOVES_SHOWN + 50


def test_a_repeated_uuid_gets_the_recorded_result() -> None:
    bench = with_groups(4)
    bench.command()
    again = bench.replies[-1].result
    bench.repeat_command()
    assert bench.replies[-1].result == again
    assert again["groups"] == 2
    assert bench.lane.state.counters["groups_moved"] == 2
