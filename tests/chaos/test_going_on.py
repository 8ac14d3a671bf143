"""What was done to nodes is held against how soon each lane goes on, also in a record that was doctored."""

from __future__ import annotations

import math
from collections.abc import Collection

import pytest

from dispatcher.judge.record import HandlingRecord, MessageKey
from tests.chaos.going_on import (
    ALL,
    FAIL_OVER,
    GIVEN_UP_S,
    PARTS,
    Limits,
    Settled,
    excuses,
    settled,
    stalls,
)
from tests.chaos.parts import NodeFault

KILL = NodeFault("kill_node", 1, 10.0, 22.0, 4.0)
LIMITS = Limits(stall_s=15.0, after_stop_s=10.0)
ENDED = 1_000.0


def late(
    *of_lane: Settled, fault: NodeFault = KILL, hindered: tuple[tuple[float, float], ...] = (),
    until: float = ENDED, waits: Collection[str] = (),
) -> bool:  # fmt: skip
    """Whether that is a violation, after one fault; what was sent later is settled with the last."""
    later = [Settled(fault.until + 0.05, max(of_lane, key=lambda one: one.at).at)] if of_lane else []
    found = stalls([fault], [*of_lane, *later], list(hindered), LIMITS, until, waits=waits)
    return any(one.violation() for one in found)


def test_a_lane_that_goes_on_in_time_is_well() -> None:
    assert not late(Settled(10.1, 24.9))
    assert late(Settled(10.1, 25.1))
    assert late()


def test_what_was_sent_before_the_fault_does_not_count() -> None:
    assert late(Settled(9.9, 10.5), Settled(10.1, 26.0))


@pytest.mark.parametrize("name", ["stop_node", "stop_app", "upgrade_node"])
def test_a_clean_stop_has_less_time(name: str) -> None:
    stop = KILL._replace(name=name)
    assert not late(Settled(10.1, 19.9), fault=stop)
    assert late(Settled(10.1, 20.1), fault=stop)


def test_nobody_can_do_anything_about_a_node_that_stands_still_before_it_is_given_up() -> None:
    still = KILL._replace(name="freeze_node", lasted_s=12.0)
    assert not late(Settled(10.1, 24.9 + GIVEN_UP_S), fault=still)
    assert late(Settled(10.1, 25.1 + GIVEN_UP_S), fault=still)
    assert late(Settled(10.1, 28.1), fault=still._replace(lasted_s=3.0))  # it went on by itself


def test_what_else_is_done_to_a_lane_gives_it_its_time_once_more() -> None:
    killed_dispatcher = (20.0, 23.0)
    assert not late(Settled(10.1, 37.9), hindered=(killed_dispatcher,))
    assert late(Settled(10.1, 38.1), hindered=(killed_dispatcher,))
    assert not late(Settled(10.1, 51.9), hindered=(killed_dispatcher, (36.0, 37.0)))
    assert late(Settled(10.1, 26.0), hindered=((8.0, 9.9), (25.5, 25.6)))  # over, and too late


def test_a_lane_whose_queues_are_on_one_node_has_its_time_when_that_is_back() -> None:
    assert not late(Settled(10.1, 36.9), waits=ALL)
    assert late(Settled(10.1, 37.1), waits=ALL)


def test_such_a_lane_has_nothing_on_a_node_that_is_lost_for_good() -> None:
    for name in ("lose_node", "replace_node"):
        lost = KILL._replace(name=name)
        assert not late(Settled(10.1, 24.9), fault=lost, waits=ALL)
        assert late(Settled(10.1, 25.1), fault=lost, waits=ALL)


def test_a_lane_may_be_led_through_a_node_that_goes_on_apart() -> None:
    assert not late(Settled(10.1, 36.9), fault=KILL._replace(name="part_node"), waits=PARTS)
    assert late(Settled(10.1, 36.9), waits=PARTS)


def test_a_lane_goes_on_soon_once_another_redis_is_the_primary() -> None:
    promoted = NodeFault(FAIL_OVER, 0, 10.0, 10.0, 0.0)
    assert not late(Settled(10.1, 14.9), fault=promoted)
    assert late(Settled(10.1, 15.1), fault=promoted)
    assert not late(Settled(10.1, 24.9 + 5.0), fault=promoted, hindered=(excuses(KILL, LIMITS),))
    assert late(Settled(10.1, 25.1 + 5.0), fault=promoted, hindered=(excuses(KILL, LIMITS),))
    assert excuses(KILL, LIMITS, waits=ALL) == (10.0, 37.0)


def test_nobody_knows_what_the_end_of_the_producers_cut_off() -> None:
    assert not late(until=24.9)
    assert late(until=25.0)


def test_a_settle_is_what_rabbitmq_confirmed_or_what_a_reader_acked() -> None:
    number = MessageKey("q", "g", 0, 1, "p")
    begun = HandlingRecord("a", number, 1, 1, 1, 1, 2.0, end=3.0)
    confirmed = HandlingRecord("a", number, 1, 1, 1, 1, 2.0, end=3.0, confirmed=True, confirmed_at=4.0)
    sent = {number: 1.0}
    assert settled([begun], sent, acked=False) == []
    assert settled([confirmed], sent, acked=False) == [Settled(1.0, 4.0)]
    assert settled([begun], sent, acked=True) == [Settled(1.0, 3.0)]
    assert settled([confirmed], {}, acked=False) == []
    assert Limits().of(KILL) == 15.0
    assert math.isinf(stalls([KILL], [], [], LIMITS, ENDED)[0].at)


def test_a_lane_that_stands_still_later_is_found() -> None:
    """A node that is stopped works on for a while, and one that comes back may disturb a lane."""
    early = Settled(10.1, 10.2)
    assert not late(early, Settled(10.3, 25.0))
    assert late(early, Settled(10.3, 25.3))
    assert not late(early, Settled(21.0, 21.1), Settled(21.5, 36.0))
    assert late(early, Settled(21.0, 21.1), Settled(21.5, 36.1))
    record = [early, Settled(11.0, 21.0), Settled(21.5, 21.6), Settled(22.0, 22.1)]
    (worst,) = stalls([KILL], record, [], LIMITS, ENDED)
    assert (worst.since, round(worst.lasted_s, 1)) == (10.1, 10.9)


def test_a_lane_whose_queues_are_on_one_node_waits_for_that_of_a_later_fault_too() -> None:
    """The next node is stopped 3 s after all were back, and is away for 35 s."""
    stop = NodeFault("stop_node", 0, 25.0, 60.0, 30.0)

    def found(at: float, *, waits: Collection[str]) -> list[bool]:
        record = [Settled(10.05, 10.1), Settled(61.0, at)]
        both = stalls([KILL, stop], record, [], LIMITS, ENDED, waits=waits)
        return [one.violation() is not None for one in both]

    assert found(69.9, waits=ALL) == [False, False]
    assert found(74.9, waits=ALL) == [False, True], "the stop has a limit of its own"
    assert found(75.1, waits=ALL) == [True, True]
    assert found(69.9, waits=()) == [True, True], "other lanes have no queue there"


def test_the_next_upgrade_may_begin_when_a_lane_is_led_again_and_has_settled_nothing() -> None:
    first, second = (
        NodeFault("upgrade_node", n, since, since + 3.0, 2.0) for n, since in ((0, 10.0), (1, 19.0))
    )

    def found(at: float) -> list[bool]:
        both = stalls([first, second], [Settled(19.1, at), Settled(22.1, at)], [], LIMITS, ENDED)
        return [one.violation() is not None for one in both]

    assert found(28.9) == [False, False]
    assert found(29.1) == [True, True]
    kill = second._replace(name="kill_node")
    late = stalls([first, kill], [Settled(19.1, 28.9), Settled(22.1, 28.9)], [], LIMITS, ENDED)
    assert [one.violation() is not None for one in late] == [True, False]
