"""What `dispatcher observe` reckons, on flows whose outcome is known."""

from __future__ import annotations

import pytest

from dispatcher.cli.observation import UNGROUPED, Observation, SeenMessage
from dispatcher.cli.observe_model import compete, group


def test_one_consumer_breaks_no_order() -> None:
    at_s, groups = [n * 0.001 for n in range(500)], [n % 3 for n in range(500)]
    assert compete(at_s, groups, consumers=1, prefetch=50, work_s=0.1)[1:] == (0, 0)


def test_competing_consumers_work_on_a_group_at_once_where_its_messages_come_close() -> None:
    near = compete([0.0, 0.001], [0, 0], consumers=2, prefetch=1, work_s=10.0)
    far = compete([0.0, 1_000.0], [0, 0], consumers=2, prefetch=1, work_s=0.01)
    assert (near.followers, near.at_once) == (1, 1)
    assert far == (1, 0, 0)


def test_a_message_that_waits_in_a_prefetch_is_overtaken() -> None:
    # All is dealt out at once, each second message of a group to the other consumer: one of these is behind
    # the other as it happens.
    result = compete([0.0] * 300, [7, 8, 9] * 100, consumers=2, prefetch=300, work_s=1.0)
    assert result.followers == 297
    assert 0 < result.overtaken < result.at_once


def test_messages_of_no_group_are_in_no_order() -> None:
    assert compete([0.0] * 9, [UNGROUPED] * 9, consumers=3, prefetch=1, work_s=1.0) == (0, 0, 0)


def test_groups_in_work_are_those_that_have_messages() -> None:
    # Two groups, a message of each every second, half a second of work.
    at_s = [float(n // 2) for n in range(200)]
    result = group(at_s, [n % 2 for n in range(200)], work_s=0.5)
    assert result.busy_p99 == 2
    assert result.busy_mean == pytest.approx(1.0, rel=0.02)
    assert result.wait_p99_s == 0
    assert result.hottest_load == pytest.approx(0.5, rel=0.02)
    assert (result.consumers, result.prefetch) == (2, 4)


def test_a_group_that_no_consumer_can_keep_up_with_is_known_by_its_load() -> None:
    result = group([n * 0.1 for n in range(101)], [0] * 101, work_s=0.2)
    assert result.hottest_load == pytest.approx(2.0, rel=0.02)
    assert result.busy_p99 == result.consumers == 1
    assert result.wait_p99_s > 5


def test_numbers_and_times_tell_who_was_late() -> None:
    seen = Observation()
    rows = [("g", 1, 100, "a"), ("g", 2, 101, "a"), ("g", 5, 103, "b"), ("g", 3, 102, "a"),
            ("g", 5, 103, "b"), ("h", 9, 50, "b"), (None, 1, 1, "b")]  # fmt: skip
    for place, (name, number, stamp, producer) in enumerate(rows):
        seen.add(SeenMessage(float(place), name, 10, number, stamp, producer))
    facts = seen.as_json(7.0)
    assert facts["numbers"] == {
        "messages": 6, "late": 1, "repeated": 1, "gaps": 2,
        "late_by": [{"by": "a", "after": "b", "messages": 1}],
    }  # fmt: skip
    assert facts["timestamps"]["late"] == 1
    assert (facts["messages"], facts["groups"], facts["without_group"], facts["bytes"]) == (7, 2, 1, 70)
    assert facts["busiest"][0] == {"group": "g", "messages": 5, "share": round(5 / 7, 4)}
