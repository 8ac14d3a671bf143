"""What an operator took out of a group is accounted for: the verdict finds what is planted in the accounts.

The record of all these begins with three messages of one group that RabbitMQ has confirmed.
"""

from __future__ import annotations

import pytest

from dispatcher.judge.record import MessageKey
from tests.chaos.accounts import Arrived
from tests.chaos.decisions import DROP, MOVE, PURGE, RELEASE, REROUTE, SKIP, Decision, with_error, with_result
from tests.chaos.doctored import ONE, THREE, TWO, Doctored, handled, numbered
from tests.chaos.evidence import Found
from tests.recovery.rules import is_failing, is_mending


def _there(*numbers: int, origin: str = "") -> Found:
    """What is in the target, in its order; `origin` other than each message's own."""
    return Found(arrived=tuple(Arrived(numbered(n), origin or f"orders.high 1.{n}") for n in numbers))


def _dead(*numbers: int) -> Found:
    return Found(dead=frozenset(numbered(number) for number in numbers))


def _failed(number: int, at: float, seq: int, **changes: int) -> str:
    """Its consumer gave it up; such a settle is never noted as confirmed."""
    lines = handled(number, at, seq, **changes).splitlines(keepends=True)
    return "".join(lines[:2]) + lines[2].replace("\n", " failed\n")


# -- purge --


def test_what_was_purged_is_not_lost(doctored: Doctored) -> None:
    doctored.write(doctored.a, ONE)
    doctored.decided(PURGE, 2)
    assert not doctored.found()


def test_a_loss_beside_a_purge_is_found(doctored: Doctored) -> None:
    doctored.write(doctored.a, ONE)
    doctored.decided(PURGE, 1)
    assert doctored.found() == {"lost"}


def test_a_loss_that_no_purge_can_have_been_is_found(doctored: Doctored) -> None:
    """It was published when the purge was over."""
    doctored.write(doctored.a, ONE, TWO, THREE)
    doctored.decided(PURGE, None, since=0.0, until=0.0)
    assert not doctored.found()
    doctored.write(doctored.a, ONE, TWO)
    assert doctored.found() == {"lost"}


def test_what_was_purged_and_handled_is_doubled(doctored: Doctored) -> None:
    doctored.write(doctored.a, ONE, TWO, THREE)
    doctored.decided(PURGE, 1)
    assert doctored.found() == {"doubled"}


def test_what_was_in_hand_at_a_death_may_be_purged(doctored: Doctored) -> None:
    """Its handling came to nothing; or it was ended, and nobody knows whether its settle counted."""
    doctored.a.killed_at = 3.6
    doctored.decided(PURGE, 1, since=3.7, until=4.0)
    doctored.write(doctored.a, ONE, TWO, handled(3, 3.0, 3, end=False))
    assert not doctored.found()
    doctored.write(doctored.a, ONE, TWO, handled(3, 3.0, 3).partition("confirmed")[0])
    assert not doctored.found()
    doctored.write(doctored.a, ONE, TWO, THREE)
    assert doctored.found() == {"doubled"}


def test_what_is_missing_in_another_group_is_lost(doctored: Doctored) -> None:
    doctored.write(doctored.a, ONE, TWO)
    doctored.stage.decisions["orders"].append(Decision(PURGE, "h", 2.0, 4.0, 1))
    assert doctored.found() == {"lost", "doubled"}  # and of that group nothing is missing


def test_a_disorder_that_a_later_purge_would_hide_is_found(doctored: Doctored) -> None:
    """3 was begun before 2, and 2 was taken out only after that."""
    doctored.write(doctored.a, ONE, handled(3, 2.0, 2))
    doctored.decided(PURGE, 1, since=1.9)
    assert not doctored.found()
    doctored.stage.decisions["orders"].clear()
    doctored.decided(PURGE, 1, since=2.5)
    assert doctored.found() == {"out of order"}


# -- move and reroute --


@pytest.mark.parametrize("command", [MOVE, REROUTE])
def test_what_is_in_the_target_is_not_lost(doctored: Doctored, command: str) -> None:
    doctored.write(doctored.a, ONE)
    doctored.decided(command, 2)
    assert not doctored.found(_there(2, 3))


def test_a_loss_on_the_way_to_the_target_is_found(doctored: Doctored) -> None:
    doctored.write(doctored.a, ONE)
    doctored.decided(MOVE, 2)
    assert doctored.found(_there(2)) == {"lost", "miscounted"}
    doctored.stage.decisions["orders"].clear()
    doctored.decided(MOVE, None)
    assert doctored.found(_there(2)) == {"lost"}


def test_what_was_moved_and_handled_is_doubled(doctored: Doctored) -> None:
    doctored.write(doctored.a, ONE, TWO, THREE)
    doctored.decided(MOVE, 1)
    assert doctored.found(_there(3)) == {"doubled"}


def test_what_begins_after_it_was_moved_is_doubled(doctored: Doctored) -> None:
    """Its consumer died, so the handling itself came to nothing."""
    doctored.write(doctored.a, ONE, TWO, handled(3, 5.0, 3, end=False))
    doctored.a.killed_at = 5.1
    doctored.decided(MOVE, 1)
    assert doctored.found(_there(3)) == {"doubled"}


def test_a_disorder_in_the_target_is_found(doctored: Doctored) -> None:
    doctored.write(doctored.a, ONE)
    doctored.decided(MOVE, 2)
    assert doctored.found(_there(3, 2)) == {"out of order"}


def test_two_moves_may_bring_them_in_the_order_of_the_moves(doctored: Doctored) -> None:
    """2 was in flight at the first one."""
    doctored.write(doctored.a, ONE)
    doctored.decided(MOVE, 1)
    doctored.decided(MOVE, 1)
    assert not doctored.found(_there(3, 2))


def test_a_repeat_needs_a_take_over_and_its_origin(doctored: Doctored) -> None:
    """O-31: the next leader sends again what was on its way."""
    doctored.write(doctored.a, ONE)
    doctored.decided(MOVE, 2)
    assert doctored.found(_there(2, 3, 2, 3)) == {"doubled"}
    doctored.led_at(3.0)
    assert not doctored.found(_there(2, 3, 2, 3))
    again = Arrived(numbered(2), "orders.high 2.2")
    twice = Found(arrived=(*_there(2, 3).arrived, again))
    assert doctored.found(twice) == {"doubled", "miscounted"}


def test_what_nobody_moved_is_not_in_the_target(doctored: Doctored) -> None:
    doctored.write(doctored.a, ONE, TWO)
    assert doctored.found(_there(3)) == {"wrongly moved"}


def test_what_failed_is_in_one_place(doctored: Doctored) -> None:
    doctored.write(doctored.a, ONE, TWO)
    doctored.decided(MOVE, 1)
    assert doctored.found(Found(dead=_dead(3).dead, arrived=_there(3).arrived)) == {"doubled"}


# -- groups that have stopped --


@pytest.fixture
def stopping(doctored: Doctored) -> Doctored:
    doctored.configure(stopping=("exclusive",))
    return doctored


def test_nothing_passes_what_a_group_has_stopped_at(stopping: Doctored) -> None:
    stopping.write(stopping.a, ONE, _failed(2, 2.0, 2), THREE)
    assert stopping.found(_dead(2)) == {"passed over"}
    stopping.decided(SKIP, 1, since=2.5, until=2.9)
    assert not stopping.found(_dead(2))


def test_a_decision_that_was_refused_lets_nothing_pass(stopping: Doctored) -> None:
    stopping.write(stopping.a, ONE, _failed(2, 2.0, 2), THREE)
    stopping.decided(SKIP, 0, since=2.5, until=2.9)
    assert stopping.found(_dead(2)) == {"passed over"}


def test_what_was_released_is_handed_over_again_first(stopping: Doctored) -> None:
    again = handled(2, 2.6, 3, attempt=2)
    stopping.write(stopping.a, ONE, _failed(2, 2.0, 2), again, handled(3, 3.2, 4))
    assert stopping.found() == {"doubled"}
    stopping.decided(RELEASE, 1, since=2.5, until=2.55)
    assert not stopping.found()
    stopping.write(stopping.a, ONE, _failed(2, 2.0, 2), handled(2, 2.6, 3), handled(3, 3.2, 4))
    assert stopping.found() == {"doubled"}  # its attempt does not rise


def test_what_was_dropped_is_not_lost(stopping: Doctored) -> None:
    stopping.write(stopping.a, ONE, _failed(2, 2.0, 2), THREE)
    stopping.decided(DROP, 1, since=2.5, until=2.9)
    assert not stopping.found()
    stopping.write(stopping.a, ONE, THREE)
    assert stopping.found() == {"lost", "gap in the group's numbers"}


def test_a_drop_deletes_one(stopping: Doctored) -> None:
    stopping.write(stopping.a, ONE, _failed(2, 2.0, 2))
    stopping.decided(DROP, 1, since=2.5, until=2.9)
    assert stopping.found() == {"lost"}


# -- the words of the dispatcher --


def test_an_operation_that_failed_says_how_many_went() -> None:
    decision = Decision(MOVE, "g", 0.0, 1.0, None)
    stays = "move 1: the dispatcher stops: nothing was changed"
    went = "move 1: no: 3 of its messages went, the rest stays in order; 2 of the rest may have gone as well"
    assert with_error(decision, stays)[4:6] == (0, 0)
    assert with_error(decision, went)[4:6] == (3, 2)
    assert with_result(decision, {"messages": 7}).messages == 7


def test_a_drop_of_poison_may_be_of_what_nobody_began() -> None:
    decision = Decision(DROP, "g", 0.0, 1.0, None)
    assert with_result(decision, {"reason": "poison"}) == decision._replace(messages=1, of_failed=False)
    assert with_result(decision, {"reason": "bad"}) == decision._replace(messages=1)


def test_a_message_that_mends_is_one_that_fails() -> None:
    mending = [number for number in range(200) if is_mending(MessageKey("q", "g", 0, number))]
    assert mending == [47, 127]
    assert all(is_failing(MessageKey("q", "g", 0, number)) for number in mending)
