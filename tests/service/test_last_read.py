"""What the last read of a connection brings together with its end."""

from __future__ import annotations

import dataclasses

import pytest
from pamqp import commands, frame, header
from pamqp.body import ContentBody
from structlog.testing import capture_logs

from tests.client.tcp_proxy import TcpProxy
from tests.conftest import Vhost
from tests.service.harness import LANE, bench_of, lane
from tests.waiting import eventually

COMMAND = b'{"name": "status", "uuid": "u", "sent_at_ms": 0, "arguments": {}}'
PROPERTIES = commands.Basic.Properties(reply_to="amq.rabbitmq.reply-to.x", correlation_id="u")
JOIN = b'{"type": "join", "queue": "amq.gen-x"}'


@pytest.mark.parametrize(("queue", "body"), [("command", COMMAND), ("control", JOIN), ("control", b"{")])
async def test_what_can_not_be_answered_any_more_is_no_failure(vhost: Vhost, queue: str, body: bytes) -> None:
    async with (
        TcpProxy(vhost.amqp_url) as proxy,
        bench_of(dataclasses.replace(vhost, amqp_url=proxy.url)) as bench,
    ):
        await bench.run(orders=lane())
        runner = bench.runners[LANE]
        channel = getattr(runner._channels, queue)
        delivery = [
            (commands.Basic.Deliver("tag", 99, False, "", queue), channel),
            (header.ContentHeader(0, len(body), PROPERTIES), channel),
            (ContentBody(body), channel),
            (commands.Connection.Close(320, "the broker stops", 0, 0), 0),
        ]
        with capture_logs() as logged:
            proxy.inject(b"".join(frame.marshal(part, number) for part, number in delivery))
            await eventually(lambda: runner.leaderships == 2, what=f"another leadership: {logged}")
        events = [record["event"] for record in logged]
        assert events.count("lane_interrupted") == 1
        assert "lane_failed" not in events
