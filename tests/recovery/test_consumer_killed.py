"""kill -9 of consumer processes under load: what they had in hand reaches others in order, as soon as the
death is seen (C-1)."""

from __future__ import annotations

import statistics

import pytest

from dispatcher.judge.record import HandlingRecord
from tests.conftest import Vhost
from tests.recovery.conftest import OpenScene
from tests.recovery.scene import Scene

KILLS = 5
#: The death is seen within `liveness_interval`, 0.2 s here, and the rest is the machine's. Only a fault
#: exceeds this: a message that waits for something else, of which the shortest is a heartbeat of 10 s, missed
#: twice.
MEDIAN_S = 5.0
AT_MOST_S = 15.0
#: Long enough that everybody has several messages in hand at any time.
WORK_MS = 40
#: They note when a message has reached them, not just when its turn has come.
KIND = "iterating"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def _reached_s(scene: Scene, record: list[HandlingRecord]) -> dict[str, float]:
    """For each kill: from it to the arrival, at whoever got them next, of the last message that it left."""
    first_attempts = {h.message: h.life for h in record if h.attempt == 1}
    times: dict[str, float] = {}
    for handling in record:
        before = first_attempts.get(handling.message)
        killed_at = scene.killed_at.get(before or "")
        if handling.attempt == 2 and before is not None and killed_at is not None:
            assert handling.received is not None
            times[before] = max(times.get(before, 0.0), handling.received - killed_at)
    return times


@pytest.mark.seed("Q9", "A3", "R15")
@pytest.mark.parametrize("policy", ["exclusive", "sequenced"])
async def test_others_get_its_messages(vhost: Vhost, open_scene: OpenScene, policy: str) -> None:
    scene = await open_scene(vhost, policy, dispatchers=1, work_ms=WORK_MS, kinds=(KIND,) * 4)
    for _ in range(KILLS):
        life = scene.random.choice(scene.living()[:-1])  # the latest may have nothing in hand yet
        scene.kill_consumer(life)
        scene.start_consumer(life.consumer_id, KIND)
        await scene.goes_on()
        await scene.has_consumers(4)
    await scene.verify()
    times = _reached_s(scene, scene.record())
    print(f"{policy}: {len(times)} kills, reached others after {[round(t, 3) for t in times.values()]} s")
    assert times, "no kill hit a message in hand"
    assert statistics.median(times.values()) < MEDIAN_S, times
    assert max(times.values()) < AT_MOST_S, times
