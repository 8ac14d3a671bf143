"""A consumer that is in trouble on purpose: `python -m tests.site.night_worker URL LANE CONSUMER`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from dispatcher.client import GroupConsumer, Message, RejectMessage


async def handle(message: Message) -> None:
    match message.body.decode().split()[0]:
        case "hang":
            await asyncio.Event().wait()
        case "fail":
            raise RejectMessage("no such customer")
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    url, lane, consumer = sys.argv[1:]
    asyncio.run(GroupConsumer(url, lane, consumer, prefetch=4).run(handle, concurrency=4))
