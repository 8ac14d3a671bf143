"""What can keep messages from going: one stable code for each cause, and the value that says which it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

from dispatcher.core.bounds import NEVER_MS
from dispatcher.core.model import Group

Facts = Mapping[str, Any]


class HoldKind(StrEnum):
    """The causes by their codes, which users see (`reason`; docs/operations.md has the table).

    Of the causes that hold a whole lane the first one here is the one that is named.
    """

    # the whole lane
    PUBLISHERS_BLOCKED = "publishers_blocked"
    READING_BACK = "queue_read_back"
    LANE_PAUSED = "lane_paused"
    STOPPING = "dispatcher_stops"
    CONSUMERS_ASKED = "consumers_asked"
    QUIESCING = "rebalancing"
    NOT_BEGUN = "lane_not_begun"
    UNCONFIRMED = "copies_unconfirmed"
    # a group
    ONE_AT_A_TIME = "one_at_a_time"
    TRANSFERRING = "operation"
    STOPPED = "stopped"
    DECIDED = "decision_pending"
    PAUSED = "paused"
    PIN_ABSENT = "pinned_absent"
    RECOVERING = "recovering"
    DRAINING = "changing_hands"
    BATCHED = "batch_out"
    WINDOW_FULL = "group_window_full"
    SUSPECT = "suspect"
    NUMBER_MISSING = "number_missing"
    # the consumer that would get it
    QUEUE_UNREAD = "queue_unread"
    EVICTED = "consumer_evicted"
    LOST = "consumer_lost"
    UNHEARD = "consumer_unheard"
    QUEUE_FULL = "consumer_queue_full"
    LEAVING = "consumer_leaving"
    KEPT_FREE = "consumer_kept_free"
    PREFETCH_FULL = "consumer_full"
    NO_CONSUMER = "no_consumer"
    NO_CAPACITY = "no_capacity"
    # messages without a group
    LIMIT_FULL = "group_limit_full"
    # elsewhere
    PARKED = "parked"
    PARKING_UNAVAILABLE = "parking_unavailable"


#: How what operators have set or ordered holds a group, or what they have to decide. The first is the answer.
FLAG_HOLDS: Final = (
    HoldKind.TRANSFERRING, HoldKind.STOPPED, HoldKind.PAUSED, HoldKind.PIN_ABSENT, HoldKind.DECIDED
)  # fmt: skip


class Hold(NamedTuple):
    """Why something does not go now. The facts are collected when they are asked for."""

    kind: HoldKind
    collect: Callable[[], Facts]

    @property
    def facts(self) -> Facts:
        """Plain values that say more about it; the names depend on the kind."""
        return self.collect()


class LaneHold(NamedTuple):
    """One cause that holds the whole lane until its owner lifts it, or until a time."""

    until_ms: int
    collect: Callable[[], Facts]


class FlagHolds(dict[HoldKind, Callable[[Group], bool]]):
    """For each of FLAG_HOLDS that the lane may have, whether it holds a group."""

    def first(self, group: Group) -> HoldKind | None:
        """The first one in FLAG_HOLDS that holds the group: messages that wait, and those that will come."""
        return next((kind for kind in FLAG_HOLDS if kind in self and self[kind](group)), None)


_RANKS: Final = {kind: rank for rank, kind in enumerate(HoldKind)}


class LaneHolds(dict[HoldKind, LaneHold]):
    """All causes that hold the whole lane. The module that sets a cause lifts it; one with a time also ends
    by itself."""

    def put(self, kind: HoldKind, collect: Callable[[], Facts] = dict, *, until_ms: int = NEVER_MS) -> None:
        """Hold the lane for this cause; `until_ms` is the first moment when it may go on."""
        self[kind] = LaneHold(until_ms, collect)

    def set(self, kind: HoldKind, *, stands: bool) -> None:
        """Hold the lane for this cause, or don't."""
        if stands:
            self.put(kind)
        else:
            self.lift(kind)

    def lift(self, kind: HoldKind) -> None:
        self.pop(kind, None)

    def until_ms(self, kind: HoldKind) -> int:
        """When this cause ends; 0: it does not hold the lane."""
        hold = self.get(kind)
        return 0 if hold is None else hold.until_ms

    @property
    def publishers_blocked(self) -> bool:
        """The broker reads nothing: no copy would leave, and no consumer can be heard."""
        return HoldKind.PUBLISHERS_BLOCKED in self

    @property
    def consumers_asked(self) -> bool:
        """Consumers are being asked which messages they have."""
        return bool(self) and HoldKind.CONSUMERS_ASKED in self

    @property
    def is_paused(self) -> bool:
        """An operator has paused the whole lane."""
        return HoldKind.LANE_PAUSED in self

    @property
    def suspended_until_ms(self) -> int:
        """Before this time nothing can be decided: Redis may have forgotten things, or this dispatcher is
        about to stop. 0: all can be decided."""
        if not self:
            return 0
        return max(self.until_ms(HoldKind.CONSUMERS_ASKED), self.until_ms(HoldKind.STOPPING))

    def first(self, now_ms: int) -> HoldKind | None:
        """The most important cause that holds the lane now."""
        standing = [kind for kind, hold in self.items() if now_ms < hold.until_ms]
        return min(standing, key=_RANKS.__getitem__) if standing else None

    def facts(self, kind: HoldKind, now_ms: int) -> Facts:
        """What its owner says about it, and for how long it lasts at most, where that is known."""
        until_ms, collect = self[kind]
        return collect() if until_ms == NEVER_MS else {**collect(), "left_ms": until_ms - now_ms}
