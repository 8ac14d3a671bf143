"""Sends tasks for some orders: `python place.py`."""

from __future__ import annotations

from tasks import change

for step in ("placed", "amended", "paid", "shipped"):
    for number in range(10):
        order = f"order-{number}"
        # Returns when RabbitMQ has confirmed the task; so those of an order are in the queue in order.
        change.apply_async((order, step), headers={"x-group-id": order})
