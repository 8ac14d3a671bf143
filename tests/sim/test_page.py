"""docs/simulation.md names every fault and every planted bug."""

from __future__ import annotations

import pytest

from dispatcher.sim.faults import KINDS
from tests.sim.page import PAGE, page
from tests.sim.plants import PLANTS

#: What anybody would try first.
OBVIOUS = {
    "inbound_acked_before_the_commit", "copies_published_before_the_commit", "take_back_not_committed",
    "redelivered_flag_ignored", "matched_by_message_id_alone", "numbers_go_on_from_what_redis_has",
    "lane_epoch_not_checked", "settle_of_a_stale_incarnation_obeyed", "dispatched_again_behind_newer_ones",
    "batch_released_one_early", "a_death_counted_for_every_neighbour", "blocked_queues_earn_credit",
}  # fmt: skip


def test_the_tables_are_up_to_date() -> None:
    text = PAGE.read_text()
    assert page(text) == text, "run: python -m tests.sim.page"


@pytest.mark.parametrize("name", [*KINDS, *PLANTS])
def test_each_has_a_row(name: str) -> None:
    assert f"`{name}` |" in PAGE.read_text()


def test_every_fault_and_every_bug_says_what_it_is() -> None:
    assert all(kind.strike.__doc__ for kind in KINDS.values())
    assert all(planted.bug and planted.checkers for planted in PLANTS.values())
    assert set(PLANTS) >= OBVIOUS
