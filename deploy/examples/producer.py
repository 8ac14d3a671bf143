"""Publishes orders: every symbol is a group, so its orders are processed in the order they were placed."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
from contextlib import AsyncExitStack
from pathlib import Path

from dispatcher.client import GroupProducer

SYMBOLS = ["AAPL", "AMZN", "BMW", "DTE", "IBM", "MSFT", "NVDA", "ORCL", "SAP", "SIE"]
#: Order is promised within one queue: a symbol always takes the same one.
HIGH = {"AAPL", "SAP"}
ACTIONS = ["place", "amend", "cancel"]


def report_health() -> None:
    """The container's health check looks at this file's age."""
    Path(os.environ.get("HEALTH_FILE", os.devnull)).touch()


async def main() -> None:
    url = os.environ["DISPATCHER_RABBITMQ_URL"]
    pause_s = 1 / float(os.environ.get("MESSAGES_PER_SECOND", "20"))
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with AsyncExitStack() as producers:
        high = await producers.enter_async_context(GroupProducer(url, queue="orders.high"))
        low = await producers.enter_async_context(GroupProducer(url, queue="orders.low"))
        for n in itertools.count():
            symbol, round_ = SYMBOLS[n % len(SYMBOLS)], n // len(SYMBOLS)
            order = {"symbol": symbol, "number": round_, "action": ACTIONS[round_ % len(ACTIONS)]}
            # Returns when RabbitMQ has confirmed it.
            await (high if symbol in HIGH else low).send(json.dumps(order).encode(), group=symbol)
            report_health()
            try:
                await asyncio.wait_for(stopping.wait(), pause_s)
            except TimeoutError:
                continue
            return


if __name__ == "__main__":
    asyncio.run(main())
