"""What a dispatcher process says about itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.service.harness import LANE, DispatcherProcess


async def metric(dispatcher: DispatcherProcess, name: str) -> float:
    """The value of a metric that only has the label `lane`."""
    _, text = await asyncio.to_thread(dispatcher.get, "/metrics")
    start = f'{name}{{lane="{LANE}"}} '
    return next(float(line.removeprefix(start)) for line in text.splitlines() if line.startswith(start))


def memory_kb(dispatcher: DispatcherProcess, field: str = "VmRSS") -> int:
    """Resident memory; `VmHWM` is its peak."""
    lines = Path(f"/proc/{dispatcher.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))
