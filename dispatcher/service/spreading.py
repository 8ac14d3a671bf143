"""Leaderships are spread over the replicas: who leads two lanes more than one that stands by gives it one.

One lane at a time, so that the difference is looked at again before the next. The lane pauses for as long as
at a clean stop of its leader. Replicas tell each other in Redis how many lanes they lead (`Replicas`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from dispatcher.service.lane_runner import LaneRunner
from dispatcher.service.replicas import BEAT_S

#: Between two looks: so long all have heard of the last change, several times.
LOOK_S: Final = 4 * BEAT_S


class Gift(NamedTuple):
    """A lane, and which replica is to lead it."""

    runner: LaneRunner
    heir: str


async def spread(runners: Sequence[LaneRunner], look_s: float = LOOK_S) -> None:
    """Give lanes away until cancelled. `runners` may change meanwhile."""
    while True:
        await asyncio.sleep(look_s)
        gift = uneven(runners)
        if gift is not None:
            await gift.runner.give_to(gift.heir)


def uneven(runners: Sequence[LaneRunner]) -> Gift | None:
    """What this process should give away: the last of its lanes for which a replica stands by that leads two
    lanes fewer, to the one that leads fewest."""
    ours = [runner for runner in runners if runner.leads]
    found = [
        (led, -place, heir)
        for place, runner in enumerate(ours)
        for heir, led in runner.others().items()
        if led <= len(ours) - 2
    ]
    if not found:
        return None
    _, place, heir = min(found)
    return Gift(ours[-place], heir)
