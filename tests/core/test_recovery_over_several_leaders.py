"""What a leader held and never dispatched gets a new arrival number from the next one, before older ones."""

from __future__ import annotations

from dispatcher.core.effects import Snapshot
from dispatcher.core.events import MessagesArrived, PingRouted
from dispatcher.core.lane import Lane
from dispatcher.core.model import Original
from dispatcher.core.options import LaneOptions, policy
from dispatcher.core.orders import AckInbound
from dispatcher.core.records import Dispatched, OpenEntry, SettledEntries
from dispatcher.core.tables import IncarnationRow
from tests.spec.lane_bench import clause

NOW_MS = 1_700_000_000_000
ROW = IncarnationRow("c1", "uuid", "q1", 1, 10, "live")
OPTIONS = LaneOptions(policy=policy("exclusive"), inbounds=(("in", 1),))
HELD_BY_THE_FIRST, SETTLED = b"a" * 16, b"b" * 16


def _redelivery(tag: int, fingerprint: bytes, group: bytes) -> Original:
    return Original(0, tag, (3, tag), fingerprint, group, b"content", 1, NOW_MS, redelivered=True)


def test_a_settled_original_behind_a_younger_arrival_is_acked_and_not_handed_over_again() -> None:
    """Leader 1 dispatched the queue's second message, leader 2 its first; the second's ack got lost."""
    clause("R-1", "acked again if it was settled")
    snapshot = Snapshot(3, complete=True, broker_restarted=False, incarnations={1: ROW})
    snapshot.records += [
        SettledEntries(0, False, (((1, 2), SETTLED),)),
        OpenEntry(0, (2, 1), HELD_BY_THE_FIRST, 1, 7, b"g", 1, 5, 1),
    ]
    lane = Lane(OPTIONS, snapshot, NOW_MS)
    lane.start(NOW_MS)
    arrived = MessagesArrived([_redelivery(1, HELD_BY_THE_FIRST, b"g"), _redelivery(2, SETTLED, b"h")])
    effects = lane.step([PingRouted("q1"), arrived], NOW_MS)
    (acked,) = [action for action in effects.actions if isinstance(action, AckInbound)]
    assert [message.tag for message in acked.messages] == [2]
    assert not [action for action in effects.actions if isinstance(action, Dispatched)]


def test_at_one_leader_an_older_settled_original_does_not_come_after_a_younger_one() -> None:
    """Then it is another message with the same bytes, which must not be dropped."""
    snapshot = Snapshot(3, complete=True, broker_restarted=False, incarnations={1: ROW})
    snapshot.records += [
        SettledEntries(0, False, (((2, 1), SETTLED),)),
        OpenEntry(0, (2, 2), HELD_BY_THE_FIRST, 1, 7, b"g", 1, 5, 1),
    ]
    lane = Lane(OPTIONS, snapshot, NOW_MS)
    lane.start(NOW_MS)
    arrived = MessagesArrived([_redelivery(1, HELD_BY_THE_FIRST, b"g"), _redelivery(2, SETTLED, b"h")])
    effects = lane.step([PingRouted("q1"), arrived], NOW_MS)
    (copy,) = [action for action in effects.actions if isinstance(action, Dispatched)]
    assert copy.message.fingerprint == SETTLED
