"""The group with most of the traffic is found in little memory, whatever the number of groups."""

from __future__ import annotations

import random

import pytest

from dispatcher.core.views.hot_group import WINDOW_MS, GroupShare, HotGroup


def test_nothing_is_busy_before_anything_came() -> None:
    busiest = HotGroup(0)
    busiest.count([None])
    assert busiest.first(0) is None


def test_messages_without_a_group_are_part_of_all() -> None:
    busiest = HotGroup(0)
    busiest.count([b"a", None, b"a", b"b"])
    assert busiest.first(0) == GroupShare(b"a", 0.5)


@pytest.mark.parametrize("part", [0.02, 0.3])
def test_among_a_hundred_thousand_groups_its_share_is_right_to_a_128th(part: float) -> None:
    busiest, chance, hot = HotGroup(0), random.Random(7), 0
    for number in range(100_000):
        is_hot = chance.random() < part
        hot += is_hot
        busiest.count([b"hot" if is_hot else b"%d" % number])
    first = busiest.first(0)
    assert first is not None
    assert first.key == b"hot"
    assert hot / 100_000 - 1 / 128 <= first.share <= hot / 100_000
    assert len(busiest._counts) <= 512


def test_what_is_long_ago_is_forgotten() -> None:
    busiest = HotGroup(0)
    busiest.count([b"old"] * 10)
    busiest.pass_time(WINDOW_MS // 2)
    busiest.count([b"new"])
    assert busiest.first(WINDOW_MS // 2) == GroupShare(b"old", 10 / 11)
    assert busiest.first(WINDOW_MS) == GroupShare(b"new", 1.0)
    assert busiest.first(10 * WINDOW_MS) is None


def test_who_looks_changes_nothing() -> None:
    """What was counted stays in its half minute, whenever somebody looks."""
    looked, unseen = HotGroup(0), HotGroup(0)
    for busiest in (looked, unseen):
        busiest.count([b"a"])
        busiest.pass_time(WINDOW_MS // 2)
        busiest.count([b"b"])
    assert looked.first(10 * WINDOW_MS) is None
    for now_ms in (WINDOW_MS // 2, WINDOW_MS):
        assert looked.first(now_ms) == unseen.first(now_ms)
