"""What a stream remembers between batches: whatever way the files come, the same; and not for ever."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

from dispatcher.ledger.schema import Event
from dispatcher.pipeline.leaderships import Fact
from dispatcher.pipeline.ledger_files import BadFile
from dispatcher.pipeline.stream_minutes import MINUTE_US, LiveStatistics, percentile_us
from dispatcher.pipeline.stream_state import Span, StreamState, Writer


def span(first: int, last: int) -> Span:
    return Span(first, last, first * 10, last * 10, first * 10 + 1, last)


def fact(event: str, time_us: int) -> Fact:
    return Fact("a", "7-x", time_us, time_us, event, None, None, {"since_us": 1})


def test_ranges_that_touch_are_one_in_whatever_order_they_come() -> None:
    for order in permutations([span(1, 4), span(5, 6), span(9, 12)]):
        writer = Writer("a", "7-x", 7)
        for each in order:
            writer.add(each)
        assert writer.spans == [Span(1, 6, 10, 60, 11, 6), span(9, 12)]
        assert writer.missing_of(3, 15) == [(7, 8), (13, 15)]
        assert writer.missing_of(2, 6) == []
        assert [writer.covers(ordinal) for ordinal in (6, 7, 9)] == [True, False, True]


def known() -> StreamState:
    writer = Writer("a", "7-x", 7, [span(1, 4)], [fact(Event.LANE_STARTED, 10), fact("groups_moving", 20)])
    state = StreamState({("a", "7-x"): writer}, [BadFile("p", "a", "is empty", "7-x", 7, 5)], {"a": 500})
    state.gaps_raised.add(("a", "ordinals", "7-x", 5, ""))
    state.told_end("a", "i1", 9)
    state.told_end("a", "i1", 3)
    return state


def test_it_is_the_same_after_a_restart(tmp_path: Path) -> None:
    known().write(tmp_path / "state.json")
    assert StreamState.read(tmp_path / "state.json") == known()
    assert known().ended == {("a", "i1"): 9}


def test_what_is_old_is_forgotten_but_for_who_led() -> None:
    state = known()
    state.forget(480)
    assert len(state.writers["a", "7-x"].facts) == 2
    state.forget(479)
    assert [each.event for each in state.writers["a", "7-x"].facts] == [Event.LANE_STARTED]
    for epoch in range(8, 120):
        state.writers["a", f"{epoch}-x"] = Writer("a", f"{epoch}-x", epoch)
    for number in range(100_001):
        state.told_end("a", f"j{number}", 1)
    state.forget(479)
    assert len(state.writers) == 100
    assert ("a", "7-x") not in state.writers
    assert ("a", "i1") not in state.ended
    assert len(state.ended) == 100_000


def row(minute_us: int | None, name: str, amount: int = 1, bucket: int | None = None) -> dict[str, object]:
    return {
        "lane": "a", "inbound": "in", "minute_us": minute_us, "consumer": None if bucket is not None else "c",
        "incarnation": "i", "name": name, "bucket": bucket, "amount": amount, "seq": 1,
    }  # fmt: skip


def test_minutes_are_kept_for_a_time_and_consumers_while_they_hold_something(tmp_path: Path) -> None:
    live = LiveStatistics()
    live.add([row(0, "settled", 3), row(0, "wait_us", 3, 5), row(MINUTE_US, "settled"), row(None, "in_hand")])
    live.write(tmp_path)
    assert LiveStatistics.read(tmp_path) == live
    live.forget({"a": MINUTE_US}, 0)
    assert [key[2] for key in live.minutes] == [MINUTE_US]
    assert live.consumers["a", "c"] == {"settled": 4, "in_hand": 1, "last_us": MINUTE_US}
    live.forget({"a": 3 * MINUTE_US}, MINUTE_US)
    assert not live.minutes
    assert live.consumers
    live.add([])
    live.forget({"a": 3 * MINUTE_US}, MINUTE_US)
    assert not live.consumers


def test_a_percentile_is_its_buckets_upper_bound() -> None:
    assert percentile_us({}, 50) is None
    assert percentile_us({0: 50, 320: 49, 640: 1}, 50) == 1
    assert percentile_us({0: 50, 320: 49, 640: 1}, 95) == 1046
    assert percentile_us({0: 50, 320: 49, 640: 1}, 99) == 1046
