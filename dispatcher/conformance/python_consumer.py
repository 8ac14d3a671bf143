"""The program that `dispatcher conformance` drives, on the Python SDK:
`python -m dispatcher.conformance.python_consumer`.

docs/protocol.md has the lines that go in and out.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from itertools import count
from typing import Any

from dispatcher.client import GroupConsumer, Message, RejectMessage


class Handlers:
    """Every call is reported, and ends as a line says."""

    def __init__(self) -> None:
        self._ids = count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}

    async def handle(self, message: Message) -> None:
        call = next(self._ids)
        ended = self._waiting[call] = asyncio.get_running_loop().create_future()
        group = None if message.group is None else base64.b64encode(message.group).decode()
        write(
            type="begin", id=call, seq=message.seq, epoch=message.epoch, attempt=message.attempt, group=group,
            group_seq=message.group_seq, call=message.calls, body=message.body.decode(),
        )  # fmt: skip
        try:
            end = await ended
        except asyncio.CancelledError:
            write(type="lost", id=call)
            raise
        finally:
            del self._waiting[call]
        if end["outcome"] == "reject":
            raise RejectMessage(end["reason"])
        if end["outcome"] == "raise":
            raise RuntimeError(end["reason"])

    def end(self, line: dict[str, Any]) -> None:
        ended = self._waiting.get(line["id"])
        if ended is not None and not ended.done():
            ended.set_result(line)


def write(**line: Any) -> None:
    print(json.dumps(line), flush=True)


async def main() -> None:
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    start = json.loads(await lines.readline())
    consumer = GroupConsumer(
        start["url"], start["lane"], start["consumer"], start["prefetch"], prefix=start["prefix"]
    )
    handlers = Handlers()
    running = asyncio.create_task(consumer.run(handlers.handle, concurrency=start["concurrency"]))

    async def obey() -> None:
        async for text in lines:
            line = json.loads(text)
            if line["type"] == "end":
                handlers.end(line)
            else:
                consumer.stop()
        running.cancel()  # nobody drives it any more

    obeying = asyncio.create_task(obey())
    await running
    obeying.cancel()


if __name__ == "__main__":
    asyncio.run(main())
