"""Celery tasks that run in order for each order, in any number of workers.

CONSUMER_ID=celery-1 celery -A tasks worker --pool solo -Q dispatch.tasks.consumer.celery-1
"""

from __future__ import annotations

import os

from celery import Celery
from kombu import Queue

URL = os.environ.get("DISPATCHER_RABBITMQ_URL", "amqp://guest:guest@localhost:5672/")
CONSUMER_ID = os.environ.get("CONSUMER_ID", "celery-1")

app = Celery("tasks", broker=URL)
app.conf.update(
    # The dispatcher declares both. Tasks are sent to the first; a worker reads the second (-Q).
    task_queues=[
        Queue("tasks", no_declare=True),
        Queue(f"dispatch.tasks.consumer.{CONSUMER_ID}", no_declare=True),
    ],
    task_default_queue="tasks",
    broker_transport_options={
        "confirm_publish": True
    },  # or a lost connection may lose tasks, and their order
    task_acks_late=True,  # a task of a worker that dies is handed over again
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,  # with --pool solo: one task after the other, in order
)


@app.task
def change(order: str, step: str) -> None:
    # A task may run twice after a crash: what it does has to bear that.
    print(f"{order} {step}", flush=True)
