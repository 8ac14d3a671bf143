"""Consumers in every language take bundles, ignore broken ones, and find a gap in the middle of one."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dispatcher.conformance.program import Program, ProgramOptions
from dispatcher.judge.record import MessageKey
from dispatcher.wire import protocol
from dispatcher.wire.bundle import BundleLimits, write_bundle
from dispatcher.wire.protocol import LaneNames
from tests.client.copies_on_wire import only_headers
from tests.client.lane_stub import LANE, Incarnation, LaneStub
from tests.conftest import Vhost
from tests.waiting import eventually

CONSUMER = "c1"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # the programs are built in it


@pytest.fixture(params=["python", "node", "java", "go"])
def command(request: pytest.FixtureRequest) -> list[str]:
    match request.param:
        case "node":
            return ["node", str(request.getfixturevalue("node_modules") / "conformance.js")]
        case "java":
            java: list[str] = request.getfixturevalue("java_program")
            return java
        case "go":
            return [request.getfixturevalue("go_program")]
    return [sys.executable, "-m", "dispatcher.conformance.python_consumer"]


@pytest.fixture
async def lane(vhost: Vhost) -> AsyncIterator[LaneStub]:
    async with LaneStub(vhost.amqp_url) as stub:
        yield stub


@pytest.fixture
async def program(command: list[str], lane: LaneStub, vhost: Vhost, tmp_path: Path) -> AsyncIterator[Program]:
    """It has joined. No call of its handler ends by itself."""
    options = ProgramOptions(LaneNames(LANE).prefix, LANE, CONSUMER, prefetch=20, concurrency=4)
    running = Program(command, options, vhost.amqp_url, "life", tmp_path / "log", lambda *_: None)
    await running.start()
    await lane.present(CONSUMER)
    yield running
    await running.kill()


class Copies:
    """Copies for one incarnation, the next numbers of their groups."""

    def __init__(self, lane: LaneStub, me: Incarnation) -> None:
        self._lane, self._me = lane, me
        self._counts: dict[str, int] = {}

    def next(self, group: str) -> tuple[bytes, bytes]:
        self._counts[group] = self._counts.get(group, 0) + 1
        body = MessageKey("in", group, 0, self._counts[group]).body()
        return self._lane.copy(self._me, body, group.encode())[1], body

    async def send(self, bundle: bytes) -> None:
        await self._lane.publish_notice(self._me.queue, protocol.TYPE_BUNDLE, bundle)


def numbers_in_hand(lane: LaneStub) -> list[int]:
    return sorted(entry.seq for entry in lane.joins[-1].in_hand)


async def test_a_bundle_with_a_gap_and_one_that_can_not_be_read(lane: LaneStub, program: Program) -> None:
    assert lane.joins[0].bundle == BundleLimits(64, 65_536)
    me = await lane.present(CONSUMER)
    copies = Copies(lane, me)
    first, _lost, *rest = [copies.next(group) for group in "aaaab"]
    seqs = list(me.unsettled)
    await copies.send(write_bundle([first, *rest]))
    await eventually(lambda: me.n == 2, what="a join after the gap")
    assert numbers_in_hand(lane) == seqs[:1], "what comes behind a gap is forgotten, also of other groups"
    all_five = ((seqs[0], seqs[-1]),)
    await eventually(lambda: lane.heartbeats and lane.heartbeats[-1].in_hand == all_five)
    unread = [copies.next("c"), copies.next("d")]
    await copies.send(write_bundle(unread)[:-1])
    await copies.send(write_bundle([*unread, (only_headers(b""), b"")]))
    await copies.send(write_bundle([copies.next("c"), copies.next("e")]))
    await eventually(lambda: me.n == 3, what="a join after bundles that can't be read")
    assert numbers_in_hand(lane) == seqs, "nothing of them counts"

    def all_settled() -> bool:
        for call in list(program.open.values()):
            program.end(call, "ack", "")
        return not me.unsettled

    await eventually(all_settled, what="everything to be settled")
    assert not program.problems
    handled = [handling.message for handling in program.handlings]
    assert len(set(handled)) == len(handled) == len(seqs) + 4
    of_a = [message.number for message in handled if message.group == "a"]
    assert of_a == [1, 2, 3, 4]
