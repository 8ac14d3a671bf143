"""What the HTTP server asks a lane; the service implements it."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol


class Spread(NamedTuple):
    """The mean and the longest of some durations."""

    mean_ms: float
    longest_ms: float


class Buckets(NamedTuple):
    """A histogram of durations."""

    up_to: tuple[tuple[float, int], ...]  # ascending bounds in seconds, and how many took that long at most
    total: int
    sum_s: float


class LaneSample(NamedTuple):
    """Numbers of a lane now. `settled` and `dispatched` count since this leadership began."""

    lane_epoch: int  # which leadership
    settled: int
    dispatched: int
    waiting: int
    parked: int
    in_flight: int
    ready: int | None  # in the inbound queues, at the sample before; None: not known yet
    #: Since the sample before; None: there was none. A commit lasts from its order to Redis' answer,
    commit: Spread | None
    confirm: Spread | None  # a confirm from the publish to RabbitMQ's answer


class LaneView(Protocol):
    """One lane as seen from outside. Nothing here changes it but `command`.

    What returns None does so while the lane is not active here; `overview` tells less then. With very many
    groups `groups` takes a moment, in which the lane goes on; all else answers at once.
    """

    @property
    def name(self) -> str: ...

    def readiness(self) -> tuple[bool, str]:
        """Whether it dispatches or stands by, and one line that says so or why not."""
        ...

    def leader(self) -> str | None:
        """Host and process id of another one that leads it, while this stands by; None: not known, or not
        yet."""
        ...

    def overview(self) -> dict[str, Any]:
        """The result of the command `status`, and how many messages are ready in each inbound queue."""
        ...

    def counters(self) -> dict[str, float]:
        """Totals since this process leads the lane; empty while it doesn't."""
        ...

    def durations(self) -> dict[str, Buckets]:
        """Histograms since this process leads the lane, by the names of `http.metrics.HISTOGRAMS`; empty
        while it doesn't."""
        ...

    def consumers(self) -> dict[str, Any] | None:
        """The result of the command `consumers.list`."""
        ...

    async def groups(self, arguments: dict[str, Any]) -> dict[str, Any] | None:
        """The result of `groups.list`, perhaps as of a moment ago. Raises CommandRefused, ValueError."""
        ...

    def busiest_groups(self, count: int) -> dict[str, Any] | None:
        """So many rows of `groups.list`, each with the group's `share` of the last minute's messages."""
        ...

    def group(self, group: str) -> dict[str, Any] | None:
        """The results of `groups.show`, without headers, and of `groups.why`; and `history`, what has
        happened to it lately, the newest first. Raises CommandRefused where there is no such group,
        ValueError."""
        ...

    def stopped(self, after: str | None) -> dict[str, Any] | None:
        """The result of `dead.stopped`. Raises CommandRefused, ValueError."""
        ...

    def dead_letters(self) -> dict[str, Any] | None:
        """The latest `messages` that this leadership sent to the dead queue, with their reasons, the newest
        first."""
        ...

    def operations(self) -> dict[str, Any] | None:
        """Operations on groups that are under way."""
        ...

    async def command(
        self, name: str, arguments: dict[str, Any], uuid: str, user: str
    ) -> dict[str, Any] | None:
        """The result of a command of operators that changes something; one with a uuid that was done is not
        done again. Log and ledger name the user. Raises CommandRefused, NoAnswer."""
        ...

    def sample(self) -> LaneSample | None:
        """To be called by one caller, again and again: some of it is told since the call before."""
        ...
