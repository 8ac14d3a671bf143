"""Sequence numbers and epochs rise over take-overs, however quickly these follow each other."""

from __future__ import annotations

from dispatcher.core.effects import Dispatched, IncarnationRow, Snapshot
from dispatcher.core.events import MessagesArrived, PingRouted, RedeliveriesEnded
from dispatcher.core.lane import Lane
from dispatcher.core.model import Message
from dispatcher.core.options import LaneOptions
from dispatcher.core.policies import policy

NOW_MS = 1_700_000_000_500
ROW = IncarnationRow("c1", "uuid", "q1", 1, 10, "live")
OPTIONS = LaneOptions(policy=policy("exclusive"), inbounds=(("in", 1),))


def _first_dispatch(lane_epoch: int) -> Dispatched:
    """What a leader hands to a consumer that it knows from Redis, where nothing is open."""
    snapshot = Snapshot(lane_epoch, complete=True, broker_restarted=False, incarnations={1: ROW})
    lane = Lane(OPTIONS, snapshot, NOW_MS)
    lane.start(NOW_MS)
    message = Message(0, 1, (lane_epoch, 1), bytes(16), b"g", None, 1, NOW_MS)
    effects = lane.step([PingRouted("q1"), RedeliveriesEnded(0), MessagesArrived([message])], NOW_MS)
    (dispatched,) = [action for action in effects.actions if isinstance(action, Dispatched)]
    return dispatched


def test_a_take_over_within_the_same_second_uses_higher_numbers() -> None:
    """A consumer drops a seq that it knows: used twice, it would settle a message that it never saw."""
    first, second = (_first_dispatch(NOW_MS // 1000 + leader) for leader in range(2))
    assert second.seq > first.seq
    assert second.epoch > first.epoch
