"""docs/protocol.md is enough to write a consumer, and says what the code does."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dispatcher.client.copies import read_numbers
from dispatcher.client.member import REMEMBERED_MAX
from dispatcher.client.membership import OFFLINE_LIMIT_MS
from dispatcher.wire import protocol
from dispatcher.wire.bundle import split_bundle
from dispatcher.wire.protocol import Begun
from tests.client.lane_stub import LANE, LaneStub
from tests.client.tcp_proxy import TcpProxy
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "protocol.md").read_text()
PROGRAM = Path(__file__).with_name("bare_pika_consumer.py")


class Bare:
    """The bare consumer in a process of its own, and the lines that it printed."""

    def __init__(self) -> None:
        self.printed: list[str] = []

    async def start(self, url: str) -> None:
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, str(PROGRAM), url, LANE, "bare", stdout=asyncio.subprocess.PIPE
        )
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.printed.append(line.decode().strip())

    async def stop(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        await self._reading


@pytest.fixture
async def bare(lane: LaneStub, proxy: TcpProxy) -> AsyncIterator[Bare]:
    running = Bare()
    await running.start(proxy.url)
    yield running
    await running.stop()


def test_the_bare_consumer_is_short_and_knows_nothing_of_ours() -> None:
    source = PROGRAM.read_text()
    assert len(source.splitlines()) <= 105
    assert "dispatcher." not in source


async def test_the_bare_consumer_works_settles_and_fails(lane: LaneStub, bare: Bare) -> None:
    me = await lane.present("bare")
    for body in (b"one", b"bad two", b"three"):
        await lane.send(me, body, b"g\xff")
    await eventually(lambda: not me.unsettled)
    assert bare.printed == ["one", "bad two", "three"]
    assert [reason for _, reason, _ in me.failed] == ["it is bad"]
    await eventually(lambda: lane.heartbeats)
    assert (lane.heartbeats[-1].in_hand, lane.heartbeats[-1].begun) == ((), Begun((), 1))


async def test_the_bare_consumer_asks_for_a_missing_copy(lane: LaneStub, bare: Bare) -> None:
    me = await lane.present("bare")
    await lane.send(me, b"one", b"g")
    lane.lose(me, b"two", b"g")
    await lane.send(me, b"three", b"g")
    await eventually(lambda: not me.unsettled)
    assert bare.printed == ["one", "two", "three"]


async def test_the_bare_consumer_comes_back(lane: LaneStub, proxy: TcpProxy, bare: Bare) -> None:
    me = await lane.present("bare")
    await lane.send(me, b"one", b"g")
    await eventually(lambda: not me.unsettled)
    proxy.cut()
    lane.lose(me, b"two", b"g")
    await eventually(lambda: not me.unsettled)
    await lane.say(me, protocol.TYPE_TAKEN)
    again = await lane.present("bare")
    await lane.send(again, b"three", b"g")
    await eventually(lambda: not again.unsettled)
    assert bare.printed == ["one", "two", "three"]
    assert (again.uuid != me.uuid, again.n) == (True, 1)


def test_the_pages_examples_are_understood() -> None:
    examples = [text for text in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL) if text.startswith("{")]
    kinds = {type(protocol.decode_control(text.encode())).__name__ for text in examples}
    assert kinds == {"Join", "Settle", "Heartbeat", "Leave"}
    in_hand = json.loads("{" + re.search(r'"in_hand": \[\[.*\]', PAGE)[0] + "}")["in_hand"]  # type: ignore[index]
    assert [len(entry) for entry in in_hand] == [3, 3]


@pytest.mark.parametrize("name", [name for name in dir(protocol) if re.match(r"TYPE_|HEADER_", name)])
def test_the_page_names_every_type_and_header_of_a_copy(name: str) -> None:
    of_the_dead = {"HEADER_CALLS", "HEADER_REASON", "HEADER_ORIGIN", "HEADER_EXCHANGE", "HEADER_ROUTING_KEY"}
    of_an_operation = {"HEADER_MARKER", "TYPE_MARKER"}  # in inbound queues: no consumer gets one
    assert getattr(protocol, name) in PAGE or name in of_the_dead | of_an_operation


def test_the_page_says_the_numbers_of_the_code() -> None:
    for number in (protocol.PREFETCH_MAX, protocol.SETTLE_ITEMS_MAX, REMEMBERED_MAX):
        assert f"{number:,}" in PAGE
    assert f"{OFFLINE_LIMIT_MS // 1000} s" in PAGE


def test_the_example_of_a_bundle() -> None:
    (example,) = re.findall(r"```hex\n(.*?)```", PAGE, re.DOTALL)
    copies = [
        (numbers and (numbers.seq, numbers.group, numbers.group_seq, numbers.epoch), body)
        for numbers, body in ((read_numbers(raw), body) for raw, body in split_bundle(bytes.fromhex(example)))
    ]
    assert copies == [((100, b"a", 1, 7), b"paid"), ((101, b"a", 2, 7), b"sent")]
