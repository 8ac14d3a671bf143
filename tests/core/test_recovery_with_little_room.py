"""A look-ahead that was made smaller than what is in flight: the originals come back a few at a time."""

from __future__ import annotations

from dataclasses import replace

from dispatcher.core.effects import Effects, Snapshot
from dispatcher.core.events import MessagesArrived, PingRouted, QueueReturned, RedeliveriesEnded
from dispatcher.core.lane import Lane
from dispatcher.core.membership.liveness import RETURN_GRACE_MS_MIN
from dispatcher.core.model import Original
from dispatcher.core.options import LaneOptions, policy
from dispatcher.core.orders import PublishMarker, SendCopy, SetWindow
from dispatcher.core.records import Dispatched, OpenEntry
from dispatcher.core.tables import IncarnationRow
from dispatcher.wire.protocol import Join, Marker, Settle
from tests.spec.lane_bench import clause

NOW_MS = 1_700_000_000_000
OPTIONS = LaneOptions(policy=policy("exclusive"), inbounds=(("in", 1),))
JOIN = Join(consumer="c2", incarnation="heir", n=1, queue="q2", prefetch=10)


def _entries(incarnation: int) -> list[OpenEntry]:
    return [
        OpenEntry(0, (1, tag), bytes([tag]) * 16, incarnation, tag, b"g", tag, 5, 1) for tag in (1, 2, 3, 4)
    ]


def _originals(*tags: int, group: bytes = b"g") -> MessagesArrived:
    return MessagesArrived(
        [
            Original(0, tag, (2, tag), bytes([tag]) * 16, group, b"x", 1, NOW_MS, redelivered=True)
            for tag in tags
        ]
    )


def _dispatched(effects: Effects) -> list[int]:
    return [action.message.tag for action in effects.actions if isinstance(action, Dispatched)]


def test_what_nobody_holds_goes_out_in_order_as_it_comes_back() -> None:
    taken = IncarnationRow("c1", "over", "q1", 1, 10, "taken")
    snapshot = Snapshot(2, complete=True, broker_restarted=False, incarnations={1: taken})
    snapshot.records += _entries(1)
    lane = Lane(OPTIONS, snapshot, NOW_MS)
    lane.start(NOW_MS)
    assert _dispatched(lane.step([JOIN, _originals(1, 2)], NOW_MS)) == [1, 2]
    assert _dispatched(lane.step([_originals(3, 4)], NOW_MS)) == [3, 4]


def test_so_does_what_a_consumer_leaves_that_dies_meanwhile() -> None:
    live = IncarnationRow("c1", "dying", "q1", 1, 10, "live")
    snapshot = Snapshot(2, complete=True, broker_restarted=False, incarnations={1: live})
    snapshot.records += _entries(1)
    lane = Lane(OPTIONS, snapshot, NOW_MS)
    lane.start(NOW_MS)
    effects = lane.step([JOIN, PingRouted("q1"), _originals(1, 2)], NOW_MS)
    assert not _dispatched(effects)  # c1 has them in hand, and the other two
    effects = lane.step([QueueReturned("q1")], NOW_MS + RETURN_GRACE_MS_MIN)
    (marker,) = [action for action in effects.actions if isinstance(action, PublishMarker)]
    word = Marker(incarnation="dying", n=marker.n, lane_epoch=2)
    assert _dispatched(lane.step([word], NOW_MS + RETURN_GRACE_MS_MIN)) == [1, 2]
    assert _dispatched(lane.step([_originals(3, 4)], NOW_MS + RETURN_GRACE_MS_MIN)) == [3, 4]


def test_what_came_after_it_says_that_an_original_is_gone() -> None:
    """The window is full of what waits for the group, so nothing else would ever say it."""
    clause(
        "R-3", "doesn't wait for it once an original has come back that arrived after it at the same leader"
    )
    live = IncarnationRow("c1", "uuid", "q1", 1, 10, "live")
    snapshot = Snapshot(2, complete=True, broker_restarted=False, incarnations={1: live})
    snapshot.records.append(OpenEntry(0, (1, 1), bytes([1]) * 16, 1, 1, b"expired", 1, 5, 1))
    snapshot.records += [
        OpenEntry(0, (1, tag), bytes([tag]) * 16, 1, tag, b"g", tag, 5, 1) for tag in (2, 3, 4)
    ]
    lane = Lane(replace(OPTIONS, buckets=1, look_ahead=3), snapshot, NOW_MS)
    lane.start(NOW_MS)
    nothing_in_hand = Join(consumer="c1", incarnation="uuid", n=2, queue="q2", prefetch=10)
    effects = lane.step([nothing_in_hand, _originals(2, 3, 4)], NOW_MS)
    again = [action.copy.message.tag for action in effects.actions if isinstance(action, SendCopy)]
    assert again == [2, 3, 4]
    assert lane.state.counters["vanished"] == 1


def test_a_look_ahead_full_of_others_of_its_bucket_is_widened_until_the_original_is_back() -> None:
    """The leader before mapped groups otherwise and had a larger look-ahead: it had handed over what is now
    behind a full window of messages that wait for it."""
    live = IncarnationRow("c1", "uuid", "q1", 1, 10, "live")
    snapshot = Snapshot(2, complete=True, broker_restarted=False, incarnations={1: live})
    snapshot.records.append(OpenEntry(0, (1, 9), bytes([9]) * 16, 1, 1, b"other", 1, 5, 1))
    lane = Lane(replace(OPTIONS, buckets=1, look_ahead=3), snapshot, NOW_MS)
    lane.start(NOW_MS)
    effects = lane.step([PingRouted("q1"), _originals(1, 2, 3)], NOW_MS)
    assert _dispatched(effects) == []
    assert _windows(effects) == [24], "RabbitMQ may send what is behind them"
    assert _windows(lane.step([_originals(4, 5, 6, 7, 8)], NOW_MS)) == []
    effects = lane.step([_originals(9)], NOW_MS)
    assert _windows(effects) == [1], "what was let in is more than the look-ahead"
    settled = Settle(consumer="c1", incarnation="uuid", acked=((1, 1),))
    effects = lane.step([settled], NOW_MS)
    assert _dispatched(effects) == [1, 2, 3, 4, 5, 6, 7, 8], "the bucket goes on"
    settled = replace(settled, acked=((2, lane.state.by_number[1].next_seq - 1),))
    assert _windows(lane.step([settled], NOW_MS)) == [3]


def test_a_full_look_ahead_is_not_widened_for_what_only_newer_messages_wait_for() -> None:
    """With a group for each id the original comes once what is before it goes on."""
    live = IncarnationRow("c1", "uuid", "q1", 1, 10, "live")
    snapshot = Snapshot(2, complete=True, broker_restarted=False, incarnations={1: live})
    snapshot.records.append(OpenEntry(0, (1, 9), bytes([9]) * 16, 1, 1, b"other", 1, 5, 1))
    lane = Lane(replace(OPTIONS, look_ahead=3), snapshot, NOW_MS)
    lane.start(NOW_MS)
    effects = lane.step([PingRouted("q1"), _originals(1, 2, 3)], NOW_MS)
    assert _dispatched(effects) == [1, 2, 3]
    assert _windows(effects) == []


def _with_a_ghost() -> tuple[Lane, Join]:
    """The settle of the only message in flight is forgotten, and its consumer has nothing in hand."""
    live = IncarnationRow("c1", "uuid", "q1", 1, 1, "live")
    snapshot = Snapshot(2, complete=False, broker_restarted=True, incarnations={1: live})
    snapshot.records.append(OpenEntry(0, (1, 9), bytes([9]) * 16, 1, 1, b"other", 1, 5, 1))
    lane = Lane(replace(OPTIONS, look_ahead=3), snapshot, NOW_MS)
    lane.start(NOW_MS)
    return lane, Join(consumer="c1", incarnation="uuid", n=2, queue="q2", prefetch=1)


def test_a_full_look_ahead_is_widened_when_all_capacity_is_taken_by_what_may_have_been_settled() -> None:
    """A killed broker has forgotten the acks of others, which fill the window: only what is behind them says
    that the original is gone, and they wait for the capacity that it takes."""
    lane, nothing_in_hand = _with_a_ghost()
    effects = lane.step([nothing_in_hand, _originals(1, 2, 3)], NOW_MS)
    assert _dispatched(effects) == []
    assert _windows(effects) == [24]
    lane.step([RedeliveriesEnded(0)], NOW_MS)
    assert _dispatched(lane.step([], lane.state.lane_holds.suspended_until_ms)) == [1]


def test_where_the_window_can_not_be_widened_such_an_entry_is_given_up() -> None:
    lane, nothing_in_hand = _with_a_ghost()
    lane.state.inbounds[0].replaceable = False
    effects = lane.step([_originals(1, 2, 3)], NOW_MS)
    assert not lane.state.counters["vanished"], "its consumer may have it"
    effects = lane.step([nothing_in_hand], NOW_MS)
    assert _windows(effects) == []
    assert lane.state.counters["vanished"] == 1
    assert _dispatched(lane.step([], lane.state.lane_holds.suspended_until_ms)) == [1]


def _with_a_ghost_of_a_full_id(*, quorum: bool) -> tuple[Lane, Join]:
    """The same where consumers have room, and no other message of the id may be in flight."""
    live = IncarnationRow("c1", "uuid", "q1", 1, 10, "live")
    snapshot = Snapshot(2, complete=False, broker_restarted=False, incarnations={1: live})
    snapshot.records.append(OpenEntry(0, (1, 9), bytes([9]) * 16, 1, 1, b"g", 0, 5, 1))
    options = replace(OPTIONS, policy=policy("concurrent"), look_ahead=3, max_in_flight_per_group=1)
    lane = Lane(options, snapshot, NOW_MS)
    lane.state.inbounds[0].replaceable = not quorum
    lane.start(NOW_MS)
    return lane, Join(consumer="c1", incarnation="uuid", n=2, queue="q2", prefetch=10)


def test_a_full_look_ahead_is_widened_when_its_ids_are_at_their_limit() -> None:
    lane, nothing_in_hand = _with_a_ghost_of_a_full_id(quorum=False)
    effects = lane.step([nothing_in_hand, _originals(1, 2, 3)], NOW_MS)
    assert _windows(effects) == [24]
    lane.step([RedeliveriesEnded(0)], NOW_MS)
    assert _dispatched(lane.step([], lane.state.lane_holds.suspended_until_ms)) == [1]


def test_what_only_redis_knows_of_an_id_at_its_limit_is_given_up() -> None:
    clause("R-3", "once no consumer has anything in hand, and its own has said that it does not have it")
    lane, nothing_in_hand = _with_a_ghost_of_a_full_id(quorum=True)
    lane.step([_originals(1, 2, 3)], NOW_MS)
    assert not lane.state.counters["vanished"], "its consumer may have it"
    lane.step([nothing_in_hand], NOW_MS)
    assert lane.state.counters["vanished"] == 1
    assert _dispatched(lane.step([], lane.state.lane_holds.suspended_until_ms)) == [1]


def test_what_only_redis_knows_of_an_id_is_not_given_up_while_others_go() -> None:
    lane, nothing_in_hand = _with_a_ghost_of_a_full_id(quorum=True)
    free = _originals(1, 2, 3, group=b"other")
    lane.step([nothing_in_hand, free], NOW_MS)
    assert not lane.state.counters["vanished"]
    assert _dispatched(lane.step([], lane.state.lane_holds.suspended_until_ms)) == [1]


def test_what_only_redis_knows_of_a_bucket_is_given_up() -> None:
    """The window is full of other ids of its bucket, and a quorum queue's can't be widened."""
    live = IncarnationRow("c1", "uuid", "q1", 1, 10, "live")
    snapshot = Snapshot(2, complete=True, broker_restarted=False, incarnations={1: live})
    snapshot.records.append(OpenEntry(0, (1, 9), bytes([9]) * 16, 1, 1, b"other", 1, 5, 1))
    lane = Lane(replace(OPTIONS, buckets=1, look_ahead=3), snapshot, NOW_MS)
    lane.state.inbounds[0].replaceable = False
    lane.start(NOW_MS)
    assert not _dispatched(lane.step([PingRouted("q1"), _originals(1, 2, 3)], NOW_MS))
    nothing_in_hand = Join(consumer="c1", incarnation="uuid", n=2, queue="q2", prefetch=10)
    assert _dispatched(lane.step([nothing_in_hand], NOW_MS)) == [1, 2, 3]
    assert lane.state.counters["vanished"] == 1


def _windows(effects: Effects) -> list[int]:
    return [action.originals for action in effects.actions if isinstance(action, SetWindow)]
