"""What RabbitMQ can't be made to take: it closes the channel or the connection over it.

The edge finds out which publish it was, see `service/publish_bisect.py`. Its consumer never got it, nor what
was numbered after it: RabbitMQ ignores what a closed channel still carries.
"""

from __future__ import annotations

from collections.abc import Mapping

from dispatcher.core.dead_letters import dead_letter
from dispatcher.core.events import CopyRefused
from dispatcher.core.feature import Feature, Handler
from dispatcher.core.model import Consumer, Group, Original
from dispatcher.core.recovery.resending import Resending
from dispatcher.core.settlement import Settlement
from dispatcher.core.state import LaneState


class RefusedPublishes(Feature):
    """Ends what can't be published."""

    def __init__(self, state: LaneState, settlement: Settlement, resending: Resending) -> None:
        self._state = state
        self._settlement = settlement
        self._resending = resending

    def events(self) -> Mapping[type, Handler]:
        return {CopyRefused: self.copy_refused}

    def copy_refused(self, event: CopyRefused) -> None:
        """Withdraw a copy from its consumer; its followers go on under a new epoch.

        Nothing happens if that copy has ended, or if the message was handed over anew: then that copy is
        found.
        """
        copy, message = event.copy, event.copy.message
        consumer = message.consumer
        if consumer is None or (consumer.number, message.seq) != (copy.incarnation, copy.seq):
            return
        group = message.group
        followers = _followers(consumer, message)
        self._state.counters["unpublishable"] += 1
        del consumer.in_flight[message.seq]
        self._settlement.no_longer_has(consumer, message)
        dead_letter(self._state, message, f"unpublishable: {event.problem}")
        self._state.refresh_credit(consumer)
        if group is not None:
            self._renumber(group, consumer, followers, first=message.first)

    def _renumber(self, group: Group, consumer: Consumer, followers: list[Original], *, first: bool) -> None:
        """The consumer would wait for the number that is missing: later messages get new ones."""
        if followers:
            followers[0].first |= first
            self._resending.send_renumbered(group, followers)
        elif group.owner is consumer:
            group.epoch = 0
            group.fresh |= first


def _followers(consumer: Consumer, message: Original) -> list[Original]:
    """Later messages of its group in flight at the same consumer, in order: perhaps of several epochs."""
    if message.group is None:
        return []
    place = (message.epoch, message.group_seq)
    of_group = (m for m in consumer.in_flight.values() if m.group is message.group)
    behind = [m for m in of_group if (m.epoch, m.group_seq) > place]
    return sorted(behind, key=lambda m: (m.epoch, m.group_seq))
