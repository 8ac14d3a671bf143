"""Lists all groups of a lane, looking at a few at a time while the lane goes on."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from dispatcher.core.views.views import Views

#: Groups that are looked at in one go: about a millisecond.
GROUPS_AT_A_TIME: Final = 500
#: A page is shown again for this many times as long as it took to find it: a tenth of the time goes into
#: that.
KEPT_FACTOR: Final = 10


class GroupListings:
    """One listing after another: each has a list of all groups, and shares the event loop with the lane."""

    def __init__(self, views: Views) -> None:
        self._views = views
        self._turn = asyncio.Lock()
        self._kept: dict[str, Any] | None = None  # what `deepest` found last
        self._kept_limit = 0
        self._kept_until_s = 0.0

    async def groups(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The result of `groups.list`. Raises CommandRefused, ValueError."""
        async with self._turn:
            listing = self._views.listing(arguments)
            while not listing.look_at(GROUPS_AT_A_TIME):  # noqa: ASYNC110  # it is this loop that works
                await asyncio.sleep(0)
            return self._views.listed(listing)

    async def deepest(self, limit: int) -> dict[str, Any]:
        """The deepest groups, for a page that is loaded again and again: perhaps a little old."""
        loop = asyncio.get_running_loop()
        if self._kept is None or self._kept_limit != limit or loop.time() > self._kept_until_s:
            began_s = loop.time()
            self._kept, self._kept_limit = await self.groups({"limit": limit}), limit
            self._kept_until_s = loop.time() + KEPT_FACTOR * (loop.time() - began_s)
        return self._kept

    async def see_what_is_full(self) -> None:
        """Have the views know which group fills a look-ahead, if one is full."""
        if self._views.is_full():
            await self.groups({"limit": 1})
