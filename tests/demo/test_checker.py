"""Every kind of violation is found, and nothing else is called one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from dispatcher.demo.checker import CheckResult, check, shares
from dispatcher.demo.records import HandlingRecord
from dispatcher.demo.table import ApplyOutcome
from dispatcher.demo.workload import RowChange, replayed

#: Two groups, a and b, in turns: a has the even numbers.
CHANGES = [
    RowChange(b"ab"[n % 2 : n % 2 + 1], b"%d" % (n % 2), b"%d" % n if n > 1 else b"", b"%d" % (n + 2))
    for n in range(8)
]
EXPECTED = replayed(CHANGES)


def _handlings() -> list[HandlingRecord]:
    """What a flawless run records: a at consumer x, b at consumer y, one after the other."""
    return [
        HandlingRecord("xy"[n % 2], n, change.group, n + 1, 1, 1, 10 * n, 10 * n + 5, ApplyOutcome.APPLIED)
        for n, change in enumerate(CHANGES)
    ]


def _check(
    handlings: list[HandlingRecord],
    killed: Mapping[str, int] | None = None,
    rows: dict[bytes, bytes] | None = None,
) -> CheckResult:
    return check(CHANGES, handlings, killed or {}, EXPECTED if rows is None else rows, EXPECTED)


def _only(checked: CheckResult, **counts: int) -> None:
    kinds = ("lost", "doubled", "out_of_order", "overlaps", "differences")
    assert {kind: getattr(checked, kind) for kind in kinds if getattr(checked, kind)} == counts
    assert checked.holds == (not counts)
    assert set(checked.examples) == set(counts)


def test_a_flawless_run_holds() -> None:
    checked = _check(_handlings())
    _only(checked)
    assert (checked.messages, checked.groups, checked.groups_moved) == (8, 2, 0)


def test_the_order_in_which_records_are_read_does_not_matter() -> None:
    _only(_check(list(reversed(_handlings()))))


def test_a_lost_message_at_the_end_of_a_group() -> None:
    _only(_check(_handlings()[:-1]), lost=1)


def test_a_lost_message_in_the_middle_is_also_a_gap() -> None:
    _only(_check([h for h in _handlings() if h.number != 2]), lost=1, out_of_order=1)


def test_a_message_that_was_begun_and_never_ended_is_lost() -> None:
    handlings = _handlings()
    handlings[-1] = replace(handlings[-1], ended_ns=None, outcome=None)
    _only(_check(handlings), lost=1)


def test_a_doubled_message() -> None:
    handlings = _handlings()
    handlings.append(replace(handlings[6], seq=99, begun_ns=100, ended_ns=105, outcome=ApplyOutcome.AGAIN))
    _only(_check(handlings), doubled=1)


def test_a_raised_attempt_excuses_nothing_while_the_consumer_lives() -> None:
    handlings = _handlings()
    handlings.append(replace(handlings[6], attempt=2, begun_ns=100, ended_ns=105))
    _only(_check(handlings), doubled=1)


def test_messages_in_the_wrong_order() -> None:
    handlings = _handlings()
    handlings[2].begun_ns, handlings[4].begun_ns = handlings[4].begun_ns, handlings[2].begun_ns
    handlings[2].ended_ns, handlings[4].ended_ns = handlings[4].ended_ns, handlings[2].ended_ns
    assert _check(handlings).out_of_order >= 1


def test_a_change_that_the_table_refused() -> None:
    handlings = _handlings()
    handlings[2].outcome = ApplyOutcome.CONFLICT
    _only(_check(handlings), out_of_order=1)


def test_two_messages_of_a_group_at_a_time() -> None:
    handlings = _handlings()
    handlings[2] = replace(handlings[2], consumer="y", ended_ns=handlings[4].begun_ns + 1)
    _only(_check(handlings), overlaps=1)


def test_overlaps_within_one_consumer_count_too() -> None:
    handlings = _handlings()
    handlings[2].ended_ns = handlings[4].begun_ns + 1
    _only(_check(handlings), overlaps=1)


@pytest.mark.parametrize("outcome", [ApplyOutcome.STALE, ApplyOutcome.APPLIED])
def test_a_write_with_an_old_epoch(outcome: ApplyOutcome) -> None:
    handlings = _handlings()
    handlings[2].epoch = 2
    handlings[4] = replace(handlings[4], outcome=outcome)
    handlings[4].epoch = 2 if outcome is ApplyOutcome.STALE else 1
    handlings[6].epoch = 2
    _only(_check(handlings), overlaps=1)


def test_a_row_that_is_not_as_expected() -> None:
    _only(_check(_handlings(), rows={**EXPECTED, b"0": b"else"}), differences=1)
    _only(_check(_handlings(), rows={**EXPECTED, b"stray": b"1"}), differences=1)
    _only(_check(_handlings(), rows={}), differences=2)


def test_what_a_killed_consumer_had_may_be_handed_over_again() -> None:
    handlings = _handlings()
    # x dies at 45 with messages 2 (done, not settled) and 4 (begun); z gets both, then 6.
    handlings[4] = replace(handlings[4], ended_ns=None, outcome=None)
    again = [
        replace(
            handlings[2],
            consumer="z",
            attempt=2,
            epoch=2,
            begun_ns=50,
            ended_ns=51,
            outcome=ApplyOutcome.AGAIN,
        ),
        replace(
            handlings[4],
            consumer="z",
            attempt=2,
            epoch=2,
            begun_ns=52,
            ended_ns=53,
            outcome=ApplyOutcome.APPLIED,
        ),
    ]
    handlings[6] = replace(handlings[6], consumer="z", epoch=2)
    checked = _check([*handlings, *again], {"x": 45})
    _only(checked)
    assert (checked.handed_over_again, checked.begun_again, checked.groups_moved) == (2, 2, 1)


def test_a_message_of_the_dead_must_come_before_newer_ones() -> None:
    handlings = _handlings()
    handlings[4] = replace(handlings[4], ended_ns=None, outcome=None)
    handlings[6] = replace(handlings[6], consumer="z", epoch=2)
    late = replace(
        handlings[4], consumer="z", attempt=2, epoch=2, begun_ns=70, ended_ns=71, outcome=ApplyOutcome.APPLIED
    )
    _only(_check([*handlings, late], {"x": 45}), out_of_order=1)


def test_the_next_owner_must_not_begin_before_the_dead_has_ended() -> None:
    handlings = _handlings()
    handlings[4] = replace(handlings[4], ended_ns=None, outcome=None)
    again = replace(
        handlings[4], consumer="z", attempt=2, epoch=2, begun_ns=44, ended_ns=46, outcome=ApplyOutcome.APPLIED
    )
    handlings[6] = replace(handlings[6], consumer="z", epoch=2)
    _only(_check([*handlings, again], {"x": 45}), overlaps=1)


def test_a_message_that_its_consumer_knew_to_be_taken_back_may_come_again() -> None:
    handlings = _handlings()
    handlings[4] = replace(handlings[4], outcome=ApplyOutcome.LOST)
    again = replace(
        handlings[4], consumer="z", attempt=2, epoch=2, begun_ns=50, ended_ns=51, outcome=ApplyOutcome.APPLIED
    )
    handlings[6] = replace(handlings[6], consumer="z", epoch=2)
    _only(_check([*handlings, again]))


def test_an_applied_change_that_nobody_recorded() -> None:
    handlings = _handlings()
    handlings[4].outcome = ApplyOutcome.AGAIN
    _only(_check(handlings), doubled=1)


def test_shares_end_when_a_consumer_has_no_choice_left() -> None:
    order = [0, 0, 0, 1, 0, 0, 0, 1, 1, 1, 1, 1]  # inbound queue of each message, as handled
    handlings = [HandlingRecord("x", n, b"g", n, 1, 1, n, n, ApplyOutcome.APPLIED) for n in range(len(order))]
    high, low = shares(handlings, order, 2) or (0, 0)
    assert (high, low) == (6 / 7, 1 / 7)
    assert shares(handlings, [0] * len(order), 2) is None
