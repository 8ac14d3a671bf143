"""How many originals are fetched: as many as the byte budget has room for, at most the look-ahead."""

from __future__ import annotations

import pytest

from dispatcher.core.bounds import ORIGINAL_BYTES
from dispatcher.core.effects import Effects, Snapshot
from dispatcher.core.events import MessagesArrived, RedeliveriesEnded
from dispatcher.core.inbound import Inbound
from dispatcher.core.lane import Lane
from dispatcher.core.model import Original
from dispatcher.core.options import LaneOptions, policy
from dispatcher.core.orders import SetWindow

KIB, MIB = 1 << 10, 1 << 20
FIRST = 16
NOW_MS = 1_800_000_000_000


class Fetcher:
    """A lane of which nothing is settled, and a broker that delivers whatever the windows let through."""

    def __init__(self, *, inbounds: int = 1, look_ahead: int = 10_000, look_ahead_bytes: int = 256 * MIB):
        options = LaneOptions(
            policy=policy("exclusive", top_up=False, grouped=True), look_ahead=look_ahead,
            inbounds=tuple((f"in{n}", 1) for n in range(inbounds)), look_ahead_bytes=look_ahead_bytes,
        )  # fmt: skip
        self.lane = Lane(options, Snapshot(lane_epoch=7, complete=True, broker_restarted=False), NOW_MS)
        self.tag = 0
        self.fetched = [0] * inbounds  # by the present consumer of each
        self.changes = 0
        for inbound in self.inbounds:
            inbound.window = FIRST
        self.lane.start(NOW_MS)
        self._take(self.lane.step([RedeliveriesEnded(n) for n in range(inbounds)], NOW_MS))

    @property
    def inbounds(self) -> list[Inbound]:
        return self.lane.state.inbounds

    def deliver(self, size: int, inbound: int = 0) -> bool:
        """One more original, unless the window is full."""
        if self.fetched[inbound] >= self.inbounds[inbound].window:
            return False
        self.tag += 1
        self.fetched[inbound] += 1
        message = Original(
            inbound, self.tag, (7, self.tag), self.tag.to_bytes(16), b"g", object(), size, NOW_MS
        )  # fmt: skip
        self._take(self.lane.step([MessagesArrived([message])], NOW_MS))
        return True

    def fill(self, size: int, inbound: int = 0) -> int:
        """Deliver all that the windows let through; returns how many."""
        count = 0
        while self.deliver(size, inbound):
            count += 1
        return count

    def settle_all(self) -> None:
        """As if everything here were settled and acked."""
        self.lane.state.bytes_held = 0
        for inbound in self.inbounds:
            inbound.unacked = 0
        self.fetched = [0] * len(self.fetched)
        self._take(self.lane.step([], NOW_MS))

    def _take(self, effects: Effects) -> None:
        for action in effects.actions:
            if isinstance(action, SetWindow):
                self.changes += 1
                self.fetched[action.inbound] = 0


@pytest.mark.parametrize("size", [64 * KIB, MIB, 8 * MIB])
def test_windows_of_large_messages_fit_into_the_budget(size: int) -> None:
    fetcher = Fetcher()
    fetcher.fill(size)
    held_max = fetcher.lane.state.options.held_bytes_max
    assert held_max // 2 < fetcher.lane.state.bytes_held <= held_max
    assert fetcher.changes <= 2


def test_small_messages_fill_the_look_ahead_and_not_more() -> None:
    fetcher = Fetcher()
    assert fetcher.fill(256) == 10_000
    assert fetcher.inbounds[0].is_full()
    assert fetcher.changes == 1


def test_several_queues_share_the_budget() -> None:
    fetcher = Fetcher(inbounds=3)
    for inbound in range(3):
        fetcher.fill(MIB, inbound)
    assert fetcher.lane.state.bytes_held <= fetcher.lane.state.options.held_bytes_max


def test_at_the_budget_one_at_a_time_until_half_is_free() -> None:
    """Large ones that come behind small ones, which had let a large window in."""
    fetcher = Fetcher(look_ahead_bytes=16 * MIB)
    fetcher.fill(256)
    while fetcher.inbounds[0].window > 1:
        fetcher.settle_all()
        assert fetcher.fill(2 * MIB)
    assert fetcher.inbounds[0].paused
    assert fetcher.lane.state.bytes_held <= 2 * fetcher.lane.state.options.held_bytes_max
    state = fetcher.lane.state
    state.bytes_held = state.options.held_bytes_max // 2 + 1
    fetcher._take(fetcher.lane.step([], NOW_MS))
    assert fetcher.inbounds[0].paused
    fetcher.settle_all()
    assert not fetcher.inbounds[0].paused


def test_a_window_grows_again_with_smaller_messages() -> None:
    fetcher = Fetcher()
    fetcher.fill(MIB)
    narrow = fetcher.inbounds[0].window
    for _ in range(20):
        fetcher.settle_all()
        for _ in range(narrow):
            fetcher.deliver(256)
    assert fetcher.inbounds[0].window > 5_000


def test_what_an_original_takes_beside_its_bytes_counts() -> None:
    fetcher = Fetcher(look_ahead=60_000, look_ahead_bytes=16 * MIB)
    count = fetcher.fill(1)
    assert count * ORIGINAL_BYTES <= fetcher.lane.state.options.held_bytes_max


def test_the_consumer_of_a_quorum_queue_is_never_replaced() -> None:
    fetcher = Fetcher()
    fetcher.inbounds[0].replaceable, fetcher.inbounds[0].window = False, 10_000
    for _ in range(300):
        fetcher.deliver(MIB)
    assert fetcher.changes == 0
    assert fetcher.inbounds[0].is_full()
