"""Sequence numbers and epochs rise over take-overs, however quickly these follow each other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dispatcher.core.bounds import COUNTER_SHIFT, LANE_EPOCHS_AHEAD_MAX
from dispatcher.core.effects import Snapshot
from dispatcher.core.events import MessagesArrived, PingRouted, RedeliveriesEnded
from dispatcher.core.lane import Lane
from dispatcher.core.model import Original
from dispatcher.core.options import LaneOptions, policy
from dispatcher.core.records import Dispatched
from dispatcher.core.tables import IncarnationRow
from dispatcher.errors import NumbersBehind
from dispatcher.wire.protocol import SEQ_MAX, Heartbeat, InHand, Join
from tests.spec.lane_bench import clause

NOW_MS = 1_700_000_000_500
ROW = IncarnationRow("c1", "uuid", "q1", 1, 10, "live")
OPTIONS = LaneOptions(policy=policy("exclusive"), inbounds=(("in", 1),))
JOIN = Join(consumer="c1", incarnation="uuid", n=2, queue="q2", prefetch=10)


def _first_dispatch(lane_epoch: int, *said: Join) -> Dispatched:
    """What a leader hands to a consumer that it knows from Redis, where nothing is open."""
    snapshot = Snapshot(lane_epoch, complete=True, broker_restarted=False, incarnations={1: ROW})
    lane = Lane(OPTIONS, snapshot, NOW_MS)
    lane.start(NOW_MS)
    message = Original(0, 1, (lane_epoch, 1), bytes(16), b"g", None, 1, NOW_MS)
    effects = lane.step([PingRouted("q1"), *said, RedeliveriesEnded(0), MessagesArrived([message])], NOW_MS)
    (dispatched,) = [action for action in effects.actions if isinstance(action, Dispatched)]
    return dispatched


def test_a_take_over_within_the_same_second_uses_higher_numbers() -> None:
    """A consumer drops a seq that it knows: used twice, it would settle a message that it never saw."""
    clause("R-5", "Numbers never go back")
    first, second = (_first_dispatch(NOW_MS // 1000 + leader) for leader in range(2))
    assert second.seq > first.seq
    assert second.epoch > first.epoch


def _asking_lane() -> Lane:
    """One whose Redis has forgotten everything: it believes consumers."""
    snapshot = Snapshot(NOW_MS // 1000, complete=False, broker_restarted=False)
    lane = Lane(OPTIONS, snapshot, NOW_MS)
    lane.start(NOW_MS)
    return lane


@pytest.mark.parametrize("last", [(NOW_MS // 1000 + LANE_EPOCHS_AHEAD_MAX + 1) << COUNTER_SHIFT, SEQ_MAX])
def test_a_number_that_nobody_can_have_given_is_not_believed(last: int) -> None:
    """Else the next leader's numbers would be higher than JSON holds exactly, for ever."""
    lane = _asking_lane()
    lane.step([Heartbeat(consumer="c1", incarnation="uuid", queue="q1", held=0, last=last)], NOW_MS)
    held = (
        InHand(seq=last, group=b"g", fingerprint=bytes(16)),
        InHand(seq=1, group=b"h", fingerprint=b"h" * 16),
    )
    lane.step([Join(consumer="c1", incarnation="uuid", n=1, queue="q1", prefetch=10, in_hand=held)], NOW_MS)
    assert set(lane.state.by_id["c1"].in_flight) == {1}, "what else it has in hand is believed"
    assert lane.state.by_id["c1"].next_seq == NOW_MS // 1000 << COUNTER_SHIFT
    assert lane.state.counters["settles_ignored"] == 1


def test_an_epoch_that_nobody_can_have_given_is_not_believed() -> None:
    lane = _asking_lane()
    before = lane.state.epoch_counter
    lane.step([replace(JOIN, epoch=SEQ_MAX)], NOW_MS)
    assert lane.state.epoch_counter == before


def test_a_number_of_a_clock_that_ran_ahead_is_believed() -> None:
    clause("R-5", "Numbers never go back, even if Redis forgets everything")
    ahead = (NOW_MS // 1000 + LANE_EPOCHS_AHEAD_MAX) << COUNTER_SHIFT
    with pytest.raises(NumbersBehind):
        _asking_lane().step(
            [Heartbeat(consumer="c1", incarnation="uuid", queue="q1", held=0, last=ahead)], NOW_MS
        )


def test_an_epoch_of_a_former_leader_that_redis_has_forgotten_is_believed() -> None:
    """That leader sent a message again: under an epoch of its own, with the number that it had."""
    clause("O-7", "larger than any epoch of the lane before, also after everything was forgotten")
    epoch = (NOW_MS // 1000 << COUNTER_SHIFT) + 7
    with pytest.raises(NumbersBehind):
        _asking_lane().step([replace(JOIN, epoch=epoch)], NOW_MS)


def test_so_is_the_word_of_a_consumer_that_comes_back_later() -> None:
    epoch = (NOW_MS // 1000 << COUNTER_SHIFT) + 7
    assert _first_dispatch(NOW_MS // 1000, replace(JOIN, epoch=epoch)).epoch > epoch
