"""What the clients do in situations that a real dispatcher brings about rarely."""

from __future__ import annotations

import asyncio
import base64
import re
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aio_pika.abc import AbstractIncomingMessage

from dispatcher.wire import protocol
from tests.client.copies_on_wire import string_entry
from tests.client.lane_stub import LaneStub
from tests.conformance.conftest import CLIENTS
from tests.conformance.driven import Driven
from tests.conftest import Vhost
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
#: Such a group has another header, for libraries that take strings for UTF-8.
NOT_UTF8 = b"\xff\xfe"
CODED = string_entry(protocol.HEADER_GROUP_BASE64, base64.b64encode(NOT_UTF8))


@pytest.fixture(params=["node", "java", "go"])
def command(request: pytest.FixtureRequest) -> list[str]:
    """The Python client has tests of its own for all this."""
    match request.param:
        case "node":
            return ["node", str(request.getfixturevalue("node_modules") / "conformance.js")]
        case "java":
            return list(request.getfixturevalue("java_program"))
        case _:
            return [request.getfixturevalue("go_program")]


@pytest.fixture
async def lane(vhost: Vhost) -> AsyncIterator[LaneStub]:
    async with LaneStub(vhost.amqp_url) as stub:
        yield stub


async def test_copies_that_are_lost_late_or_double(vhost: Vhost, lane: LaneStub, command: list[str]) -> None:
    lane.retry = {"attempts": 2, "backoff": 0}
    async with Driven(command, vhost.amqp_url) as program:
        me = await lane.present()
        seq = await lane.send(me, b"first", NOT_UTF8, table=CODED)
        first = await program.called("first")
        assert base64.b64decode(first["group"]) == NOT_UTF8
        program.end(first)
        await eventually(lambda: me.acked == [seq], what="a settle")

        copy = lane.copy(me, b"first", NOT_UTF8, table=CODED, seq=seq, group_seq=1)[1]  # it comes twice
        await lane.publish(me.queue, copy, b"first")
        await eventually(lambda: me.acked == [seq, seq], what="the settle again")
        assert len(program.begun) == 1

        queue = me.queue
        lane.lose(me, b"lost", b"g")
        await lane.send(me, b"behind", b"g")
        await program.called("lost")
        assert [(join.n, join.queue == queue) for join in lane.joins] == [(1, True), (2, False)]
        assert [join.epoch for join in lane.joins] == [0, 6]
        await lane.say(me, protocol.TYPE_REJOIN)
        await eventually(lambda: len(lane.joins) == 3, what="a join when asked for one")
        assert (lane.joins[2].n, lane.joins[2].queue) == (3, me.queue)
        assert len(lane.joins[2].in_hand) == 2

        program.end(await program.called("lost"), "raise", "once")
        program.end(await program.called("lost", 2), "raise", "twice")
        await eventually(lambda: len(me.failed) == 1, what="a failure")
        assert me.failed[0][1:] == ("twice", 2)

        open_call = await program.called("behind")
        await lane.say(me, protocol.TYPE_TAKEN)
        again = await lane.present()
        assert (again.n, again.uuid == me.uuid) == (1, False)
        await eventually(lambda: program.lost == [open_call["id"]], what="the open call to be told as lost")
        await lane.send(again, b"anew", b"g")
        program.end(await program.called("anew"))
        program.stop()
        assert await program.ended() == 0
    assert len(again.acked) == 1


async def test_it_begins_anew_when_it_remembers_too_much(
    vhost: Vhost, lane: LaneStub, command: list[str]
) -> None:
    async with Driven(command, vhost.amqp_url) as program:
        program.answers["*"] = "ack"
        me = await lane.present()
        copies = [lane.copy(me, b"", seq=2 * n + 1)[1] for n in range(4_097)]  # no two make a range
        await asyncio.gather(*(lane.publish(me.queue, copy, b"") for copy in copies))
        await eventually(lambda: len(lane.incarnations) == 2, what="a new incarnation")
        again = await lane.present()
        assert again.n == 1
        assert len(me.acked) == len(program.begun) == 4_097
        await lane.send(again, b"anew", b"g")
        await eventually(lambda: len(again.acked) == 1, what="work as the new one")
        program.stop()
        assert await program.ended() == 0


async def test_it_waits_for_the_lane_and_for_the_former_one(vhost: Vhost, command: list[str]) -> None:
    async with LaneStub(vhost.amqp_url, declare=False) as lane, Driven(command, vhost.amqp_url) as program:
        lane.answer = protocol.TYPE_WAIT
        await eventually(lambda: b"404" in program.complaints, what="a word about the missing exchange")
        await lane.declare()
        await eventually(lambda: len(lane.joins) == 3, what="joins that are repeated")
        assert {join.n for join in lane.joins} == {1}
        lane.answer = protocol.TYPE_WELCOME
        await lane.present()
        program.stop()
        assert await program.ended() == 0


async def test_what_is_refused_ends_it(vhost: Vhost, lane: LaneStub, command: list[str]) -> None:
    lane.answer = protocol.TYPE_REFUSED
    async with Driven(command, vhost.amqp_url) as program:
        assert await program.ended() != 0
    async with Driven(command, vhost.amqp_url + "-missing") as program:
        assert await program.ended() != 0
        assert vhost.amqp_url.encode() not in program.complaints


NODE_PROGRAM = """
import { GroupConsumer } from './lib/index.js';
const options = JSON.parse(process.argv[3]);
const consumer = new GroupConsumer(process.argv[2], 'orders', 'worker-1', options);
process.once('SIGTERM', () => consumer.stop());
consumer.run(() => {}, options).catch((error) => console.log(error.message));
"""


def node_program(node_modules: Path, url: str, options: str = "{}") -> list[str]:
    program = node_modules / "program.mjs"
    program.write_text(NODE_PROGRAM)
    return ["node", str(program), url, options]


def java_worker(java_program: list[str], folder: Path, *changes: tuple[str, str]) -> list[str]:
    """The command that runs the program on the client's page, changed so."""
    page = (CLIENTS / "java" / "README.md").read_text()
    [program] = re.findall(r"```java\n(.*?)```", page, re.DOTALL)
    for former, latter in changes:
        assert former in program
        program = program.replace(former, latter)
    (folder / "Worker.java").write_text(program)
    return [*java_program[:-1], str(folder / "Worker.java")]


async def test_nothing_keeps_a_java_program_that_was_refused(
    vhost: Vhost, lane: LaneStub, java_program: list[str], tmp_path: Path
) -> None:
    lane.answer = protocol.TYPE_REFUSED
    command = java_worker(java_program, tmp_path, ("amqp://localhost/", vhost.amqp_url))
    _, complaints = await outcome(command)
    assert "ConsumerRefused" in complaints
    assert "Rejected" not in complaints  # of the shutdown hook


async def test_nothing_keeps_a_node_program_that_was_refused(vhost: Vhost, node_modules: Path) -> None:
    said, _ = await outcome(node_program(node_modules, vhost.amqp_url + "-missing"))
    assert "vhost" in said


async def test_java_says_who_it_is_where_asked_to(
    vhost: Vhost, java_program: list[str], tmp_path: Path
) -> None:
    url, strict = (
        ("amqp://localhost/", vhost.amqp_url),
        ('"worker-1", 50)', '"worker-1", 50).strictIdentity()'),
    )
    assert await users(java_worker(java_program, tmp_path, url), vhost) == {None}
    assert await users(java_worker(java_program, tmp_path, url, strict), vhost) == {"guest"}


async def test_java_tells_the_deadline(
    vhost: Vhost, lane: LaneStub, java_program: list[str], tmp_path: Path
) -> None:
    url, told = ("amqp://localhost/", vhost.amqp_url), ("message.groupText() +", "message.deadline +")
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *java_worker(java_program, tmp_path, url, told), stdout=pipe
    )
    assert process.stdout is not None
    try:
        me = await lane.present("worker-1")
        await lane.send(me, b"late", deadline_at_ms=1_700_000_000_000)
        await lane.send(me, b"never")
        said = {await process.stdout.readline(), await process.stdout.readline()}
    finally:
        process.kill()
        await process.wait()
    assert said == {b"2023-11-14T22:13:20Z late\n", b"null never\n"}


async def test_node_says_who_it_is_where_asked_to(vhost: Vhost, node_modules: Path) -> None:
    assert await users(node_program(node_modules, vhost.amqp_url), vhost) == {None}
    strict = '{"strictIdentity": true}'
    assert await users(node_program(node_modules, vhost.amqp_url, strict), vhost) == {"guest"}


async def test_a_concurrency_that_can_do_nothing_is_refused(
    java_program: list[str], node_modules: Path, tmp_path: Path
) -> None:
    _, complaints = await outcome(java_worker(java_program, tmp_path, ("}, 20);", "}, 0);")))
    assert "concurrency is 0" in complaints
    said, _ = await outcome(node_program(node_modules, "amqp://localhost/", '{"concurrency": 0}'))
    assert "concurrency is 0" in said


async def outcome(command: list[str]) -> tuple[str, str]:
    """What a program that ends by itself wrote."""
    ended = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=120)
    return ended.stdout, ended.stderr


class Users(LaneStub):
    """Remembers whom RabbitMQ says its messages are from."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.users: set[str | None] = set()

    async def _received(self, message: AbstractIncomingMessage) -> None:
        self.users.add(message.user_id)
        await super()._received(message)


async def users(command: list[str], vhost: Vhost) -> set[str | None]:
    """Those of a program's control messages, from its join until it has left."""
    async with Users(vhost.amqp_url) as lane:
        process = await asyncio.create_subprocess_exec(*command)
        try:
            await lane.present("worker-1")
            await eventually(lambda: lane.heartbeats, what="a heartbeat")
            process.terminate()
            await eventually(lambda: process.returncode is not None, what="its end")
        finally:
            if process.returncode is None:
                process.kill()
        assert lane.leaves
        return lane.users
