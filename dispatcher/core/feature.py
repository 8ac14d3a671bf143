"""The seam between a lane and what it can do: one small interface, and a list of those that a lane has.

A `Feature` is one capability of a lane (parking, dedup, operations, …). The lane makes those that its options
ask for, in an order that `features.py` justifies, and calls them at fixed points of a step. A feature that is
off is not in the list, so it costs nothing. The spine knows none of them: what they have to hear of it goes
through the signals of `LaneState`, and what they keep from being served through `eligibility`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from dispatcher.core.effects import Effects, Snapshot
from dispatcher.core.model import Consumer, Group, Original
from dispatcher.core.records import Record

#: Changes the lane's state for one kind of event; dispatches nothing.
Handler = Callable[[Any], None]


class Feature:
    """One capability of a lane. Each method is optional: as it stands here it does nothing.

    A step runs the handlers of its events, then `before_pass` of every feature, the delivery pass,
    `after_pass` and `finish_step`. Nothing here dispatches, except `optional/poison`: see `delivery`.
    """

    #: `before_pass`, `after_pass` and `next_deadline_ms` are skipped while all of these are empty or false. A
    #: feature that mostly has nothing to do names the containers that it keeps anyway.
    pending: tuple[object, ...] = (True,)

    def events(self) -> Mapping[type, Handler]:
        """Its own events. An event that several features name goes to all of them, in the lane's order."""
        return {}

    def counts(self) -> Mapping[type, Callable[[Any], bool]]:
        """Kinds of events that it may refuse. False: no feature hears of this one."""
        return {}

    def load_first(self, snapshot: Snapshot) -> None:
        """Take over what a former leader left, before the journal's open entries are loaded."""

    def load(self, snapshot: Snapshot) -> None:
        """The same, once entries and owners are loaded."""

    def begin(self) -> None:
        """The first orders of a leader."""

    def before_pass(self) -> None:
        """Timers: what may go on now, or must not any more."""

    def after_pass(self, *, idle: bool) -> bool:
        """`idle`: the delivery pass found nothing eligible. True: something is now, run it once more."""
        return False

    def finish_step(self) -> None:
        """Look at the records of this step, and add to them."""

    def records(self) -> list[Record]:
        """Records of all that is still true, for a checkpoint."""
        return []

    def add_rows(self, effects: Effects) -> None:
        """All rows of its tables, for a Redis that has lost some."""

    def next_deadline_ms(self) -> int | None:
        """When `before_pass` must run again even if nothing happens; None: never."""
        return None


def has(feature: Feature, method: str) -> bool:
    """Whether the feature does something at this point of a step."""
    return getattr(type(feature), method) is not getattr(Feature, method)


def merge_handlers(features: Sequence[Feature]) -> dict[type, list[Handler]]:
    """Who hears of each kind of event: all features that name it, in their order."""
    merged: dict[type, list[Handler]] = {}
    for feature in features:
        for kind, handler in feature.events().items():
            merged.setdefault(kind, []).append(handler)
    for feature in features:
        for kind, counts in feature.counts().items():
            merged[kind] = [_guarded(counts, merged[kind])]
    return merged


def _guarded(counts: Callable[[Any], bool], handlers: list[Handler]) -> Handler:
    def handle(event: Any) -> None:
        if counts(event):
            for handler in handlers:
                handler(event)

    return handle


class AbsentOriginals(Protocol):
    """What becomes of messages whose originals have not come back after a take-over."""

    # -- what is known of them --

    def open_entries(self) -> list[Original]:
        """All of which the journal has an entry."""

    def settled_records(self) -> list[Record]:
        """For a checkpoint: the originals that are settled, and may come back all the same."""

    def owners(self) -> Mapping[bytes, Consumer]:
        """The owners of groups, by key, that wait for some."""

    def go_before(self, group_id: bytes | None) -> bool:
        """Some of this group id that no consumer has are still to come: they go before everything newer. The
        signal `all_back` says when that ends."""

    def may_come(self, group: Group) -> bool:
        """Messages of the group that are not here may still come: they were here before, or are parked."""

    def some_may_come(self) -> bool:
        """Messages that were here under the former leader may still be on their way from inbound queues."""

    def is_lost(self, message: Original) -> bool:
        """Its original will not come back."""

    def is_reported(self, fingerprint: bytes) -> bool:
        """One with these bytes is absent that the journal did not know: a consumer has told of it."""

    # -- what happens before they come --

    def settled_before_its_return(self, message: Original) -> list[Record]:
        """It is to be acked when it comes. Returns further records."""

    def failed_before_its_return(self, message: Original, reason: str) -> bool:
        """It goes to the dead queue when it comes. False: it comes no more."""

    def revoked_before_their_return(self, messages: list[Original]) -> None:
        """Their consumer has ended: they wait for another one when they come."""

    def nobody_has(self, message: Original) -> None:
        """No consumer has it any more: when its original comes, it waits before everything newer."""

    # -- who reads another queue than the inbound ones tells this --

    def expect_again(self, message: Original) -> None:
        """Its original has gone back to that queue, and will come again. A group that waits for others waits
        for this one, too: which of them is older only shows when all are here."""

    def match(self, message: Original | None, delivered: Original) -> None:
        """Its original has come; None: that of a message of which a consumer has told."""

    def vanish(self, message: Original) -> None:
        """Its original will not come: it is not in that queue."""

    def end_if_through(self) -> None:
        """That queue delivers nothing again of what it had delivered before."""
