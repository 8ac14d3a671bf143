"""What came back after its group had been parked is parked in front of that: also if Redis forgets everything
while nobody leads, and only the broker knows what comes first."""

from __future__ import annotations

import pytest

from dispatcher.core.model import Group
from dispatcher.core.parking.orders import Relocating
from dispatcher.core.parking.policy import BLOCKED_MS, LINGER_MS
from dispatcher.core.parking.reparking import OVERTAKEN_MS
from tests.spec.flag_bench import said
from tests.spec.lane_bench import clause
from tests.spec.parking_bench import FIRST, ParkingBench, blocked, numbers

HEARTBEATS_MS = 11_000


def finish(bench: ParkingBench) -> None:
    """Consumers settle what they get until nothing more comes."""
    state = bench.lane.state
    bench.run(100)
    for _ in range(100):
        held = [(c.id, seq) for c in state.by_uuid.values() for seq in c.in_flight]
        if not held:
            return
        for consumer, seq in held:
            bench.settle_seqs(consumer, seq)
        bench.run(100)
    raise AssertionError("it never ends")


def after_forgetting(bench: ParkingBench) -> list[int]:
    """Redis is emptied while nobody leads, and consumers come who have nothing in hand: what they get."""
    begun = len(bench.sent)
    bench.fail_over(forget=True)
    for consumer in ("one", "two"):
        bench.join(consumer, prefetch=1, n=2)
    bench.run(HEARTBEATS_MS)
    finish(bench)
    return numbers(bench)[begun:]


def stopped(*, settle: bool = True, **options: object) -> ParkingBench:
    """Group a has stopped at a1, after what follows had been parked. `settle`: and then nothing happened."""
    bench = blocked(stops_failed=True, **options)
    bench.fail("one", "a1", "no stock")
    bench.run(OVERTAKEN_MS if settle else 0)
    return bench


def test_p9_where_a_group_has_stopped_is_parked_in_front() -> None:
    clause("P-9", "if its group has stopped, if operators hold its group")
    bench = stopped()
    assert (bench.in_parking(FIRST), bench.in_parking(FIRST + 1)) == ([f"a{n}" for n in range(2, 11)], ["a1"])
    bench.arrive("a11")
    bench.run()
    assert after_forgetting(bench) == list(range(1, 12))


@pytest.mark.parametrize("settle", [True, False])
@pytest.mark.parametrize(("verdict", "first"), [("release", 1), ("skip", 2), ("drop", 2)])
def test_p9_what_operators_decide_holds_for_what_is_parked_in_front(
    verdict: str, first: int, settle: bool
) -> None:
    bench = stopped(settle=settle)
    said(bench, f"dead.{verdict}", group="a")
    bench.arrive("a11")
    finish(bench)
    assert numbers(bench)[1:] == list(range(first, 12))
    assert [reason for _, reason in bench.dead] == (["no stock"] if verdict == "skip" else [])
    bench.run(LINGER_MS + BLOCKED_MS)
    # Nobody confirms what goes to the dead queue here.
    assert verdict == "skip" or sorted(bench.deleted) == [FIRST, FIRST + 1]


def test_p9_until_there_is_a_parking_queue_for_it_operators_decide_at_once() -> None:
    clause("P-9a", "Until then it waits where it is")
    bench = stopped(settle=False)
    assert bench.inbound_unacked, "its queue is open, and it is not on its way there yet"
    said(bench, "dead.release", group="a")
    assert bench.latest("a1").attempt == 2
    bench.run(3 * LINGER_MS)
    assert bench.deleted == [FIRST + 1]


def test_p9_a_new_leader_parks_in_front_what_its_journal_says_has_stopped() -> None:
    bench = blocked(stops_failed=True)
    bench.fail("one", "a1", "no stock")
    bench.fail_over()
    bench.run(OVERTAKEN_MS)
    assert bench.in_parking() == [f"a{n}" for n in range(2, 11)]
    assert bench.inbound_unacked == {}
    assert after_forgetting(bench) == list(range(1, 11))


def test_p9_of_a_paused_group_what_comes_back_from_the_dead_is_parked_in_front() -> None:
    bench = blocked()
    said(bench, "groups.pause", group="a")
    bench.die("one")
    bench.run(OVERTAKEN_MS)
    assert bench.in_parking(FIRST + 1) == ["a1"]
    assert after_forgetting(bench) == list(range(1, 11))


def test_p9_what_nobody_takes_for_a_second_is_parked_in_front() -> None:
    clause("P-9", "or if no consumer has taken it for a second")
    bench = blocked()
    bench.die("two")
    bench.die("one")
    bench.run(OVERTAKEN_MS - 10)
    assert FIRST + 1 not in bench.ready
    bench.run(10 + OVERTAKEN_MS)
    assert bench.in_parking(FIRST + 1) == ["a1"]
    assert after_forgetting(bench) == list(range(1, 11))


def test_p9_what_somebody_takes_at_once_is_not_parked() -> None:
    bench = blocked()
    bench.die("one")
    bench.run(2 * OVERTAKEN_MS)
    assert bench.holder("a1") == "two"
    assert FIRST + 1 not in bench.ready


def test_p9_what_was_read_from_a_lower_number_is_parked_in_front_of_a_higher_one() -> None:
    """a2 was read from a parking queue, and is out while its followers are parked in another one."""
    clause("P-9a", "goes to a parking queue that is read before that of its group")
    bench = ParkingBench(park_after_ms=1_000)
    bench.join("one", prefetch=1)
    bench.arrive("a1", "a2")
    bench.run(1_000)
    bench.settle("one", "a1")
    bench.run()
    assert bench.holder("a2") == "one"
    said(bench, "groups.pause", group="a")
    bench.arrive("a3", "a4")
    bench.run(1_000)
    assert (bench.in_parking(), bench.in_parking(FIRST + 1)) == (["a2"], ["a3", "a4"])
    bench.die("one")
    bench.run(OVERTAKEN_MS)
    assert bench.in_parking(FIRST + 2) == ["a2"]
    assert after_forgetting(bench) == [2, 3, 4]


def test_p9b_what_is_at_a_consumer_that_can_not_answer_comes_behind() -> None:
    """RabbitMQ gives a1 back like any message. That the parked ones are newer only consumer one knows."""
    clause("P-9b", "the messages that it has may come behind those of their groups that are parked")
    bench = blocked()
    bench.fail_over(forget=True)
    bench.join("two", prefetch=1, n=2)
    bench.run(HEARTBEATS_MS)
    finish(bench)
    assert numbers(bench) == [1, *range(2, 11), 1]


def test_o3_what_is_parked_and_nobody_knows_whose_keeps_every_owner() -> None:
    """Redis has lost its last writes, not who owns group b: its message may be in the parking queue."""
    clause("O-3", "all parking queues have been read of which Redis has forgotten whose messages they hold")
    bench = ParkingBench(look_ahead=10, group_idle_timeout_ms=1_000)
    bench.join("one", prefetch=1)
    bench.arrive("b1")
    bench.join("two")
    bench.arrive(*(f"b{n}" for n in range(2, 11)))
    bench.run(BLOCKED_MS)
    bench.settle("one", "b1")
    bench.hold_reads = True
    bench.fail_over(older=[])
    bench.join("one", prefetch=1, n=2)
    bench.join("two", prefetch=1, n=2)
    bench.run(HEARTBEATS_MS + 5_000)
    assert bench.lane.state.groups[b"b"].owner is bench.lane.state.by_id["one"]
    bench.hold_reads = False
    bench.run()
    assert bench.holder("b2") == "one"


def test_p9_without_a_higher_number_it_waits_where_it_is_and_nothing_is_said() -> None:
    clause("P-9a", "If no parking queue with a higher number is free, the message waits where it is")
    bench = stopped(parking=1)
    bench.run(3 * OVERTAKEN_MS)
    assert not bench.lane.state.parking.at_bound
    assert "parking_bound_reached" not in [event for event, _ in bench.told]
    said(bench, "dead.release", group="a")
    finish(bench)
    assert numbers(bench)[1:] == list(range(1, 11))


def test_a_group_is_not_kept_for_what_expires_on_its_way_to_where_everything_goes() -> None:
    bench = blocked()
    bench.fail_over(forget=True)
    bench.arrive("b1", deadline_at_ms=bench.now_ms + 1_000)
    assert bench.lane.state.parking[FIRST].waiting
    bench.run(1_000)
    bench.join("one", n=2)
    bench.run(HEARTBEATS_MS)
    finish(bench)
    assert [reason for _, reason in bench.dead] == ["expired"]
    assert b"b" not in bench.lane.state.groups


def test_a_group_that_was_known_before_is_kept_when_nothing_is_parked_any_more() -> None:
    bench = blocked(4, name="sequenced")
    bench.settle("one", "a1")
    bench.fail_over(forget=True)
    bench.arrive("b1")
    bench.join("one", prefetch=1, n=2)
    bench.join("two", prefetch=1, n=2)
    bench.run(HEARTBEATS_MS)
    bench.settle("two", "b1")
    bench.run()
    assert b"b" not in bench.lane.state.groups
    bench.arrive("b2")
    bench.run()
    assert bench.holder("b2") == "two"
    bench.settle_each("one", (2, 3, 4))
    assert not bench.lane.state.parking.default_route
    bench.arrive("b3")
    assert "b3" not in bench.handed(), "b2 is in the hands of another one"


@pytest.mark.parametrize("known", range(19))
@pytest.mark.parametrize("turns", [0, 1, 2])
@pytest.mark.parametrize("confirmed", [False, True])
def test_where_redis_forgot_its_last_moves_their_copies_keep_their_order(
    known: int, turns: int, confirmed: bool
) -> None:
    """All copies are there, and were published `turns` times more, each time by another leader, at last with
    the broker's confirms. Of the last one's moves Redis remembers the first `known` records."""
    bench = blocked(confirmed=False)
    for _ in range(turns):
        bench.fail_over()
        bench.run()
    first = next(at for at in reversed(range(len(bench.journal))) if _is_begun(bench, at, "a2"))
    bench.hold_confirms = not confirmed
    bench.run()
    bench.fail_over(older=bench.journal[: first + known])
    bench.hold_confirms = False
    for consumer in ("one", "two"):
        bench.join(consumer, prefetch=1, n=2)
    bench.run(HEARTBEATS_MS)
    finish(bench)
    handed = numbers(bench)[1:]
    assert list(dict.fromkeys(handed)) == list(range(2, 11))
    assert not confirmed or handed == list(range(2, 11))


def _is_begun(bench: ParkingBench, at: int, name: str) -> bool:
    record = bench.journal[at]
    return isinstance(record, Relocating) and record.fingerprint.rstrip(b"\0") == name.encode()


def test_a_group_that_was_forgotten_and_made_anew_is_not_forgotten_for_the_former_one() -> None:
    """Both may have passed on to where everything goes; only one of them is the group."""
    bench = ParkingBench()
    bench.join("one")
    bench.arrive("a1")
    state = bench.lane.state
    state.forget_if_unused(Group(b"a"))
    assert b"a" in state.groups


def test_what_is_read_while_a_decision_is_to_be_carried_out_is_not_parked_again() -> None:
    """Else it went from parking queue to parking queue: the message that was decided about has expired."""
    bench = blocked(stops_failed=True, park_after_ms=100)
    bench.fail("one", "a1", "no stock")
    del bench.inbound_unacked[0, 1]
    bench.fail_over()
    said(bench, "dead.drop", group="a")
    bench.run(10 * OVERTAKEN_MS)
    finish(bench)
    assert numbers(bench)[1:] == list(range(2, 11))


def test_what_was_decided_about_is_looked_for_behind_a_full_look_ahead() -> None:
    """It came through another inbound queue than those that wait for it, and was parked behind them."""
    bench = ParkingBench(look_ahead=3, stops_failed=True, weights=(1, 1))
    bench.join("one", prefetch=1)
    bench.arrive("a1", inbound=1)
    bench.join("two")
    bench.arrive("a2", "a3", "a4")
    bench.run(BLOCKED_MS)
    bench.arrive("a5", "a6", "a7")
    bench.run()
    bench.fail("one", "a1", "no stock")
    bench.fail_over(older=[])
    for consumer in ("one", "two"):
        bench.join(consumer, prefetch=1, n=2)
    bench.run(HEARTBEATS_MS)
    (held,) = bench.lane.state.groups[b"a"].route
    assert bench.in_parking(held) == [f"a{n}" for n in range(2, 8)] + ["a1"]
    said(bench, "dead.drop", group="a")
    bench.run(HEARTBEATS_MS)
    finish(bench)
    # Redis has forgotten as what it was parked, so it is not known again, and handed over first.
    assert numbers(bench)[1:] == list(range(1, 8))


def test_after_a_loss_of_redis_nothing_is_said_to_be_lost() -> None:
    clause("P-10", "If Redis has forgotten how many there were, none are counted")
    bench = blocked()
    del bench.ready[FIRST][3]
    bench.fail_over(forget=True)
    for consumer in ("one", "two"):
        bench.join(consumer, prefetch=1, n=2)
    bench.run(HEARTBEATS_MS)
    for name in ("a1", "a2", "a3", "a4", "a6", "a7", "a8", "a9", "a10"):
        bench.settle(bench.holder(name), name)
        bench.run()
    assert "parking_ends" in [event for event, _ in bench.told]
    assert bench.lane.state.counters["parked_lost"] == 0


def test_p9_what_is_older_is_not_given_back_before_it() -> None:
    """a3 went directly to the consumer that had a2 from the parking queue, which a4 is in now."""
    clause("P-9a", "Until then it waits where it is")
    clause("G-1", "handed over again after its consumer's death comes before every later one of its group")
    bench = ParkingBench(park_after_ms=1_000, steal_after_ms=None)
    bench.join("one", prefetch=3)
    bench.arrive("a1", "b1", "b2")
    bench.arrive("a2")
    bench.run(1_100)
    bench.settle("one", "b1", "b2")
    bench.run()
    bench.arrive("a3", "a4")
    bench.run(1_100)
    assert numbers(bench) == [1, 2, 3]
    assert bench.in_parking() == ["a2", "a4"]
    bench.opens_parking, bench.hold_reads = False, True
    bench.die("one")
    bench.run(3 * OVERTAKEN_MS)
    bench.join("two", prefetch=2)
    bench.hold_reads = False
    finish(bench)
    assert numbers(bench) == [1, 2, 3, 1, 2, 3, 4]
