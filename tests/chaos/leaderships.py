"""Who led a lane when, by the dispatchers' logs."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, Final, NamedTuple

from tests.chaos.lanes import LaneOnStage
from tests.chaos.parts import Replica
from tests.chaos.stage import Stage
from tests.service.harness import log_records


class Leadership(NamedTuple):
    """Somebody led a lane."""

    since: float
    until: float
    who: str = ""


_ENDS: Final = ("ended", "lane_interrupted", "lane_failed")


def leaderships(stage: Stage, lane: LaneOnStage) -> tuple[list[Leadership], list[float]]:
    """Who led the lane, by the logs; and when a leader had written everything back to Redis."""
    led, restored = [], []
    for replica in stage.replicas:
        events = _events(replica, lane)
        restored += [at for at, event, _ in events if event == "redis_restored"]
        ends = [at for at, event, _ in events if event in _ENDS]
        for since in (at for at, event, _ in events if event == "lane_led"):
            until = min((end for end in ends if end > since), default=math.inf)
            led.append(Leadership(since, until, replica.name))
    return sorted(led), restored


def without_redis(stage: Stage, lane: LaneOnStage) -> list[Leadership]:
    """When a leader could not reach Redis, until that had everything: a leader says so only when nothing is
    missing, or when it has written back what was."""
    found = []
    for replica in stage.replicas:
        since: float | None = None
        for at, event, _ in _events(replica, lane):
            if event == "redis_unavailable":
                since = at
            elif event == "redis_available" and since is not None:
                found.append(Leadership(since, at, replica.name))
                since = None
            elif event in _ENDS:
                since = None
    return found


def paused_by_moves(stage: Stage, lane: LaneOnStage) -> list[tuple[float, float]]:
    """When groups were to move with `pause: lane`, and the whole lane waited for a consumer that stood still:
    it waits until all consumers have settled what they had in hand."""
    silent = [interval for process in stage.consumers if process.lane is lane for interval in process.silent]
    found = []
    for replica in stage.replicas:
        events = _events(replica, lane)
        ends = [at for at, event, _ in events if event in (*_ENDS, "lane_goes_on")]
        for at, event, record in events:
            if event == "groups_moving" and record["pause"] == "lane" and record["groups"]:
                goes_on_at = min((end for end in ends if end > at), default=math.inf)
                still = [until for since, until in silent if since < goes_on_at and until > at]
                found.append((at, min(goes_on_at, max(still, default=at))))
    return found


def said(logs: Iterable[str], lane: str) -> Iterator[tuple[float, dict[str, Any]]]:
    """What dispatchers' logs say of this lane, with the time on the clock of the record."""
    offset = time.time() - time.monotonic()
    for record in (record for log in logs for record in log_records(log)):
        if record.get("lane") == lane:
            yield datetime.fromisoformat(record["timestamp"]).timestamp() - offset, record


def _events(replica: Replica, lane: LaneOnStage) -> list[tuple[float, str, dict[str, Any]]]:
    """What it said of this lane, and when it ended."""
    events: list[tuple[float, str, dict[str, Any]]] = [(at, "ended", {}) for at in replica.ended_at]
    events += [(at, record["event"], record) for at, record in said([replica.process.whole_log()], lane.name)]
    return sorted(events, key=lambda event: event[:2])
