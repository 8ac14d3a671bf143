"""The last ten minutes of each lane's numbers, for sparklines: one sample every five seconds.

A sample reads what the lane counts anyway: a dozen additions, and one round trip to RabbitMQ for each inbound
queue, which answers in the background. So it is taken whether anybody looks or not.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from time import time
from typing import Any, Final, NamedTuple

from dispatcher.http.views import LaneSample, LaneView, Spread

INTERVAL_S: Final = 5
SAMPLES_KEPT: Final = 120


class SamplePoint(NamedTuple):
    """What is shown of one sample; None: not known, as while the lane was not led here."""

    settled_per_s: float | None = None
    dispatched_per_s: float | None = None
    backlog: int | None = None
    in_flight: int | None = None
    commit_ms: float | None = None
    commit_longest_ms: float | None = None
    confirm_ms: float | None = None
    confirm_longest_ms: float | None = None


class Samples:
    """Samples these lanes from `start` to `stop`."""

    def __init__(self, lanes: Sequence[LaneView]) -> None:
        self._lanes = lanes
        self._points: dict[str, deque[SamplePoint]] = {}
        self._latest: dict[str, LaneSample | None] = {}
        self._at_s = 0.0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        due_s, before_s = loop.time(), loop.time() - INTERVAL_S
        while True:
            now_s = loop.time()
            self.sample(now_s - before_s)
            before_s = now_s
            due_s = max(due_s + INTERVAL_S, now_s)
            await asyncio.sleep(due_s - now_s)

    def sample(self, elapsed_s: float) -> None:
        """Take a sample of every lane, so long after the one before."""
        self._at_s = time()
        names = {lane.name for lane in self._lanes}
        for gone in self._points.keys() - names:
            del self._points[gone], self._latest[gone]
        for lane in self._lanes:
            now, before = lane.sample(), self._latest.get(lane.name)
            self._latest[lane.name] = now
            points = self._points.setdefault(lane.name, deque(maxlen=SAMPLES_KEPT))
            points.append(SamplePoint() if now is None else _point(now, before, elapsed_s))

    def table(self, lane: str | None = None) -> dict[str, Any]:
        """A list for each number of a lane, the newest last; of one lane or of all."""
        wanted = {name: points for name, points in self._points.items() if lane in (None, name)}
        return {
            "interval_ms": INTERVAL_S * 1_000,
            "at_ms": int(self._at_s * 1_000),
            "lanes": {
                name: {
                    field: [point[place] for point in points]
                    for place, field in enumerate(SamplePoint._fields)
                }
                for name, points in wanted.items()
            },
        }


def _point(now: LaneSample, before: LaneSample | None, elapsed_s: float) -> SamplePoint:
    same = before is not None and before.lane_epoch == now.lane_epoch  # else the totals began anew
    settled = before.settled if before is not None and same else None
    dispatched = before.dispatched if before is not None and same else None
    return SamplePoint(
        None if settled is None else round((now.settled - settled) / elapsed_s, 1),
        None if dispatched is None else round((now.dispatched - dispatched) / elapsed_s, 1),
        now.waiting + now.parked + (now.ready or 0),
        now.in_flight,
        *_rounded(now.commit),
        *_rounded(now.confirm),
    )


def _rounded(spread: Spread | None) -> tuple[float | None, float | None]:
    return (None, None) if spread is None else (round(spread.mean_ms, 3), round(spread.longest_ms, 3))
