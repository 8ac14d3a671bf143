"""What is done to the dispatchers of a running scene, and how long its messages waited for it."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from tests.recovery.pauses import longest_waits
from tests.recovery.scene import Scene

#: Messages handed over after a harm before the next: what waited is then through.
AFTER: Final = 300
#: What was published shortly before a harm waits for its end as well.
BEFORE_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Measured:
    """One harm."""

    harm: str
    led_s: list[float]  # from the harm to the next leadership; a rolling restart has several, and no one harm
    waits_s: list[float]  # of each group: the longest from a publish to the start of its handling

    def __str__(self) -> str:
        led = "".join(f"led after {seconds:.3f} s, " for seconds in self.led_s)
        waits = f"median {statistics.median(self.waits_s):.3f} s, worst {max(self.waits_s):.3f} s"
        return f"{led}longest wait of {len(self.waits_s)} groups: {waits}"


async def kill(scene: Scene) -> None:
    leader = await scene.led()
    leader.kill9()
    await scene.followed(leader)
    leader.start()


async def stop(scene: Scene) -> None:
    leader = await scene.led()
    await asyncio.to_thread(leader.terminate)
    await scene.followed(leader)
    leader.start()


async def freeze(scene: Scene) -> None:
    leader = await scene.led()
    os.kill(leader.pid, signal.SIGSTOP)
    try:
        await scene.followed(leader, timeout_s=120)
    finally:
        os.kill(leader.pid, signal.SIGCONT)


async def rolling(scene: Scene) -> None:
    for dispatcher in scene.dispatchers:
        await scene.restart(dispatcher)


HARMS: Final[dict[str, Callable[[Scene], Awaitable[None]]]] = {
    "kill": kill,
    "stop": stop,
    "freeze": freeze,
    "rolling": rolling,
}


async def measure(scene: Scene, name: str) -> Measured:
    """Do it once, everybody being there; returns when messages flow again."""
    for dispatcher in scene.dispatchers:
        await asyncio.to_thread(dispatcher.ready)
    await scene.goes_on(AFTER)
    since, since_1970 = time.monotonic(), time.time()
    await HARMS[name](scene)
    until = time.monotonic()
    await scene.goes_on(AFTER)
    waits = longest_waits(scene.record(), scene.producer.sent_at, since - BEFORE_S, until)
    led = [at - since_1970 for at in scene.led_at() if at > since_1970]
    return Measured(name, [] if name == "rolling" else led[:1], list(waits.values()))
