"""Sends the steps of some orders, each after its commit: `python manage.py place_orders`."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand
from django.db import transaction

from dispatcher.client import BlockingGroupProducer


class Command(BaseCommand):
    def handle(self, *args: Any, **options: Any) -> None:
        with BlockingGroupProducer(settings.RABBITMQ_URL, queue="orders", give_up_after_s=30) as producer:
            for step in ("placed", "amended", "paid", "shipped"):
                for number in range(10):
                    with transaction.atomic():
                        # … what else the request does, and then, if it commits:
                        send = partial(producer.submit, step.encode(), group=f"order-{number}")
                        transaction.on_commit(send)
        # Leaving `with` has waited until RabbitMQ has confirmed all of them.
