"""What the HTTP server asks a lane; the service implements it."""

from __future__ import annotations

from typing import Any, Protocol


class LaneView(Protocol):
    """One lane as seen from outside. Every method but `top_groups` answers at once; none changes anything."""

    @property
    def name(self) -> str: ...

    def readiness(self) -> tuple[bool, str]:
        """Whether it dispatches or stands by, and one line that says so or why not."""
        ...

    def overview(self) -> dict[str, Any]:
        """The result of the command `status`; less of it while the lane is not active here."""
        ...

    def counters(self) -> dict[str, float]:
        """Totals since this process leads the lane; empty while it doesn't."""
        ...

    def consumers(self) -> dict[str, Any]:
        """The result of the command `consumers.list`; no consumers while the lane is not active here."""
        ...

    async def top_groups(self, limit: int) -> dict[str, Any]:
        """The result of `groups.list`, deepest first; no groups while the lane is not active here. With very
        many groups it takes a moment, in which the lane goes on."""
        ...
