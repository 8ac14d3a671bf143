"""The originals that a session holds unacked: those of the inbound queues, and those it parked itself."""

from __future__ import annotations

from collections.abc import Sequence

from dispatcher.core.model import Original
from dispatcher.core.queue_ids import is_parking
from dispatcher.service.inbound_feed import InboundFeed
from dispatcher.service.parking_feeds import ParkingFeeds


class OriginalAcks:
    """Their acks, by queue as the core counts queues."""

    def __init__(self, feeds: Sequence[InboundFeed], parking: ParkingFeeds) -> None:
        self._feeds = feeds
        self._parking = parking

    def settle(self, messages: Sequence[Original]) -> None:
        """These originals have ended: ack them with the next flush."""
        for message in messages:
            if not is_parking(message.queue):
                self._feeds[message.queue].settle(message.tag)
            else:
                self._parking.settle(message.queue, message.tag)

    def flush_acks(self, now_ms: int, *, everything: bool = False) -> None:
        """Send the acks that are due; `everything`: all of them."""
        for feed in self._feeds:
            feed.flush_acks(now_ms, everything=everything)
        self._parking.flush_acks(now_ms, everything=everything)

    def deadline_ms(self) -> int | None:
        """When the first acks that wait are due."""
        first_ms = self._parking.deadline_ms()
        for feed in self._feeds:
            at_ms = feed.deadline_ms()
            if at_ms is not None and (first_ms is None or at_ms < first_ms):
                first_ms = at_ms
        return first_ms

    @property
    def problem(self) -> str | None:
        """What an operator must change; see InboundFeed.problem."""
        return next((feed.problem for feed in self._feeds if feed.problem is not None), None)
