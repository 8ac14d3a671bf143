"""A listing of groups that is made in parts, so that the lane goes on in between, however many there are."""

from __future__ import annotations

import fnmatch
import heapq
import re
from collections.abc import Callable
from typing import Any, Final

from dispatcher.core.bounds import GROUPS_PER_PAGE_MAX, NEVER_MS
from dispatcher.core.holds import HoldKind
from dispatcher.core.model import Group
from dispatcher.core.operators.commands import argument
from dispatcher.core.queue_ids import QueueId
from dispatcher.core.state import LaneState
from dispatcher.core.views.group_depth import depth, oldest_ms
from dispatcher.core.views.group_states import AskedState
from dispatcher.core.waiting import waits_since_ms
from dispatcher.errors import CommandRefused
from dispatcher.wire.group_text import format_group, parse_group

GROUPS_PER_PAGE: Final = 100
#: Groups that are kept in order while all are looked at.
GROUPS_RANKED_MAX: Final = 5_000

Key = tuple[Any, bytes]
_DEPTH: Final = "depth"
_ORDERS: Final = (_DEPTH, "age", "group")
#: As `reason`: groups that can't go on, whatever holds them.
ANY_REASON: Final = "any"


class GroupListing:
    """The first groups by depth, age or name, and which group fills each inbound queue.

    `arguments` are those of the command `groups.list`. Groups that come or go meanwhile may be missed, or
    be there no more. Raises CommandRefused, ValueError.
    """

    def __init__(self, state: LaneState, arguments: dict[str, Any]) -> None:
        limit, offset = (argument(arguments, name, int) for name in ("limit", "offset"))
        order, self._wanted, after = (argument(arguments, name, str) for name in ("sort", "state", "after"))
        limit, self._offset = GROUPS_PER_PAGE if limit is None else limit, offset or 0
        self._owner, match = (argument(arguments, name, str) for name in ("owner", "match"))
        self._reason = argument(arguments, "reason", str)
        self._match = _pattern(match) if match is not None else None
        order = order or _DEPTH
        _check(limit, self._offset, self._wanted)
        _check_reason(self._reason)
        if order not in _ORDERS:
            raise CommandRefused(f"can't sort by {order!r}; sort by {', '.join(_ORDERS)}")
        if after is not None and order != "group":
            raise CommandRefused("after: goes with sorting by group")
        self._after = parse_group(after) if after is not None else None
        keys: dict[str, Callable[[Group], Key]] = {_DEPTH: self._by_depth, "age": self._by_age}
        self._key = keys.get(order, _by_name)
        self._ranks = self._offset + limit
        self._state = state
        self._left = list(state.groups.values())  # taken from the end
        self._ranked: list[tuple[Key, Group]] = []
        self._worst: Key | None = None  # nothing behind it is of interest
        self._deepest: list[tuple[int, bytes] | None] = [None for _ in state.inbounds]
        self.total = 0  # groups that were asked for, whatever the limit

    def look_at(self, count: int) -> bool:
        """Look at `count` more groups; True when all were looked at."""
        left, known = self._left, self._state.groups
        for _ in range(min(count, len(left))):
            group = left.pop()
            if known.get(group.id) is group:
                self._look_at(group)
        return not left

    def _look_at(self, group: Group) -> None:
        if group.backlogs:  # most groups have none
            for index, backlog in group.backlogs.items():
                depth, deepest = len(backlog.messages), self._deepest[index]
                if deepest is None or depth > deepest[0]:
                    self._deepest[index] = (depth, group.id)
        if not self._is_wanted(group):
            return
        self.total += 1
        if self._after is not None and group.id <= self._after:
            return
        key = self._key(group)
        if self._worst is None or key < self._worst:
            self._ranked.append((key, group))
            if len(self._ranked) >= 2 * self._ranks:
                self._rank()

    def _is_wanted(self, group: Group) -> bool:
        if self._wanted is not None and not self._has_state(group, self._wanted):
            return False
        if self._owner is not None and (group.owner is None or group.owner.id != self._owner):
            return False
        if self._match is not None and self._match(format_group(group.id)) is None:
            return False
        return self._reason is None or self._is_held(group)

    def _is_held(self, group: Group) -> bool:
        """Whether the wanted reason holds it, or any."""
        hold = self._state.explanation.why(group)
        return hold is not None and self._reason in (ANY_REASON, hold.kind.value)

    def _has_state(self, group: Group, wanted: str) -> bool:
        is_shown = self._state.explanation.shown_as.get(wanted)
        return is_shown(group) if is_shown is not None else group.state.value == wanted

    def _rank(self) -> None:
        self._ranked = heapq.nsmallest(self._ranks, self._ranked, key=lambda ranked: ranked[0])
        if len(self._ranked) == self._ranks:
            self._worst = self._ranked[-1][0]

    def _by_depth(self, group: Group) -> Key:
        return -depth(self._state, group), group.id

    def _by_age(self, group: Group) -> Key:
        """Since when the oldest waits, here or parked; groups of which nothing does come last."""
        since_ms = oldest_ms(self._state, group, waits_since_ms(group))
        return NEVER_MS if since_ms is None else since_ms, group.id

    def page(self) -> list[Group]:
        """The groups that were asked for, in their order."""
        self._rank()
        return [group for _, group in self._ranked[self._offset :]]

    def deepest(self, inbound: QueueId) -> bytes | None:
        """The group with most messages waiting from this inbound queue."""
        deepest = self._deepest[inbound]
        return deepest[1] if deepest is not None else None


def _pattern(text: str) -> Callable[[str], re.Match[str] | None]:
    """`*` and `?` stand for any; a bracket, which ids may have as well, for itself."""
    return re.compile(fnmatch.translate(text.replace("[", "[[]"))).match


def _by_name(group: Group) -> Key:
    return 0, group.id


def _check(limit: int, offset: int, state: str | None) -> None:
    if limit < 1 or offset < 0:
        raise CommandRefused("limit must be at least 1 and offset at least 0")
    if limit > GROUPS_PER_PAGE_MAX:
        raise CommandRefused(f"limit: at most {GROUPS_PER_PAGE_MAX} groups at a time")
    if offset + limit > GROUPS_RANKED_MAX:
        raise CommandRefused(
            f"only the first {GROUPS_RANKED_MAX} can be listed by their place: "
            "sort by group and name the last one seen (after) to see all"
        )
    if state is not None and state not in set(AskedState):
        raise CommandRefused(f"no group state {state!r}; states are {', '.join(AskedState)}")


def _check_reason(reason: str | None) -> None:
    known = {ANY_REASON, *(kind.value for kind in HoldKind)}
    if reason is not None and reason not in known:
        raise CommandRefused(f"no reason {reason!r}; reasons are {', '.join(sorted(known))}")
