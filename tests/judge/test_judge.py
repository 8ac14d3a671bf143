"""The judge finds what it is there to find: each test is a record with one thing wrong, or nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dispatcher.judge.judge import Breach, BreachKind, Forgotten, Story, say_number, violations
from dispatcher.judge.record import HandlingRecord, MessageKey


def _message(number: int, group: str = "g") -> MessageKey:
    return MessageKey("in", group, 0, number)


def _handling(number: int, start: float, life: str = "a", **changes: object) -> HandlingRecord:
    """MessageKey n is the n-th of epoch 1, takes half a second, and is settled for good."""
    handling = HandlingRecord(life, _message(number), number, number, 1, 1, start, start + 0.5, None, True)
    return replace(handling, **changes)  # type: ignore[arg-type]


def _check(record: list[HandlingRecord], keeps_owner: bool = True, **killed_at: float) -> list[Breach]:
    numbers = frozenset(handling.message for handling in record)
    record = sorted(record, key=lambda handling: handling.start)
    return violations(record, Story(numbers, killed_at, {}, keeps_owner))


def _kinds(found: list[Breach]) -> set[BreachKind]:
    return {breach.kind for breach in found}


def test_a_good_record_has_nothing_wrong() -> None:
    assert not _check([_handling(1, 1.0), _handling(2, 2.0), _handling(3, 3.0)])


def test_a_message_that_nobody_handled_is_lost() -> None:
    story = Story(frozenset([_message(1), _message(2)]), {}, {}, True)
    (found,) = violations([_handling(1, 1.0)], story)
    assert found.kind is BreachKind.LOST
    assert say_number(_message(2)) in found.what


def test_a_message_that_was_begun_only_is_lost() -> None:
    (found,) = _check([_handling(1, 1.0, end=None, confirmed=False)], a=1.2)
    assert found.kind is BreachKind.LOST


def test_a_message_handled_twice_is_doubled() -> None:
    found = _check([_handling(1, 1.0), _handling(1, 2.0, group_seq=2)])
    assert BreachKind.DOUBLED in _kinds(found)


def test_what_a_killed_life_had_in_hand_may_come_again_in_order() -> None:
    """`a` ended 1, 2 and 3 and was killed before the broker had the last two settles."""
    dead = [_handling(1, 1.0), _handling(2, 2.0, confirmed=False), _handling(3, 3.0, confirmed=False)]
    again = [
        _handling(2, 5.0, "b", attempt=2, epoch=2, group_seq=1),
        _handling(3, 6.0, "b", attempt=2, epoch=2, group_seq=2),
        _handling(4, 7.0, "b", epoch=2, group_seq=3),
    ]
    assert not _check([*dead, *again], a=4.0)


def test_it_may_not_without_a_higher_attempt() -> None:
    found = _check(
        [_handling(1, 1.0, confirmed=False), _handling(1, 5.0, "b", epoch=2)], a=4.0
    )  # fmt: skip
    assert [breach.kind for breach in found] == [BreachKind.DOUBLED]


def test_it_may_not_once_it_was_settled_for_good() -> None:
    found = _check([_handling(1, 1.0), _handling(1, 5.0, "b", attempt=2, epoch=2)], a=4.0)
    assert _kinds(found) == {BreachKind.DOUBLED}
    assert not _check(
        [_handling(1, 1.0, confirmed=False), _handling(1, 5.0, "b", attempt=2, epoch=2, group_seq=1)], a=4.0
    )


def test_what_comes_again_after_something_later_is_out_of_order() -> None:
    found = _check(
        [
            _handling(1, 1.0, confirmed=False),
            _handling(2, 5.0, "b", epoch=2, group_seq=1),
            _handling(1, 6.0, "b", attempt=2, epoch=2, group_seq=2),
        ],
        a=4.0,
    )
    assert [breach.kind for breach in found] == [BreachKind.OUT_OF_ORDER]


def test_two_lives_at_once_overlap() -> None:
    found = _check(
        [_handling(1, 1.0, end=3.0), _handling(2, 2.0, "b", epoch=2, group_seq=1)], keeps_owner=False
    )
    assert [breach.kind for breach in found] == [BreachKind.OVERLAP]


def test_a_life_that_begins_before_it_has_ended_overlaps() -> None:
    found = _check([_handling(1, 1.0, end=2.1), _handling(2, 2.0)])
    assert [breach.kind for breach in found] == [BreachKind.OVERLAP]
    assert not _check([_handling(1, 1.0, end=2.1, cancelled=1.9), _handling(2, 2.0)])


def test_an_owner_that_lives_keeps_its_group() -> None:
    record = [_handling(1, 1.0), _handling(2, 2.0, "b", epoch=2, group_seq=1)]
    assert [breach.kind for breach in _check(record)] == [BreachKind.OWNER_CHANGED]
    assert not _check(record, keeps_owner=False)


def test_who_has_free_capacity_takes_over_what_has_waited_for_that_long() -> None:
    record = [_handling(1, 1.0, end=1.5), _handling(2, 2.5, "b", epoch=2, group_seq=1)]
    numbers = frozenset(handling.message for handling in record)
    story = Story(numbers, {}, {}, True, steal_after_s=1.0)
    assert not violations(record, story)
    late = violations(record, story._replace(steal_after_s=1.1))
    assert [breach.kind for breach in late] == [BreachKind.OWNER_CHANGED]


def test_nothing_waits_before_it_is_taken_over_while_a_look_ahead_may_be_full() -> None:
    record = [_handling(1, 1.0, end=1.5), _handling(2, 1.6, "b", epoch=2, group_seq=1)]
    others = [_message(number)._replace(group="other") for number in range(3, 7)]
    told = {handling.message: 0.5 for handling in record} | dict.fromkeys(others, 1.4)
    story = Story(frozenset(told), {}, {}, True, steal_after_s=1.0, look_ahead=10, confirmed_at=told)
    record += [replace(_handling(message.number, 3.0), message=message) for message in others]
    found = [breach.kind for breach in violations(record, story)]
    assert BreachKind.OWNER_CHANGED not in found
    found = [breach.kind for breach in violations(record, story._replace(look_ahead=12))]
    assert BreachKind.OWNER_CHANGED in found


@pytest.mark.parametrize(("delivery_s", "changed"), [(0.0, True), (0.5, False)])
def test_a_group_may_lose_its_owner_while_its_message_is_on_its_way(delivery_s: float, changed: bool) -> None:
    """RabbitMQ confirmed the second one while the first was in hand: the dispatcher may not have had it."""
    record = [_handling(1, 1.0), _handling(2, 2.0, "b", epoch=2, group_seq=1)]
    told = {_message(1): 0.9, _message(2): 1.4}
    story = Story(
        frozenset(told), {}, {}, True, keeps_owner_idle_s=0.0, delivery_s=delivery_s, confirmed_at=told
    )
    assert bool(violations(record, story)) == changed


def test_an_epoch_that_goes_back_is_found() -> None:
    found = _check([_handling(1, 1.0, epoch=2), _handling(2, 2.0, group_seq=1)])
    assert [breach.kind for breach in found] == [BreachKind.EPOCH_BACK]


def test_a_missing_group_number_is_found() -> None:
    found = _check([_handling(1, 1.0), _handling(2, 2.0, group_seq=3)])
    assert [breach.kind for breach in found] == [BreachKind.NUMBERS_GAP]


def test_other_groups_and_queues_have_an_order_of_their_own() -> None:
    other = _handling(1, 2.0, seq=9, group_seq=3)
    other.message = other.message._replace(queue="other")
    assert not _check([_handling(1, 1.0), _handling(2, 1.5), other])


def test_what_may_be_forgotten_may_come_again() -> None:
    record = [_handling(1, 1.0), _handling(1, 5.0, epoch=2, seq=2)]
    story = Story(frozenset([_message(1)]), {}, {}, True, forgotten=(Forgotten(1.2, 4.0, 4.0),))
    assert not violations(record, story)
    assert violations(record, story._replace(forgotten=(Forgotten(1.6, 4.0, 4.0),)))


def _republished(*begun: tuple[int, int]) -> list[BreachKind]:
    """A producer lost its connection: 1 was confirmed, 2 and 3 were not, and went over the next one again,
    with 4. `begun` has (connection, number) in the order of handling."""
    confirmed = frozenset(_message(n)._replace(publish=p) for p, n in [(0, 1), (1, 2), (1, 3), (1, 4)])
    record = [
        _handling(place, float(place), message=_message(number)._replace(publish=publish))
        for place, (publish, number) in enumerate(begun, 1)
    ]
    return [breach.kind for breach in violations(record, Story(confirmed, {}, {}, True))]


def test_what_a_lost_connection_left_in_doubt_may_come_late() -> None:
    """RabbitMQ was still reading the old connection when the next one was up."""
    assert not _republished((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (1, 4))
    assert not _republished((0, 1), (1, 2), (1, 3), (0, 2), (1, 4), (0, 3))
    assert not _republished((0, 1), (1, 2), (1, 3), (1, 4))


def test_everything_else_about_what_is_in_doubt_is_in_order() -> None:
    """One connection's messages are, and none may come before what was confirmed earlier."""
    assert _republished((0, 1), (1, 2), (0, 3), (1, 3), (0, 2), (1, 4)) == [BreachKind.OUT_OF_ORDER]
    assert BreachKind.OUT_OF_ORDER in _republished((0, 2), (0, 1), (1, 2), (1, 3), (1, 4))
    assert BreachKind.OUT_OF_ORDER in _republished((0, 1), (1, 2), (0, 2), (1, 4), (1, 3))
    assert BreachKind.OUT_OF_ORDER in _republished((1, 2), (0, 2), (0, 1), (1, 3), (1, 4))


def test_what_was_in_doubt_before_a_confirmed_one_of_its_connection_is_in_no_doubt() -> None:
    confirmed = frozenset(_message(n)._replace(publish=p) for p, n in [(0, 2), (1, 3)])
    numbers = [_message(n)._replace(publish=p) for p, n in [(0, 2), (1, 3), (0, 1)]]
    record = [_handling(place, float(place), message=m) for place, m in enumerate(numbers, 1)]
    found = violations(record, Story(confirmed, {}, {}, True))
    assert [breach.kind for breach in found] == [BreachKind.OUT_OF_ORDER] * 2
