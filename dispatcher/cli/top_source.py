"""What `dispatcher top` shows, asked of the lanes' leaders over one connection; and its commands to them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from pika.adapters.blocking_connection import BlockingConnection
from pika.exceptions import AMQPError

from dispatcher.cli.command_client import ask
from dispatcher.cli.rabbitmq import connected, look_at_queue
from dispatcher.cli.verbs import Verb
from dispatcher.errors import BrokerUnavailable, DispatcherError
from dispatcher.settings import Settings
from dispatcher.wire.protocol import LaneNames

#: More rows than a terminal has lines.
GROUPS_SHOWN = 200


class View(StrEnum):
    LANES = "lanes"
    GROUPS = "groups"
    CONSUMERS = "consumers"


class LookRequest(NamedTuple):
    """What to look at."""

    view: View
    lane: str  # of groups and consumers
    sort: str  # of groups, as `groups list --sort` has it
    pattern: str | None  # of groups' ids


@dataclass(slots=True)
class LaneNow:
    """One lane; without a status its leader did not answer."""

    lane: str
    status: dict[str, Any] | None = None
    ready: int | None = None  # messages in the inbound queues that the dispatcher has not got
    settled_per_s: float | None = None
    dispatched_per_s: float | None = None


class Seen(NamedTuple):
    """One look."""

    lanes: Mapping[str, LaneNow]
    rows: Sequence[dict[str, Any]]  # groups or consumers
    total: int
    problem: str | None


class TopSource(Protocol):
    """Where looks come from. One thread at a time calls it."""

    lanes: Sequence[str]

    def look(self, wanted: LookRequest) -> Seen: ...

    def why(self, lane: str, group: str) -> dict[str, Any]:
        """The result of `groups why`. Raises DispatcherError."""
        ...

    def carry_out(self, lane: str, verb: Verb) -> dict[str, Any]:
        """Its result. Raises DispatcherError."""
        ...

    def close(self) -> None: ...


class LeaderSource:
    """Asks as the other commands do."""

    def __init__(self, settings: Settings, lanes: Sequence[str], timeout_ms: int) -> None:
        self.lanes = lanes
        self._settings = settings
        self._timeout_ms = timeout_ms
        self._stack = ExitStack()
        self._connection: BlockingConnection | None = None
        self._rates = Rates()

    def look(self, wanted: LookRequest) -> Seen:
        """Only the lane that is looked at, or all of them."""
        names = self.lanes if wanted.view is View.LANES else [wanted.lane]
        now = {name: LaneNow(name) for name in names}
        rows: list[dict[str, Any]] = []
        total, problem = 0, None
        for lane in now.values():
            try:
                lane.status = self._ask(lane.lane, "status", {})
                lane.ready = self._ready(lane.lane)
                self._rates.add(lane, time.monotonic())
            except DispatcherError as error:
                problem = str(error)
        if problem is None and wanted.view is not View.LANES:
            try:
                rows, total = self._rows(wanted)
            except DispatcherError as error:
                problem = str(error)
        return Seen(now, rows, total, problem)

    def _rows(self, wanted: LookRequest) -> tuple[list[dict[str, Any]], int]:
        if wanted.view is View.CONSUMERS:
            consumers = self._ask(wanted.lane, "consumers.list", {}).get("consumers", [])
            self._rates.add_consumers(consumers, time.monotonic())
            return consumers, len(consumers)
        arguments = {"limit": GROUPS_SHOWN, "sort": wanted.sort, "match": wanted.pattern}
        result = self._ask(wanted.lane, "groups.list", arguments)
        return result.get("groups", []), int(result.get("total", 0))

    def why(self, lane: str, group: str) -> dict[str, Any]:
        return self._ask(lane, "groups.why", {"group": group})

    def carry_out(self, lane: str, verb: Verb) -> dict[str, Any]:
        return self._ask(lane, verb.command, verb.arguments)

    def close(self) -> None:
        self._connection = None
        stack, self._stack = self._stack, ExitStack()
        stack.close()

    def _ready(self, lane: str) -> int | None:
        looks = [look_at_queue(self._connected(), each.queue) for each in self._settings.lanes[lane].inbound]
        ready = [look.ready for look in looks if look.ready is not None]
        return sum(ready) if ready else None

    def _ask(self, lane: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        names = LaneNames(lane, self._settings.prefix)
        try:
            return ask(self._connected(), names, name, arguments, timeout_ms=self._timeout_ms)
        except (AMQPError, OSError) as error:
            self.close()
            raise BrokerUnavailable(f"RabbitMQ ended the connection: {error!r}") from None

    def _connected(self) -> BlockingConnection:
        if self._connection is None or self._connection.is_closed:
            self.close()
            self._connection = self._stack.enter_context(connected(self._settings.rabbitmq, "top"))
        return self._connection


class Rates:
    """Messages per second between two looks at one leadership, or at one incarnation of a consumer."""

    def __init__(self) -> None:
        self._consumers: dict[str, tuple[float, int]] = {}  # by incarnation: when, and what it had got
        self._last: dict[str, tuple[Any, float, int, int]] = {}

    def add(self, lane: LaneNow, at_s: float) -> None:
        """Set the rates of a lane that was looked at now."""
        status = lane.status or {}
        settled = int(status.get("counters", {}).get("settled", 0))
        dispatched = sum(row.get("dispatched", 0) for row in status.get("inbound", []))
        before = self._last.get(lane.lane)
        self._last[lane.lane] = status.get("lane_epoch"), at_s, settled, dispatched
        if before is not None and before[0] == status.get("lane_epoch") and at_s > before[1]:
            lane.settled_per_s = (settled - before[2]) / (at_s - before[1])
            lane.dispatched_per_s = (dispatched - before[3]) / (at_s - before[1])

    def add_consumers(self, rows: Sequence[dict[str, Any]], at_s: float) -> None:
        """Set what each gets in a second."""
        before, self._consumers = self._consumers, {}
        for row in rows:
            uuid, total = str(row.get("incarnation")), int(row.get("handed_over") or 0)
            self._consumers[uuid] = at_s, total
            if uuid in before and at_s > before[uuid][0]:
                row["per_s"] = (total - before[uuid][1]) / (at_s - before[uuid][0])
