"""A FastStream application that processes orders, each one's steps in order: `faststream run app:app`."""

from __future__ import annotations

import asyncio
import os

from faststream import FastStream
from faststream.rabbit import RabbitBroker

from dispatcher.client import GroupConsumer, Message

URL = os.environ.get("DISPATCHER_RABBITMQ_URL", "amqp://guest:guest@localhost:5672/")
broker = RabbitBroker(URL)
app = FastStream(broker)
consumer = GroupConsumer(URL, "orders", os.environ.get("CONSUMER_ID", "app-1"), prefetch=50)
running: list[asyncio.Task[None]] = []


async def handle(message: Message) -> None:
    # What FastStream brings (publish, dependencies, clients) is there; an exception here means: again.
    print(f"{message.group_text} {message.body.decode()}", flush=True)


@app.after_startup
async def consume() -> None:
    # FastStream handles the signals, and calls `leave`.
    running.append(asyncio.create_task(consumer.run(handle, stop_on_signals=False)))


@app.on_shutdown
async def leave() -> None:
    consumer.stop()
    await asyncio.gather(*running)  # everything in hand is processed and settled
