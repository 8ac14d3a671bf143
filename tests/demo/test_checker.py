"""The demo's checker: what the judge finds in the records, and what the table says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from dispatcher.demo.checker import CheckResult, TableFault, check, shares
from dispatcher.demo.table import ApplyOutcome
from dispatcher.demo.workload import RowChange, message_key, replayed
from dispatcher.judge.judge import BreachKind
from dispatcher.judge.record import UNGROUPED, HandlingRecord

#: Two groups, a and b, in turns: a has the even numbers.
CHANGES = [
    RowChange(b"ab"[n % 2 : n % 2 + 1], b"%d" % (n % 2), b"%d" % n if n > 1 else b"", b"%d" % (n + 2))
    for n in range(8)
]
EXPECTED = replayed(CHANGES)


def _handling(number: int, life: str, start: float, group_seq: int, epoch: int = 1) -> HandlingRecord:
    key = message_key(number, CHANGES[number].group)
    return HandlingRecord(
        life, key, number + 1, group_seq, epoch, 1, start, start + 19.5, outcome=ApplyOutcome.APPLIED
    )  # fmt: skip


def _handlings() -> list[HandlingRecord]:
    """What a flawless run records: a at consumer x, b at consumer y, one after the other."""
    return [_handling(n, "xy"[n % 2], 10.0 * n, n // 2 + 1) for n in range(len(CHANGES))]


def _check(
    handlings: list[HandlingRecord],
    killed: Mapping[str, float] | None = None,
    rows: dict[bytes, bytes] | None = None,
) -> CheckResult:
    return check(CHANGES, handlings, killed or {}, EXPECTED if rows is None else rows, EXPECTED)


def _only(checked: CheckResult, *kinds: BreachKind | TableFault) -> None:
    assert set(checked.found) == set(kinds)
    assert set(checked.examples) == set(kinds)
    assert checked.holds == (not kinds)


def test_a_flawless_run_holds() -> None:
    checked = _check(_handlings())
    _only(checked)
    assert (checked.messages, checked.groups, checked.groups_moved) == (8, 2, 0)


def test_the_order_in_which_records_are_read_does_not_matter() -> None:
    _only(_check(list(reversed(_handlings()))))


def test_a_message_that_nobody_handled() -> None:
    _only(_check(_handlings()[:-1]), BreachKind.LOST)


def test_messages_in_the_wrong_order() -> None:
    handlings = _handlings()
    handlings[2].message, handlings[4].message = handlings[4].message, handlings[2].message
    assert BreachKind.OUT_OF_ORDER in _check(handlings).found


def test_an_owner_changes_although_it_lives() -> None:
    handlings = _handlings()
    handlings[6] = replace(handlings[6], life="z", epoch=2, group_seq=1)
    _only(_check(handlings), BreachKind.OWNER_CHANGED)


@pytest.mark.parametrize(
    ("outcome", "fault"),
    [
        (ApplyOutcome.CONFLICT, TableFault.CONFLICT),
        (ApplyOutcome.STALE, TableFault.STALE),
        (ApplyOutcome.AGAIN, TableFault.UNRECORDED),
    ],
)
def test_what_the_table_says(outcome: ApplyOutcome, fault: TableFault) -> None:
    handlings = _handlings()
    handlings[2].outcome = outcome
    _only(_check(handlings), fault)


def test_a_row_that_is_not_as_expected() -> None:
    for rows, count in (({**EXPECTED, b"0": b"else"}, 1), ({**EXPECTED, b"stray": b"1"}, 1), ({}, 2)):
        checked = _check(_handlings(), rows=rows)
        assert checked.rows_differing == count
        assert not checked.holds
        assert checked.examples.keys() == {"rows"}


def test_what_a_killed_consumer_had_may_be_handed_over_again() -> None:
    """x dies at 45 with messages 2 (done, not settled) and 4 (begun); z gets both, then 6."""
    handlings = _handlings()
    handlings[4] = replace(handlings[4], end=None, outcome="")
    again = [
        replace(handlings[2], life="z", attempt=2, epoch=2, group_seq=1, start=50, end=51,
                outcome=ApplyOutcome.AGAIN),
        replace(handlings[4], life="z", attempt=2, epoch=2, group_seq=2, start=52, end=53,
                outcome=ApplyOutcome.APPLIED),
    ]  # fmt: skip
    handlings[6] = replace(handlings[6], life="z", epoch=2, group_seq=3)
    checked = _check([*handlings, *again], {"x": 45})
    _only(checked)
    assert (checked.handed_over_again, checked.begun_again, checked.groups_moved) == (2, 2, 1)
    assert set(_check([*handlings, *again]).found) >= {BreachKind.DOUBLED, BreachKind.OWNER_CHANGED}


def test_records_name_any_group() -> None:
    names = {message_key(0, group).group for group in (b"-", b"a b", b"new\nline", b"\xff", b"dir/file", b"")}
    assert len(names) == 6
    assert not any(set(name) & set(" \n") for name in names)
    assert [group for group in (b"", b"-") if message_key(0, group).group == UNGROUPED] == [b""]


def test_shares_end_when_a_consumer_has_no_choice_left() -> None:
    order = [0, 0, 0, 1, 0, 0, 0, 1, 1, 1, 1, 1]  # inbound queue of each message, as handled
    handlings = [HandlingRecord("x", message_key(n, b"g"), n, n, 1, 1, float(n)) for n in range(len(order))]
    high, low = shares(handlings, order, 2) or (0, 0)
    assert (high, low) == (6 / 7, 1 / 7)
    assert shares(handlings, [0] * len(order), 2) is None
