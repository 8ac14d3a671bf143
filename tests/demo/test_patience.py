"""The demo waits as long as something goes on, and no longer."""

from __future__ import annotations

import asyncio
import io
import re
import socket
import sys
import time
from contextlib import suppress
from itertools import count
from pathlib import Path

import pika
import pytest
from rich.console import Console

from dispatcher.demo import queues
from dispatcher.demo.patience import Patience, wait_while_it_goes_on
from dispatcher.demo.pipeline import PipelineFailed, run_pipeline
from dispatcher.demo.producer import publish
from dispatcher.demo.run import _folder
from dispatcher.demo.screen import Screen
from dispatcher.demo.workload import RowChange
from dispatcher.errors import BrokerUnavailable
from tests.client.tcp_proxy import TcpProxy
from tests.conftest import Vhost

CHANGES = [(0, RowChange(b"g", b"k", b"", b"v"))]


class _Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_signs_of_progress_make_it_wait_without_end() -> None:
    clock = _Clock()
    waits = Patience(10, clock)
    for step in range(100):
        clock.now += 2
        assert waits.lasts(step // 5)  # a sign every ten seconds
    for _ in range(6):
        clock.now += 2
        assert waits.lasts("nothing new")
    clock.now += 2
    assert not waits.lasts("nothing new")


def test_time_in_which_the_demo_itself_stood_still_hardly_counts() -> None:
    clock = _Clock()
    waits = Patience(10, clock)
    assert waits.lasts("")
    clock.now += 3_600
    assert waits.lasts("")


def test_it_looks_often_whether_it_is_over_and_seldom_for_signs() -> None:
    """To look for what a process does took half a processor, beside what was waited for."""
    looks, asked, until = count(), count(), time.monotonic() + 0.3
    assert wait_while_it_goes_on(lambda: next(looks) > 2 and time.monotonic() > until, lambda: next(asked))
    assert next(looks) > 3
    assert next(asked) <= 2


def test_a_broker_that_says_nothing_ends_the_publishing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"amqp://guest:guest@127.0.0.1:{silent.getsockname()[1]}/"
        with pytest.raises(BrokerUnavailable, match=r"confirmed no message for 0\.3 s, and 0 before"):
            publish(url, ["q"], CHANGES, lambda _: None, Patience(0.3))


def test_a_broker_that_says_nothing_is_no_stack_trace_at_the_end_either() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"amqp://guest:guest@127.0.0.1:{silent.getsockname()[1]}/?stack_timeout=0.3"
        with pytest.raises(BrokerUnavailable, match="RabbitMQ does not answer"):
            queues.counts(url, [])


@pytest.mark.parametrize("how", ["hangs", "dies"])
def test_a_broker_that_ends_while_it_takes_messages_ends_the_publishing(vhost: Vhost, how: str) -> None:
    with pika.BlockingConnection(pika.URLParameters(vhost.amqp_url)) as connection:
        connection.channel().queue_declare("q", durable=True)

    ended_at: list[float] = []

    async def scene() -> None:
        loop = asyncio.get_running_loop()
        async with TcpProxy(vhost.amqp_url) as proxy:

            def end_it(confirmed: int) -> None:
                if confirmed and not ended_at:
                    ended_at.append(time.monotonic())
                    loop.call_soon_threadsafe(proxy.stall if how == "hangs" else die)

            def die() -> None:
                proxy.refuses = True
                proxy.cut()

            endless = ((0, RowChange(b"%d" % n, b"k", b"", b"v")) for n in count())
            await asyncio.to_thread(publish, proxy.url, ["q"], endless, end_it, Patience(1.0, since_then))

    def since_then() -> float:  # a busy machine may need longer for the first confirm
        return time.monotonic() - ended_at[0] if ended_at else 0.0

    with pytest.raises(BrokerUnavailable, match=r"RabbitMQ has confirmed no message for 1 s, and [1-9]"):
        asyncio.run(scene())


def test_a_pipeline_that_does_nothing_is_ended_and_what_to_do_is_said(tmp_path: Path) -> None:
    sleeper = (sys.executable, "-c", "import time; print('read files: 0.1 s', flush=True); time.sleep(600)")
    out = io.StringIO()
    ledger = tmp_path / "ledger"
    with pytest.raises(PipelineFailed, match=f"dispatcher pipeline run --input {ledger} --output "):
        run_pipeline(
            ledger, tmp_path / "report", Screen(Console(file=out, width=200)), idle_s=1.0, program=sleeper
        )
    assert "  read files: 0.1 s\n" in out.getvalue()


def test_a_pipeline_that_works_for_long_says_so(tmp_path: Path) -> None:
    summary = tmp_path / "report" / "summary.json"
    script = "print('hand-overs: 0.1 s, about 9 min more', flush=True); "
    script += f"import pathlib, time; time.sleep(0.5); p = pathlib.Path({str(summary)!r}); p.parent.mkdir()"
    worker = (sys.executable, "-c", f"{script}; p.write_text('{{}}')")
    out = io.StringIO()
    screen = Screen(Console(file=out, width=200))
    run_pipeline(tmp_path / "ledger", summary.parent, screen, silent_s=0.05, program=worker)
    assert "  hand-overs: 0.1 s, about 9 min more\n" in out.getvalue()
    assert re.search(r"it has worked for \d+ s, about 9 min more", out.getvalue())


def test_the_ledger_stays_if_only_the_pipeline_failed() -> None:
    kept, removed = _failed_with(PipelineFailed("no")), _failed_with(BrokerUnavailable("no"))
    assert (kept.is_dir(), removed.exists()) == (True, False)
    kept.rmdir()


def _failed_with(error: Exception) -> Path:
    """The folder of a demo that ended with this."""
    folders = []
    with suppress(type(error)), _folder(None) as folder:
        folders.append(folder)
        raise error
    return folders[0]
