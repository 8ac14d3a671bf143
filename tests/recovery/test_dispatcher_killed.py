"""kill -9 of the active dispatcher at random moments under load, with killed consumers among them.

Every message is handled once and in order by the same owners (G-1 to G-4, G-6); what a killed consumer had
in hand comes again, with a higher attempt, before everything later of its group.
"""

from __future__ import annotations

import asyncio
import os
import statistics

import pytest

from tests.conftest import Vhost
from tests.recovery.conftest import OpenScene
from tests.recovery.scene import Scene
from tests.spec.lane_bench import clause

#: More for a soak: DISPATCHER_TEST_KILLS=1000.
KILLS = int(os.environ.get("DISPATCHER_TEST_KILLS", "5"))
TIMEOUT_S = 300 + 20 * KILLS  # on a busy machine
#: Every so many kills of a dispatcher one consumer dies as well.
CONSUMER_KILL_EVERY = 4


async def _kill_again_and_again(scene: Scene, kills: int) -> None:
    for number in range(1, kills + 1):
        leader = await scene.led()
        await asyncio.sleep(scene.random.uniform(0.0, 0.6))  # sleeps: the random moment
        if number % CONSUMER_KILL_EVERY == 0:
            life = scene.random.choice(scene.living())
            scene.kill_consumer(life)
            scene.start_consumer(life.consumer_id)
        if number % CONSUMER_KILL_EVERY == 2:
            await asyncio.sleep(scene.random.uniform(0.0, 0.1))  # sleeps: consumer and dispatcher die apart
        scene.kill_dispatcher(leader)
        leader.start()
        if number % 5 == 0:  # a successor dies in the middle of its recovery as well
            other = next(d for d in scene.dispatchers if d is not leader)
            await asyncio.sleep(scene.random.uniform(0.0, 0.15))  # sleeps: the random moment
            scene.kill_dispatcher(other)
            other.start()


@pytest.mark.seed("C1", "Q10", "Q11", "Q12", "Q13")
@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("policy", ["exclusive", "sequenced"])
async def test_nothing_lost_doubled_or_out_of_order(vhost: Vhost, open_scene: OpenScene, policy: str) -> None:
    clause("G-4", "hands no message over twice to a consumer that drops an `x-dispatch-seq` it knows")
    clause("G-6", "changes no owner whose process lives")
    scene = await open_scene(vhost, policy)
    await _kill_again_and_again(scene, KILLS)
    await scene.led()
    await scene.goes_on()
    times = scene.fail_over_s()
    kills = len(scene.dispatcher_killed_at)
    print(f"{policy}: {kills} kills, median {statistics.median(times):.3f} s, worst {max(times):.3f} s")
    for dispatcher in scene.dispatchers:  # one that only begins to start would not end in order
        await asyncio.to_thread(dispatcher.ready)
    await scene.verify()
    print(f"{len(scene.record())} handlings")
    assert kills >= KILLS
