"""What came in is kept in a stream and can be sent again (R17)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from pamqp import commands
from typer.testing import CliRunner, Result

from dispatcher.amqp.link import Link
from dispatcher.cli import app
from dispatcher.core.effects import Snapshot
from dispatcher.core.lane import Lane
from dispatcher.core.options import LaneOptions, policy
from dispatcher.errors import ConfigurationError
from dispatcher.service.inbound_feed import InboundFeed, open_inbound
from tests.amqp.samples import EVERY_TYPE, field, long
from tests.service.harness import LANE, ROOT, Bench, document, lane
from tests.spec.lane_bench import clause
from tests.waiting import eventually

KEPT: dict[str, Any] = {"history": {"max_age": "7d"}}
#: RabbitMQ obeys it, and must not do so again.
CC = field("CC", "A", long(b"S" + long(b"elsewhere")))


def _all_of(terminal: int) -> str:
    """What comes until the other end is closed."""
    parts = []
    with contextlib.suppress(OSError), os.fdopen(terminal, "rb", 0) as reading:
        while part := reading.read(4_096):
            parts.append(part)
    return b"".join(parts).decode()


class Operator:
    """Types commands, with the configuration that the lanes run with."""

    def __init__(self, bench: Bench, file: Path, **lanes: dict[str, Any]) -> None:
        vhost = bench.vhost
        self._file = file
        file.write_text(yaml.safe_dump(document(vhost.amqp_url, vhost.redis_url, vhost.redis_prefix, lanes)))

    async def watches(self, *arguments: str) -> str:
        """What a terminal shows of a command besides its result."""
        ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "dispatcher", *arguments, "-c", str(self._file)]
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
        running = await asyncio.create_subprocess_exec(
            *command, cwd=ROOT, env=environment, stdout=asyncio.subprocess.DEVNULL, stderr=theirs
        )
        os.close(theirs)
        shown = await asyncio.to_thread(_all_of, ours)
        assert await running.wait() == 0, shown
        return shown

    async def types(self, *arguments: str) -> Result:
        command = [*arguments, "-c", str(self._file)]
        return await asyncio.to_thread(CliRunner().invoke, app, command, prog_name="dispatcher")


@pytest.mark.seed("R17")
async def test_what_came_in_is_sent_again_in_order_and_once(bench: Bench, tmp_path: Path) -> None:
    """Also what is consumed long since, through a crash in between; a replay is marked and not kept again."""
    clause("H-2", "in the order in which they came in")
    clause("H-3", "a replay leaves the second one out")
    lanes = {LANE: lane("high", "low", **KEPT)}
    operator = Operator(bench, tmp_path / "dispatcher.yaml", **lanes)
    await bench.run(**lanes)
    client = await bench.client()
    await client.declare("elsewhere")
    consumer = await bench.joined("c1", hold=True)
    for number in range(6):
        extra = [CC] if number == 5 else EVERY_TYPE.values()
        client.send("high", b"%d" % number, f"g{number % 2}", *extra, message_id=b"m%d" % number)
    client.send("low", b"loose", expiration=b"600000")
    await consumer.has(7)

    async def are_kept() -> bool:
        return "7 messages would be sent again" in await _replay(operator, "--dry-run")

    await eventually(are_kept)
    await bench.crash()  # they are delivered again, and kept twice
    await bench.run(**lanes)
    consumer.release()
    await bench.acked("high")
    await bench.acked("low")
    first = {copy.body: copy for copy in consumer.received}

    assert "3 messages would be sent again" in (await _replay(operator, "--group", "g1", "--dry-run"))
    assert "7 messages sent again, 7 left out" in (await _replay(operator))
    again = (await consumer.has(14))[7:]
    for group in (b"g0", b"g1"):
        assert [c.body for c in again if c.group == group] == [c for c in first if first[c].group == group]
    for copy in again:
        headers = {k: v for k, v in first[copy.body].headers.items() if not k.startswith("x-dispatch-")}
        headers.pop("CC", None)
        assert copy.headers.pop("x-dispatch-replay") > 0
        assert {k: v for k, v in copy.headers.items() if not k.startswith("x-dispatch-")} == headers
    await bench.acked("high")
    assert await client.ready("elsewhere") == 1
    assert "7 messages would be sent again" in (await _replay(operator, "--dry-run"))


async def _replay(operator: Operator, *arguments: str) -> str:
    if not {"--group", "--since"} & {*arguments}:
        arguments = (*arguments, "--all")
    result = await operator.types("replay", LANE, *arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


async def test_only_what_came_in_since_and_to_another_queue(bench: Bench, tmp_path: Path) -> None:
    lanes = {LANE: lane(**KEPT)}
    operator = Operator(bench, tmp_path / "dispatcher.yaml", **lanes)
    await bench.run(**lanes)
    client = await bench.client()
    consumer = await bench.joined("c1")
    client.send("in", b"old", "g")
    await consumer.has(1)
    await bench.acked()
    between = datetime.now(UTC).replace(tzinfo=None).isoformat()  # as somebody types it
    client.send("in", b"new", "g")
    await consumer.has(2)
    await bench.acked()
    await client.declare("copies")
    assert "1 message sent again" in await _replay(operator, "--since", between, "--to", "copies")
    assert [fetched.body for fetched in await client.take("copies")] == [b"new"]
    assert "2 messages would be sent again" in await _replay(operator, "--since", "1h", "--dry-run")
    shown = await operator.watches("replay", LANE, "--all", "--to", "copies")
    assert "replay" in shown
    assert "━" in shown
    assert "4/4" in shown, "both messages, and where each earlier replay ended"
    since = "2200-01-01T00:00"
    result = await operator.types("replay", LANE, "--since", since)
    assert (result.exit_code, "is in the future" in result.output) == (2, True)
    await client.declare("small", x_max_length=1, x_overflow="reject-publish")
    client.send("small", b"there already")
    await client.confirmed()
    for target, problem in (
        ("nowhere", "there is no queue 'nowhere'; 0 messages had been sent\n"),
        ("small", "queue 'small' refuses messages: is it full?; 0 messages had been sent\n"),
        (bench.names().dead, f"--to: {bench.names().dead!r} is the dispatcher's own"),
    ):
        result = await operator.types("replay", LANE, "--all", "--to", target)
        assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
        assert problem in result.stderr


async def test_a_lane_without_history_says_so(bench: Bench, tmp_path: Path) -> None:
    for keys, words in (
        ({}, "lanes.orders.history is not set"),
        (KEPT, "has no history"),
        ({**KEPT, "group_header": ["routing_key"]}, "the routing key is the group"),
    ):
        operator = Operator(bench, tmp_path / "dispatcher.yaml", **{LANE: lane(**keys)})
        result = await operator.types("replay", LANE, "--all")
        assert result.exit_code == 1
        assert words in result.stderr


async def test_another_age_than_the_stream_has_is_refused(bench: Bench) -> None:
    await bench.run(**{LANE: lane(**KEPT)})
    await bench.stop()
    with pytest.raises(ConfigurationError, match=r"x-max-age.*received '60s' but current is '604800s'"):
        await bench.run(**{LANE: lane(history={"max_age": "1m"})})


async def test_nothing_is_acked_before_the_history_has_it(bench: Bench) -> None:
    clause("H-1", "before it is acked")
    client = await bench.client()
    await client.declare("in")
    for body in (b"0", b"1", b"2"):
        client.send("in", body)
    await client.confirmed()
    link = await Link.open(bench.rabbitmq, name="test", on_events=lambda _: None)
    source = await open_inbound(link, "in", "feed", 64, election_s=0)
    options = LaneOptions(policy=policy("exclusive"), inbounds=(("in", 1),))
    (inbound,) = Lane(
        options, Snapshot(lane_epoch=1, complete=True, broker_restarted=False), 0
    ).state.inbounds
    feed = InboundFeed(link, source, inbound, report=lambda _: None)
    feed.delivered(3)
    feed.await_history(1)
    feed.await_history(3)
    for tag in (2, 1, 3):
        feed.settle(tag)
    feed.in_history(1)
    feed.flush_acks(0, everything=True)
    await link.call(source.channel, commands.Channel.Close(200, "done", 0, 0))
    await eventually(lambda: _has(client, 1), what="the third one to be back")
    await link.close()


async def _has(client: Any, count: int) -> bool:
    return bool(await client.ready("in") == count)
