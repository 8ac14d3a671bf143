"""Sends the steps of some orders with FastStream alone: `python place.py`."""

from __future__ import annotations

import asyncio
import os
import uuid

from faststream.rabbit import RabbitBroker, RabbitQueue

URL = os.environ.get("DISPATCHER_RABBITMQ_URL", "amqp://guest:guest@localhost:5672/")
#: The dispatcher declares it.
ORDERS = RabbitQueue("orders", durable=True, declare=False)


async def main() -> None:
    async with RabbitBroker(URL) as broker:
        for step in ("placed", "amended", "paid", "shipped"):
            for order in range(10):
                # Returns at RabbitMQ's confirm; so the steps of an order are in the queue in order.
                await broker.publish(
                    step, ORDERS, persist=True, message_id=uuid.uuid4().hex,
                    headers={"x-group-id": f"order-{order}"},
                )  # fmt: skip


asyncio.run(main())
