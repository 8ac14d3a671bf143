"""The way to RabbitMQ sees what comes to a program."""

from __future__ import annotations

import asyncio

from dispatcher.conformance.proxy import CuttableWay
from dispatcher.nodes.ports import LOOPBACK
from tests.waiting import eventually


async def test_a_bundle_counts_once_however_it_comes() -> None:
    writers: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: writers.append(writer), LOOPBACK, 0)
    port = server.sockets[0].getsockname()[1]
    async with server, CuttableWay(f"amqp://{LOOPBACK}:{port}/") as way:
        reader, program = await asyncio.open_connection(LOOPBACK, int(way.url.rsplit(":", 1)[1].strip("/")))
        program.write(b"dispatch.bundle")  # what it says itself is none
        await eventually(lambda: writers)
        for part in (b"1 dispatch.bun", b"dle 2 dispatch.bundle", b" 3 ", b"dispatch.welcome"):
            writers[0].write(part)
            assert await reader.readexactly(len(part)) == part
        assert way.bundles == 2
        for writer in (program, *writers):
            writer.close()
            await writer.wait_closed()
