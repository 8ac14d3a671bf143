"""Groups run in parallel, the messages of one group one after the other, whatever happens to them."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dispatcher.client.copies import Copy, Numbers
from dispatcher.client.schedule import GroupSchedule


def never(*_: Any) -> bool:
    raise AssertionError("the schedule settles nothing")


def message(seq: int, group: bytes | None = None, *, group_seq: int = 1) -> Copy:
    numbers = Numbers(seq, group, group_seq if group is not None else 0, 1, 1, None, b"")
    return Copy(numbers, b"\0\0", b"", never)


def schedule(*messages: Copy) -> GroupSchedule[Copy]:
    made: GroupSchedule[Copy] = GroupSchedule()
    for one in messages:
        made.add(one)
    return made


def started(made: GroupSchedule[Copy], now_ms: int = 0) -> list[int]:
    seqs = []
    while (one := made.start_next(now_ms)) is not None:
        seqs.append(one.seq)
    return seqs


def test_messages_that_fail_again_and_again_keep_no_others_from_starting() -> None:
    """They have the lowest numbers. One handler, and no pause between two attempts."""
    failing = {1: message(1, b"a"), 2: message(2, b"b"), 3: message(3, b"c")}
    made = schedule(*failing.values(), *(message(seq, b"d") for seq in range(4, 10)), message(10))
    order = []
    for now_ms in range(30):
        one = made.start_next(now_ms)
        assert one is not None
        order.append(one.seq)
        if one.seq in failing:
            made.retry(one, now_ms)
        else:
            made.finish(one)
    assert [seq for seq in order if seq > 3] == list(range(4, 11)), "and new ones start by number"
    assert {order.count(seq) >= 5 for seq in failing} == {True}


def test_lost_messages_that_were_to_run_again_leave() -> None:
    again, other = message(1, b"a"), message(2, b"b")
    made = schedule(again, other)
    assert made.start_next(0) is again
    made.retry(again, 0)
    assert made.ready_count(0) == 2
    again.lost = True
    made.drop_lost([again])
    assert started(made) == [2]
    made.finish(other)
    assert len(made) == 0


def test_only_the_first_of_each_group_may_start() -> None:
    a1, a2, b1 = message(1, b"a"), message(2, b"a"), message(3, b"b")
    made = schedule(a1, a2, b1)
    assert started(made) == [1, 3]
    made.finish(a1)
    assert started(made) == [2]


def test_the_lowest_number_that_may_run_starts_next() -> None:
    a1, a2, b3, c4 = message(1, b"a"), message(2, b"a"), message(3, b"b"), message(4, b"c")
    made = schedule(a1, a2, b3, c4)
    order = []
    while (one := made.start_next(0)) is not None:
        order.append(one.seq)
        made.finish(one)
    assert order == [1, 2, 3, 4]


def test_a_retry_starts_before_larger_numbers() -> None:
    made = schedule(message(1, b"a"), message(2, b"b"), message(3, b"c"))
    first = made.start_next(0)
    assert first is not None
    made.retry(first, at_ms=50)
    assert started(made, now_ms=50) == [1, 2, 3]


def test_a_lost_message_with_a_large_number_does_not_hold_back_what_comes_after_it() -> None:
    former = message(1_000, b"a")
    made = schedule(former)
    former.lost = True
    made.drop_lost([former])
    assert len(made) == 0
    made.add(message(2, b"b"))
    made.add(message(1, b"a"))
    assert started(made) == [1, 2]


def test_ungrouped_messages_do_not_wait_for_each_other() -> None:
    assert started(schedule(message(1), message(2))) == [1, 2]


def test_without_group_seq_a_group_keeps_no_order() -> None:
    lane_is_concurrent = [message(seq, b"a", group_seq=0) for seq in (1, 2)]
    assert started(schedule(*lane_is_concurrent)) == [1, 2]


def test_a_retry_holds_its_group_and_nobody_else() -> None:
    a1, a2, b1 = message(1, b"a"), message(2, b"a"), message(3, b"b")
    made = schedule(a1, a2, b1)
    assert started(made) == [1, 3]
    made.retry(a1, at_ms=50)
    assert made.next_deadline_ms() == 50
    assert started(made, now_ms=49) == []
    assert started(made, now_ms=50) == [1]
    made.finish(a1)
    assert started(made, now_ms=50) == [2]


def test_lost_messages_never_start() -> None:
    a1, a2, a3, c = message(1, b"a"), message(2, b"a"), message(3, b"a"), message(4)
    made = schedule(a1, a2, a3, c)
    a1.lost = a2.lost = c.lost = True
    made.drop_lost([a1, a2, c])
    assert started(made) == [3]


def test_a_group_that_comes_back_waits_for_the_lost_handler_that_still_runs() -> None:
    former = message(1, b"a")
    made = schedule(former)
    assert started(made) == [1]
    former.lost = True
    made.drop_lost([former])
    made.add(message(1, b"a"))
    assert started(made) == []
    made.finish(former)
    assert started(made) == [1]


def test_a_group_that_comes_back_does_not_wait_for_a_lost_retry() -> None:
    former = message(1, b"a")
    made = schedule(former)
    started(made)
    made.retry(former, at_ms=1_000_000)
    former.lost = True
    made.drop_lost([former])
    assert len(made) == 0
    made.add(message(9, b"a"))
    assert started(made) == [9]


STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "start", "finish", "retry", "lose"]), st.integers(0, 5)), max_size=60
)


class Course:
    """Drives a schedule and checks what it gives out."""

    def __init__(self) -> None:
        self.made: GroupSchedule[Copy] = GroupSchedule()
        self.running: list[Copy] = []
        self.everything: list[Copy] = []
        self.finished: dict[bytes | None, list[int]] = defaultdict(list)

    def add(self, choice: int, now_ms: int) -> None:
        self.everything.append(message(now_ms, [None, b"a", b"b"][choice % 3]))
        self.made.add(self.everything[-1])

    def start(self, _: int, now_ms: int) -> None:
        while (one := self.made.start_next(now_ms)) is not None:
            assert not one.lost
            assert one.group is None or all(other.group != one.group for other in self.running)
            self.running.append(one)

    def finish(self, choice: int, _: int) -> None:
        if self.running:
            one = self.running.pop(choice % len(self.running))
            self.made.finish(one)
            if not one.lost:
                self.finished[one.group].append(one.seq)

    def retry(self, choice: int, now_ms: int) -> None:
        if self.running:
            self.made.retry(self.running.pop(choice % len(self.running)), now_ms + choice)

    def lose(self, choice: int, _: int) -> None:
        open_ones = [one for one in self.everything if one.seq not in self.finished[one.group]]
        if open_ones:
            one = open_ones[choice % len(open_ones)]
            one.lost = True
            self.made.drop_lost([one])


@given(STEPS)
def test_any_course_keeps_order_and_loses_nothing(steps: list[tuple[str, int]]) -> None:
    course = Course()
    for now_ms, (step, choice) in enumerate(steps):
        getattr(course, step)(choice, now_ms)
    while course.made:
        course.start(0, 10**9)
        course.finish(0, 0)
    for group, seqs in course.finished.items():
        expected = [one.seq for one in course.everything if one.group == group and not one.lost]
        assert sorted(seqs) == expected
        assert group is None or seqs == expected
