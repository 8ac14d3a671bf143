"""Contract section 6, rule 4: a copy that isn't the successor of its group's last one is refused."""

from __future__ import annotations

import pytest

from dispatcher.client.group_order import GroupOrder


def test_numbers_count_from_one_within_an_epoch() -> None:
    order = GroupOrder()
    assert [order.admit(b"g", 7, number) for number in (1, 2, 3)] == [True, True, True]


@pytest.mark.parametrize("number", [2, 9])
def test_a_new_group_must_begin_with_one(number: int) -> None:
    assert not GroupOrder().admit(b"g", 7, number)


@pytest.mark.parametrize(("epoch", "number"), [(7, 1), (7, 2), (7, 4), (6, 1), (6, 3), (8, 2), (8, 3)])
def test_what_does_not_follow_is_refused_and_changes_nothing(epoch: int, number: int) -> None:
    order = GroupOrder()
    order.admit(b"g", 7, 1)
    order.admit(b"g", 7, 2)
    assert not order.admit(b"g", epoch, number)
    assert order.admit(b"g", 7, 3)


def test_a_later_epoch_begins_again_with_one() -> None:
    order = GroupOrder()
    order.admit(b"g", 7, 1)
    assert order.admit(b"g", 9, 1)
    assert order.admit(b"g", 9, 2)


def test_groups_do_not_touch_each_other() -> None:
    order = GroupOrder()
    order.admit(b"a", 7, 1)
    assert order.admit(b"b", 8, 1)
    assert order.admit(b"a", 7, 2)


def test_memory_is_bounded_and_only_the_forgotten_are_taken_on_trust() -> None:
    order = GroupOrder(limit=2)
    for epoch, group in enumerate((b"a", b"b", b"c"), start=1):
        order.admit(group, epoch, 1)
    assert len(order) == 2
    assert order.admit(b"a", 1, 2), "forgotten: can't be checked"
    assert not order.admit(b"new", 9, 2), "its epoch is above all forgotten ones, so it was never seen"


def test_a_group_that_goes_on_getting_messages_is_not_forgotten() -> None:
    order = GroupOrder(limit=2)
    order.admit(b"a", 1, 1)
    order.admit(b"b", 2, 1)
    order.admit(b"a", 1, 2)
    order.admit(b"c", 3, 1)  # forgets b
    assert not order.admit(b"a", 1, 4)
