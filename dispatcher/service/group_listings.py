"""Lists groups of a lane, looking at a few at a time while the lane goes on."""

from __future__ import annotations

import asyncio
from typing import Any, Final, NamedTuple

from dispatcher.core.views.views import Views

#: Groups that are looked at in one go: about a millisecond.
GROUPS_AT_A_TIME: Final = 500
#: Who looks again and again gets a listing that is perhaps a little old: after each new one there is none for
#: this many times as long as it took. So a tenth of the time goes into them, however many look.
REST_FACTOR: Final = 10
#: Listings that are kept, by what was asked for.
KEPT_MAX: Final = 16


class _Kept(NamedTuple):
    result: dict[str, Any]
    until_s: float


class GroupListings:
    """One listing after another: each has a list of all groups, and shares the event loop with the lane."""

    def __init__(self, views: Views) -> None:
        self._views = views
        self._turn = asyncio.Lock()
        self._kept: dict[str, _Kept] = {}  # the one used longest ago first
        self._kept_turn = asyncio.Lock()
        self._rests_until_s = 0.0

    async def groups(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The result of `groups.list`. Raises CommandRefused, ValueError."""
        async with self._turn:
            listing = self._views.listing(arguments)
            while not listing.look_at(GROUPS_AT_A_TIME):  # noqa: ASYNC110  # it is this loop that works
                await asyncio.sleep(0)
            return self._views.listed(listing)

    async def kept_groups(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The same for a page that is loaded again and again, perhaps as of a moment ago. What was not asked
        for lately may have to wait for its turn. Raises CommandRefused, ValueError."""
        loop, key = asyncio.get_running_loop(), repr(sorted(arguments.items()))
        if (kept := self._fresh(key)) is not None:
            return kept
        async with self._kept_turn:
            if (kept := self._fresh(key)) is not None:  # somebody else has asked for the same
                return kept
            await asyncio.sleep(self._rests_until_s - loop.time())
            began_s = loop.time()
            result = await self.groups(arguments)
            self._rests_until_s = loop.time() + REST_FACTOR * (loop.time() - began_s)
            self._kept[key] = _Kept(result, self._rests_until_s)
            if len(self._kept) > KEPT_MAX:
                del self._kept[next(iter(self._kept))]
            return result

    def _fresh(self, key: str) -> dict[str, Any] | None:
        kept = self._kept.pop(key, None)
        if kept is None or asyncio.get_running_loop().time() > kept.until_s:
            return None
        self._kept[key] = kept
        return kept.result

    async def see_what_is_full(self) -> None:
        """Have the views know which group fills a look-ahead, if one is full."""
        if self._views.is_full():
            await self.groups({"limit": 1})
