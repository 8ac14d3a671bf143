"""Processes orders until SIGTERM: `python manage.py consume_orders worker-1`."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser
from django.db import close_old_connections, transaction

from dispatcher.client import BlockingGroupConsumer, BlockingMessage
from shop.models import Order


class Command(BaseCommand):
    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("consumer", help="its id, unique in the lane")
        parser.add_argument("--threads", type=int, default=4)

    def handle(self, *args: Any, consumer: str, threads: int, **options: Any) -> None:
        # Returns after SIGTERM, when everything in hand is processed and settled.
        BlockingGroupConsumer(settings.RABBITMQ_URL, "orders", consumer, prefetch=50).run(
            self.apply, concurrency=threads
        )

    def apply(self, message: BlockingMessage) -> None:
        """In one of the threads, each of which has a connection to the database of its own."""
        close_old_connections()
        with transaction.atomic():
            Order.objects.get_or_create(pk=message.group_text)
            order = Order.objects.select_for_update().get(pk=message.group_text)
            if message.epoch < order.epoch:
                return  # another consumer has the order by now, and this one does not know it yet
            order.steps.append(message.body.decode())
            order.epoch = message.epoch
            order.save()
