"""Fixtures of the recovery tests."""

from __future__ import annotations

import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.conftest import Vhost
from tests.recovery.scene import KINDS, WORK_MS, Scene, scene_of

OpenScene = Callable[..., Awaitable[Scene]]


@pytest.fixture
async def open_scene(tmp_path: Path) -> AsyncIterator[OpenScene]:
    """`await open_scene(vhost, policy)`: everything runs, under load."""
    async with AsyncExitStack() as stack:

        async def opened(
            vhost: Vhost,
            policy: str,
            dispatchers: int = 2,
            work_ms: int = WORK_MS,
            kinds: tuple[str, ...] = KINDS,
            **options: str,
        ) -> Scene:
            seed = random.randrange(sys.maxsize)
            folder = tmp_path / f"scene{sum(1 for _ in tmp_path.iterdir())}"
            folder.mkdir()
            scene = await stack.enter_async_context(scene_of(vhost, folder, policy, seed))
            scene.work_ms, scene.kinds = work_ms, kinds
            await scene.begin(dispatchers, **options)
            return scene

        yield opened
