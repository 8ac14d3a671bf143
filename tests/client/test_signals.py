"""SIGTERM and SIGINT end `run` cleanly, in a process of its own."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.client.lane_stub import LaneStub
from tests.conftest import Vhost
from tests.waiting import TIMEOUT_S, eventually

ROOT = Path(__file__).parents[2]
#: Handles a message until its body is the name of a file that exists.
ASYNC = """
import asyncio, sys
from pathlib import Path
from dispatcher.client import GroupConsumer

async def handle(message):
    while not Path(message.body.decode()).exists():
        await asyncio.sleep(0.01)

asyncio.run(GroupConsumer(sys.argv[1], "orders", "c1").run(handle))
"""
BLOCKING = """
import sys, time
from pathlib import Path
from dispatcher.client import BlockingGroupConsumer

def handle(message):
    while not Path(message.body.decode()).exists():
        time.sleep(0.01)

BlockingGroupConsumer(sys.argv[1], "orders", "c1").run(handle)
"""
programs = pytest.mark.parametrize("program", [ASYNC, BLOCKING], ids=["async", "blocking"])


@asynccontextmanager
async def started(program: str, url: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, url, cwd=ROOT)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@programs
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_finishes_what_is_in_hand(
    lane: LaneStub, vhost: Vhost, tmp_path: Path, program: str, number: signal.Signals
) -> None:
    async with started(program, vhost.amqp_url) as process:
        me = await lane.present()
        one, two = tmp_path / "one", tmp_path / "two"
        one.touch()
        seqs = [await lane.send(me, str(file).encode(), b"g") for file in (one, two)]
        await eventually(lambda: me.acked == seqs[:1])
        process.send_signal(number)
        await eventually(lambda: lane.leaves)
        assert not me.taken
        two.touch()
        assert await asyncio.wait_for(process.wait(), TIMEOUT_S) == 0
    assert me.acked == seqs


@programs
async def test_a_second_signal_stops_at_once(
    lane: LaneStub, vhost: Vhost, tmp_path: Path, program: str
) -> None:
    async with started(program, vhost.amqp_url) as process:
        me = await lane.present()
        await lane.send(me, str(tmp_path / "never").encode(), b"g")
        await eventually(lambda: lane.heartbeats and lane.heartbeats[-1].held == 1)
        process.terminate()
        await eventually(lambda: lane.leaves)
        process.terminate()
        assert await asyncio.wait_for(process.wait(), TIMEOUT_S) == 0
    assert len(me.unsettled) == 1
