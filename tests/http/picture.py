"""The picture of the live page for the documents: `python -m tests.http.picture docs/page.png [SECONDS]`.

A dispatcher, four consumers and a producer, as long as the page's charts go back (ten minutes).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Final

import yaml

from dispatcher.client import GroupConsumer, GroupProducer, Message
from dispatcher.nodes import open_servers
from dispatcher.nodes.ports import LOOPBACK, free_ports
from tests.page.browser import ensure_chromium, open_browser
from tests.waiting import wait_until

LANE: Final = "shop"
QUEUES: Final = {"shop.high": 4, "shop.low": 1}
GROUPS: Final = 500
PER_S: Final = 80
HEIGHT: Final = 1_150
#: Groups are there, and consumers have a rate, which takes the page a second.
SHOWN: Final = """
return document.querySelectorAll("main tbody tr").length > 16
  && [...document.querySelectorAll("main td")].some(cell => cell.textContent.endsWith("/s"));
"""


@contextlib.contextmanager
def dispatcher(settings: dict[str, object], port: int) -> Iterator[None]:
    """It serves the page at this port."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "dispatcher.yaml"
        file.write_text(yaml.safe_dump(settings))
        process = subprocess.Popen([sys.executable, "-m", "dispatcher", "run", "-c", str(file)])
        try:
            wait_until(lambda: listens(port), what="the dispatcher to serve the page")
            yield
        finally:
            process.terminate()
            process.wait()


def listens(port: int) -> bool:
    try:
        socket.create_connection((LOOPBACK, port)).close()
    except ConnectionRefusedError:
        return False
    return True


async def load(url: str, over: asyncio.Event) -> None:
    """Few groups get most of the messages."""
    chance = random.Random(7)
    weights = [1 / rank**1.5 for rank in range(1, GROUPS + 1)]

    async def work(message: Message) -> None:
        await asyncio.sleep(chance.uniform(0.005, 0.05))  # sleeps: the work

    consumers = [
        GroupConsumer(url, LANE, f"packing-{number}", prefetch=40 if number < 4 else 8)
        for number in range(1, 5)
    ]
    for consumer in consumers:
        await consumer.open()
        await consumer.joined()  # so the queues are there
    running = [asyncio.ensure_future(consumer.run(work, concurrency=10)) for consumer in consumers]
    async with contextlib.AsyncExitStack() as stack:
        producers = [
            await stack.enter_async_context(GroupProducer(url, queue=queue, give_up_after_s=30))
            for queue in QUEUES
        ]
        for number in count():
            (group,) = chance.choices(range(1, GROUPS + 1), weights)
            producers[number % 3 == 0].submit(b"%d" % number, group=f"order-{group}")
            await asyncio.sleep(chance.expovariate(PER_S))  # sleeps: so many messages come in a second
            if over.is_set():
                break
    for consumer in consumers:
        consumer.stop()
    await asyncio.gather(*running)


async def show(url: str, port: int, seconds: float) -> bytes:
    """The page when messages have flowed for so long."""
    over = asyncio.Event()
    flow = asyncio.ensure_future(load(url, over))

    def shoot() -> bytes:
        with open_browser() as browser:
            browser.visit(f"http://{LOOPBACK}:{port}/#/lanes/{LANE}")
            wait_until(lambda: browser.ask(SHOWN), 60, "a page with groups and rates")
            return browser.picture(HEIGHT)

    await asyncio.sleep(seconds)  # sleeps: the charts have to fill
    try:
        return await asyncio.to_thread(shoot)
    finally:
        over.set()
        await flow


def make(file: Path, seconds: float, amqp_url: str, redis_url: str) -> None:
    ensure_chromium()
    (port,) = free_ports(1)
    inbound = [{"queue": queue, "weight": weight, "declare": True} for queue, weight in QUEUES.items()]
    settings = {
        "rabbitmq": {"url": amqp_url}, "redis": {"url": redis_url},
        "http": {"listen": f"{LOOPBACK}:{port}"}, "lanes": {LANE: {"inbound": inbound}},
    }  # fmt: skip
    with dispatcher(settings, port):
        file.write_bytes(asyncio.run(show(amqp_url, port, seconds)))


if __name__ == "__main__":
    with open_servers() as servers:
        seconds = float(sys.argv[2]) if sys.argv[2:] else 605.0
        make(Path(sys.argv[1]), seconds, servers.amqp_url, servers.redis_url)
