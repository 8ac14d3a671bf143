"""`flush` of the SDK's consumers, with a dispatcher that takes who was cut off back, or waits for it."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.errors import SettlesInDoubt
from tests.client.subjects import AsyncConsumer, BlockingConsumer
from tests.client.tcp_proxy import TcpProxy
from tests.service.harness import Bench, lane
from tests.waiting import eventually


@pytest.mark.parametrize("is_back_in_time", [True, False], ids=["back in time", "taken back"])
@pytest.mark.parametrize("kind", [AsyncConsumer, BlockingConsumer], ids=lambda kind: kind.kind)
async def test_flush_tells_whether_settles_count(bench: Bench, kind: Any, is_back_in_time: bool) -> None:
    await bench.run(orders=lane(reconnect_grace="60s" if is_back_in_time else "100ms"))
    client = await bench.client()
    client.send("in", b"0", "g")
    async with TcpProxy(bench.vhost.amqp_url) as proxy:
        consumer = kind(proxy.url, prefix=bench.vhost.redis_prefix)
        await consumer.open()
        try:
            message = await consumer.next()
            proxy.refuses = True
            proxy.cut()
            await eventually(lambda: proxy.refused, what="the end of its connection")
            assert await consumer.ack(message)
            if is_back_in_time:
                proxy.refuses = False
                await consumer.flush()
                await bench.acked()
                assert bench.counter("consumers_taken") == 0
            else:
                await eventually(lambda: bench.counter("consumers_taken") == 1)
                proxy.refuses = False
                with pytest.raises(SettlesInDoubt):
                    await consumer.flush()
                again = await consumer.next()
                assert (again.body, again.attempt) == (b"0", 2)
                assert await consumer.ack(again)
                await consumer.flush()
                await bench.acked()
        finally:
            await consumer.close()
    assert bench.counter("settled") == 1
