"""The verdict over a hand-over lane finds what is planted in a record, and excuses what X-7 does."""

from __future__ import annotations

import math

import pytest

from dispatcher.judge.judge import Forgotten
from dispatcher.judge.record import HandlingRecord, MessageKey
from dispatcher.settings import LaneSettings
from tests.chaos.handed import HandedBooks, Life, handed_violations
from tests.chaos.plan import HANDOVER, Plan

QUEUE = "handed.high"
#: Two readers; the second one's connection is there all the time.
A, B = "h0-1/r1", "h1-1/r1"


def numbered(number: int) -> MessageKey:
    return MessageKey(QUEUE, "g", 0, number, "p0-1")


def handled(
    number: int, at: float, life: str = A, *, seq: int = 0, attempt: int = 1, end: bool = True,
    failed: bool = False,
) -> HandlingRecord:  # fmt: skip
    return HandlingRecord(
        life, numbered(number), seq or number, number, 1, attempt, at, at + 0.4 if end else None,
        failed=failed,
    )  # fmt: skip


class Told:
    """A lane of which three messages were published, and what is said of it."""

    def __init__(self) -> None:
        self.lives = {A: Life("h0", 0.0, math.inf), B: Life("h1", 0.0, math.inf)}
        self.facts: dict[str, object] = {}

    def a_ends(self, at: float) -> None:
        self.lives[A] = Life("h0", 0.0, at)

    def found(self, *record: HandlingRecord) -> set[str]:
        """The first words of what is wrong."""
        published = frozenset(map(numbered, (1, 2, 3)))
        books = HandedBooks(
            sorted(record, key=lambda handling: handling.start), self.lives, dict.fromkeys(published, 0.1),
            published, frozenset(), frozenset(), frozenset(), [], [], [], [],
        )  # fmt: skip
        found = handed_violations(books._replace(**self.facts))  # type: ignore[arg-type]
        return {line.partition(":")[0] for line in found}


@pytest.fixture
def told() -> Told:
    return Told()


ONE, TWO, THREE = handled(1, 1.0), handled(2, 2.0), handled(3, 3.0)


def test_nothing_is_wrong_with_a_good_record(told: Told) -> None:
    assert told.found(ONE, TWO, THREE) == set()


def test_a_loss_is_found(told: Told) -> None:
    assert told.found(ONE, TWO) == {"lost"}
    assert told.found(ONE, TWO, handled(3, 3.0, end=False)) == {"lost"}


def test_what_ended_after_its_connection_can_not_have_been_acked(told: Told) -> None:
    told.a_ends(3.2)
    assert told.found(ONE, TWO, THREE) == {"lost"}
    assert told.found(ONE, TWO, THREE, handled(3, 3.5, B, seq=1, attempt=2)) == set()


def test_a_queue_may_have_taken_acks_at_a_node_that_others_have_given_up(told: Told) -> None:
    """The rest of the cluster gave it up at 2.9, and its reader's connection ended at 3.5."""
    told.lives[A] = Life("h0", 0.0, 2.9, served_until=3.5)
    assert told.found(ONE, TWO, THREE) == set()
    assert told.found(ONE, TWO, THREE, handled(3, 3.1, B, attempt=2)) == set()
    told.lives[A] = Life("h0", 0.0, 2.9, served_until=3.3)
    assert told.found(ONE, TWO, THREE) == {"lost"}


def test_what_was_begun_at_a_node_that_others_have_given_up_has_its_place(told: Told) -> None:
    """Its ack counts, so nobody begins it again."""
    told.lives[A] = Life("h0", 0.0, 1.9, served_until=2.5)
    assert told.found(ONE, TWO, handled(3, 3.0, B)) == set()
    assert told.found(ONE, handled(3, 2.0, B), handled(2, 2.1)) == {"out of order"}


def test_a_queue_may_have_taken_rejects_at_a_node_that_others_have_given_up(told: Told) -> None:
    failed = handled(3, 3.0, failed=True)
    told.facts["dead"] = frozenset([numbered(3)])
    told.lives[A] = Life("h0", 0.0, 2.9, served_until=3.5)
    assert told.found(ONE, TWO, failed) == set()
    told.lives[A] = Life("h0", 0.0, 2.9, served_until=3.3)  # it ends at 3.4
    assert told.found(ONE, TWO, failed) == {"wrongly dead"}


def test_who_remembers_acks_what_it_has_done_when_it_comes_again(told: Told) -> None:
    told.lives[A] = Life("h0", 0.0, 2.9, remembers=True)
    assert told.found(ONE, TWO, THREE) == set()
    assert told.found(ONE, TWO, handled(3, 3.0, end=False)) == {"lost"}


def test_what_was_begun_after_its_connection_counts_as_nothing(told: Told) -> None:
    told.a_ends(2.9)
    assert told.found(ONE, TWO, THREE) == {"lost"}
    assert told.found(ONE, TWO, handled(3, 2.95, B, attempt=2), THREE) == set()


def test_what_was_rejected_must_be_dead_and_nothing_else(told: Told) -> None:
    failed = handled(3, 3.0, failed=True)
    assert told.found(ONE, TWO, failed) == {"lost"}
    told.facts["dead"] = frozenset([numbered(3)])
    assert told.found(ONE, TWO, failed) == set()
    assert told.found(ONE, TWO, THREE) == {"wrongly dead"}


@pytest.mark.parametrize("away", ["killed", "hurt"])
def test_what_was_just_rejected_a_killed_broker_or_node_may_lose(told: Told, away: str) -> None:
    told.facts[away] = [(4.0, 5.0)]
    assert told.found(ONE, TWO, handled(3, 3.0, failed=True)) == set()
    told.facts[away] = [(14.0, 15.0)]
    assert told.found(ONE, TWO, handled(3, 3.0, failed=True)) == {"lost"}


def test_a_disorder_is_found(told: Told) -> None:
    assert told.found(ONE, handled(3, 2.0), handled(2, 3.0)) == {"out of order"}
    assert told.found(ONE, handled(3, 2.0, B), handled(2, 3.0)) == {"out of order"}


def test_only_the_first_time_has_an_order(told: Told) -> None:
    """What its reader lost comes again, also behind what another has begun."""
    told.a_ends(2.9)
    again = handled(2, 4.0, B, attempt=2)
    assert told.found(ONE, handled(2, 2.0, end=False), handled(3, 3.0, B), again) == set()


def test_a_killed_broker_may_keep_a_later_one_and_lose_an_earlier_one(told: Told) -> None:
    told.facts["killed"] = [(1.5, 1.8)]
    assert told.found(ONE, handled(3, 2.0), handled(2, 3.0)) == set()
    told.facts["killed"] = [(0.0, 0.05)]  # all of it came after that
    assert told.found(ONE, handled(3, 2.0), handled(2, 3.0)) == {"out of order"}
    told.facts |= {"killed": [], "stopped": [(1.5, 1.8)]}
    assert told.found(ONE, handled(3, 2.0), handled(2, 3.0)) == {"out of order"}


def test_where_everything_was_forgotten_groups_are_given_out_anew(told: Told) -> None:
    told.facts["forgotten"] = (Forgotten(1.5, 1.8, 1.8),)
    assert told.found(ONE, handled(3, 2.0, B), handled(2, 3.0)) == set()
    told.facts["forgotten"] = (Forgotten(-1.0, 0.05, 0.05),)
    assert told.found(ONE, handled(3, 2.0, B), handled(2, 3.0)) == {"out of order"}


def test_a_dispatcher_that_dies_while_it_reads_a_queue_back_may_leave_two_at_work(told: Told) -> None:
    """`h0` was away when a leadership ended, and came back before the next one."""
    told.a_ends(1.45)
    told.lives["h0-1/r2"] = Life("h0", 1.8, math.inf)
    told.facts["take_overs"] = [1.6]
    back = handled(2, 3.0, "h0-1/r2")
    assert told.found(ONE, handled(3, 2.0, B), back) == set()
    told.facts["take_overs"] = [1.2]  # `h0` was there
    assert told.found(ONE, handled(3, 2.0, B), back) == {"out of order"}
    told.facts["take_overs"] = [1.6]
    assert told.found(ONE, handled(3, 2.0, "h0-1/r2"), handled(2, 3.0, B)) == {"out of order"}


def test_a_duplicate_is_found(told: Told) -> None:
    assert told.found(ONE, TWO, handled(2, 2.6), THREE) == {"doubled"}
    assert told.found(ONE, TWO, handled(2, 2.6, B, seq=9, attempt=2), THREE) == {"doubled"}


def test_a_duplicate_is_excused_by_trouble_since_it_was_sent(told: Told) -> None:
    again = (ONE, TWO, handled(2, 2.6), THREE)
    for trouble in ({"take_overs": [1.5]}, {"stopped": [(1.5, 1.6)]}, {"killed": [(1.5, 1.6)]}):
        told.facts = trouble
        assert told.found(*again) == set()
    for before in ({"take_overs": [0.05]}, {"stopped": [(0.0, 0.05)]}, {"take_overs": [2.7]}):
        told.facts = before
        assert told.found(*again) == {"doubled"}


def test_one_that_goes_to_another_has_a_higher_attempt(told: Told) -> None:
    told.a_ends(2.9)
    assert told.found(ONE, TWO, handled(2, 3.0, B, seq=7, attempt=2), handled(3, 3.5, B, attempt=2)) == set()
    assert told.found(ONE, TWO, handled(2, 3.0, B, seq=7), handled(3, 3.5, B, attempt=2)) == {"doubled"}


def test_what_is_read_back_when_a_leader_dies_may_go_on_twice(told: Told) -> None:
    told.a_ends(1.8)
    first, again = handled(2, 2.0, B, seq=7, attempt=2), handled(2, 2.5, B, seq=9, attempt=2)
    told.facts["take_overs"] = [1.9]
    assert told.found(ONE, first, again, handled(3, 3.0, B, attempt=2)) == set()
    told.facts["take_overs"] = [2.9]
    assert told.found(ONE, first, again, handled(3, 3.0, B, attempt=2)) == {"doubled"}
    told.facts["take_overs"] = [1.9]
    plain, other = handled(2, 2.0, B, seq=7), handled(2, 2.5, B, seq=9)
    assert told.found(ONE, plain, other, handled(3, 3.0, B, attempt=2)) == {"doubled"}


def test_what_an_operator_took_needs_no_handling(told: Told) -> None:
    told.facts["gone"] = frozenset([numbered(2)])
    assert told.found(ONE, THREE) == set()


def test_every_plan_has_a_lane_that_its_configuration_allows() -> None:
    prefetches = set()
    for seed in range(30):
        keys = Plan(seed, 10.0).settings.lane_keys(HANDOVER)
        LaneSettings.model_validate({"name": "handed", "inbound": [{"queue": "in"}], **keys})
        prefetches.add(keys["consumers"][0]["prefetch"])
    assert len(prefetches) > 1
