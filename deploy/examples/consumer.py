"""Processes orders. Start as many as you like: each symbol belongs to one of them at a time."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

from dispatcher.client import GroupConsumer, Message

CONSUMER_ID = os.environ["CONSUMER_ID"]


def report_health() -> None:
    """The container's health check looks at this file's age."""
    Path(os.environ.get("HEALTH_FILE", os.devnull)).touch()


async def handle(message: Message) -> None:
    # An exception here means: again, and after three times to the dead queue.
    order = json.loads(message.body)
    print(f"{CONSUMER_ID}: {order['symbol']} {order['number']} {order['action']}", flush=True)
    report_health()


async def main() -> None:
    url = os.environ["DISPATCHER_RABBITMQ_URL"]
    # Returns after SIGTERM, when everything in hand is processed and settled.
    await GroupConsumer(url, "orders", CONSUMER_ID, prefetch=50).run(handle)


if __name__ == "__main__":
    asyncio.run(main())
