"""Both sides of the contract: the same script runs against the models and against the real servers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from dispatcher.amqp.events import ConnectionEvent
from dispatcher.amqp.link import Link
from dispatcher.settings import RabbitSettings
from dispatcher.sim.broker import Broker
from dispatcher.sim.link import SimLink
from dispatcher.sim.loop import ProcessLoop, Scheduler
from dispatcher.sim.nodes import Cluster
from dispatcher.sim.queues import Node

T = TypeVar("T")
VIRTUAL_MS_MAX = 60_000


class Recorded:
    """A link and everything that it reported."""

    def __init__(self) -> None:
        self.events: list[ConnectionEvent] = []
        self.link: Any = None

    def of(self, kind: type[T]) -> list[T]:
        return [event for event in self.events if isinstance(event, kind)]

    def note(self, events: list[ConnectionEvent]) -> None:
        self.events += events


#: Opens a link.
Connect = Callable[[], Awaitable[Recorded]]


class _Nobody:
    """Watches the modelled broker for a script that needs no witness."""

    def __getattr__(self, _: str) -> Callable[..., None]:
        return lambda *_: None


async def run_on_rabbitmq(script: Callable[[Connect], Awaitable[T]], url: str) -> T:
    links: list[Link] = []

    async def connect() -> Recorded:
        recorded = Recorded()
        recorded.link = await Link.open(RabbitSettings(url=url), name="contract", on_events=recorded.note)
        links.append(recorded.link)
        return recorded

    try:
        return await script(connect)
    finally:
        for link in links:
            await link.close()


def on_virtual_time(seed: int, begin: Callable[[Scheduler, ProcessLoop], Awaitable[T]]) -> T:
    """Run a coroutine of one simulated process to its end."""
    scheduler = Scheduler(seed)
    process = ProcessLoop(scheduler, "contract")
    tasks: list[asyncio.Task[T]] = []
    process.call_soon(lambda: tasks.append(process.create_task(begin(scheduler, process))))  # type: ignore[arg-type]
    scheduler.run(scheduler.now_ms + VIRTUAL_MS_MAX, lambda: bool(tasks) and tasks[0].done())
    assert not scheduler.failures, scheduler.failures
    assert tasks[0].done(), "the script did not end"
    return tasks[0].result()


def run_on_modelled_broker(script: Callable[[Connect], Awaitable[T]], seed: int) -> T:
    return run_with_modelled_broker(lambda connect, _: script(connect), seed)


def run_with_modelled_broker(script: Callable[[Connect, Broker], Awaitable[T]], seed: int) -> T:
    """The script may make the broker fail."""

    async def begin(scheduler: Scheduler, process: ProcessLoop) -> T:
        broker = Broker(scheduler, _Nobody())  # type: ignore[arg-type]

        async def connect() -> Recorded:
            recorded = Recorded()
            recorded.link = await SimLink.open(broker, process, name="contract", on_events=recorded.note)
            return recorded

        return await script(connect, broker)

    return on_virtual_time(seed, begin)


def run_on_modelled_cluster(
    script: Callable[[Cluster, Callable[[Node], Awaitable[Recorded]]], Awaitable[T]], seed: int, handling: str
) -> T:
    """The script gets the cluster, and what opens a link to one of its nodes."""

    async def begin(scheduler: Scheduler, process: ProcessLoop) -> T:
        cluster = Cluster(scheduler, _Nobody(), seed, handling)  # type: ignore[arg-type]

        async def connect(node: Node) -> Recorded:
            recorded = Recorded()
            recorded.link = await SimLink.open(
                cluster, process, name="contract", on_events=recorded.note, node=node
            )
            return recorded

        return await script(cluster, connect)

    return on_virtual_time(seed, begin)
