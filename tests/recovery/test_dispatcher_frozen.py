"""A dispatcher that stands still for a while and wakes up as nobody's leader does no harm (G-2, G-4)."""

from __future__ import annotations

import os
import signal

import pytest

from tests.conftest import Vhost
from tests.recovery.conftest import OpenScene
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.mark.parametrize("policy", ["exclusive", "sequenced"])
async def test_a_frozen_leader_is_replaced_and_wakes_up_as_a_standby(
    vhost: Vhost, open_scene: OpenScene, policy: str
) -> None:
    """Its heartbeat (1 s) ends its connection at the broker, and with it the fence."""
    scene = await open_scene(vhost, policy, heartbeat="1s")
    frozen = await scene.led()
    other = next(d for d in scene.dispatchers if d is not frozen)
    os.kill(frozen.pid, signal.SIGSTOP)
    try:
        await eventually(lambda: other.logged("lane_led"), 30, "the other one to lead")
        await scene.goes_on()
    finally:
        os.kill(frozen.pid, signal.SIGCONT)
    await eventually(lambda: "standing by" in frozen.get("/readyz")[1], 30, "the frozen one to stand by")
    await scene.goes_on()
    scene.kill_dispatcher(other)
    await scene.goes_on()
    await scene.verify()
