"""The checker of records without order finds what is there to find."""

from __future__ import annotations

from dispatcher.judge.judge import Story
from dispatcher.judge.record import UNGROUPED, HandlingRecord, MessageKey
from tests.recovery.unordered import violations_without_order


def _handling(
    number: int, start: float, end: float | None, life: str = "a", **what: object
) -> HandlingRecord:
    message = MessageKey("in", str(what.get("group", "g")), 0, number)
    attempt = 2 if what.get("again") else 1
    return HandlingRecord(life, message, number, number, 1, attempt, start, end, None, end is not None)


def _found(record: list[HandlingRecord], most: int, **killed_at: float) -> set[str]:
    story = Story(frozenset(handling.message for handling in record), killed_at, {}, False)
    return {line.partition(":")[0] for line in violations_without_order(record, story, most)}


def test_any_order_side_by_side_is_good() -> None:
    record = [_handling(2, 1.0, 3.0), _handling(1, 2.0, 4.0, "b"), _handling(3, 3.5, 5.0)]
    assert not _found(record, 2)


def test_one_more_than_the_limit_is_found() -> None:
    record = [_handling(1, 1.0, 3.0), _handling(2, 2.0, 4.0, "b"), _handling(3, 2.5, 5.0)]
    assert _found(record, 2) == {"too many"}


def test_each_group_has_its_own_limit_and_what_has_no_group_none() -> None:
    one, other = _handling(1, 1.0, 3.0), _handling(2, 2.0, 4.0, group="h")
    alone = [_handling(n, 2.5, 5.0, group=UNGROUPED) for n in (3, 4)]
    assert not _found([one, other, *alone], 1)


def test_what_the_dead_had_counts_no_more() -> None:
    record = [_handling(1, 1.0, None), _handling(2, 2.0, 3.0, "b"), _handling(1, 4.0, 5.0, "b", again=True)]
    assert _found(record, 1) == {"too many", "doubled"}
    assert not _found(record, 1, a=1.5)


def test_a_loss_is_found() -> None:
    assert _found([_handling(1, 1.0, None)], 1, a=1.5) == {"lost"}
