"""Who led a lane when, by the dispatchers' logs."""

from __future__ import annotations

import math
import time
from datetime import datetime
from typing import NamedTuple

from tests.chaos.lanes import LaneOnStage
from tests.chaos.stage import Stage
from tests.service.harness import log_records


class Leadership(NamedTuple):
    """Somebody led a lane."""

    since: float
    until: float
    who: str = ""


def leaderships(stage: Stage, lane: LaneOnStage) -> tuple[list[Leadership], list[float]]:
    """Who led the lane, by the logs; and when a leader had written everything back to Redis."""
    offset = time.time() - time.monotonic()
    led, restored = [], []
    for replica in stage.replicas:
        events: list[tuple[float, str]] = [(at, "ended") for at in replica.ended_at]
        for record in log_records(replica.process.whole_log()):
            if record.get("lane") == lane.name:
                at = datetime.fromisoformat(record["timestamp"]).timestamp() - offset
                events.append((at, record["event"]))
        events.sort()
        restored += [at for at, event in events if event == "redis_restored"]
        ends = [at for at, event in events if event in ("ended", "lane_interrupted", "lane_failed")]
        for since in (at for at, event in events if event == "lane_led"):
            until = min((end for end in ends if end > since), default=math.inf)
            led.append(Leadership(since, until, replica.name))
    return sorted(led), restored
