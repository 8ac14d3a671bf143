"""The process: every lane of the configuration, the HTTP server, and how it stops."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from typing import TYPE_CHECKING, Any, Final

import structlog

from dispatcher.http.server import HttpServer
from dispatcher.ledger.opening import open_ledger
from dispatcher.ledger.recorder import NO_LEDGER, Both, OpensRecorders
from dispatcher.ledger.writer import Ledger
from dispatcher.service.lanes import Lanes
from dispatcher.service.reloading import Reread
from dispatcher.service.workers import SERVED_SIGNALS, STOPPING, Worker
from dispatcher.settings import Settings
from dispatcher.traces.opening import open_traces

if TYPE_CHECKING:
    from dispatcher.traces.exporting import Traces

log = structlog.get_logger()

#: How long a stop may take before the connections are simply dropped.
STOP_S: Final = 4.0
#: And how long the ledger's last file.
LEDGER_STOP_S: Final = 2.0
#: And how long the last spans.
TRACES_STOP_S: Final = 2.0
#: Messages, groups and records hold no cycles: they go with their last reference. A full search for cycles
#: stops a lane of a million groups for 0.6 s and finds nothing, so only the end of a leadership starts one
#: (LaneRunner); the small ones, for what libraries leave, come rarely.
GC_THRESHOLDS: Final = (100_000, 20, 1_000_000)


def run(settings: Settings, reread: Reread, worker: Worker | None = None) -> int:
    """Run until SIGTERM or SIGINT; returns the exit code. SIGHUP, or the command `reload`, applies what
    `reread` finds in the configuration then. A worker ends with its supervisor, too.

    Raises ConfigurationError when RabbitMQ or Redis refuse something that an operator has to change, all
    lanes' problems at once. A server that is only away is waited for.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, SERVED_SIGNALS)  # they wait for their handlers
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        import uvloop
    except ImportError:  # not on this platform: asyncio's own loop is slower, not different
        return asyncio.run(_run(settings, reread, worker))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(settings, reread, worker))


async def _run(settings: Settings, reread: Reread, worker: Worker | None) -> int:
    try:
        await _serve(settings, reread, worker)
    finally:
        # The loop and Python take their handlers away: a second SIGTERM would kill what stopped in order.
        for number in SERVED_SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)
    return 0


async def _serve(settings: Settings, reread: Reread, worker: Worker | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in STOPPING:
        loop.add_signal_handler(number, stop.set)
    lanes: Lanes  # nothing waits before there are any, so they are there when a signal is handled
    loop.add_signal_handler(signal.SIGHUP, lambda: lanes.reload_soon())
    # Before there is a thread, or the ledger's process, which would inherit it.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SERVED_SIGNALS)
    if worker is not None:
        _end_with(worker, stop)
    ledger = open_ledger(settings.ledger) if settings.ledger is not None else None
    traces = _traces(settings, ledger)
    lanes = Lanes(settings, reread, _recorders(ledger, traces))
    if not await _prepared(lanes, stop):
        return
    if ledger is not None:
        ledger.start()
    server = HttpServer(settings.http, lanes.runners)
    await server.start()
    lanes.start()
    if worker is not None:
        worker.has_started()  # before the log says so: whoever reads it may kill this process at once
    log.info("dispatcher_started", lanes=[runner.name for runner in lanes.runners])
    try:
        await _first(stop, lanes.failed)
    finally:
        await _stop(lanes, server, ledger, traces)
    log.info("dispatcher_stopped")


def _end_with(worker: Worker, stop: asyncio.Event) -> None:
    """Stop when the supervisor has ended."""
    loop = asyncio.get_running_loop()

    def ended() -> None:
        loop.remove_reader(worker.link)  # it can be read for good
        log.warning("supervisor_ended")
        stop.set()

    loop.add_reader(worker.link, ended)


async def _prepared(lanes: Lanes, stop: asyncio.Event) -> bool:
    """False when asked to stop meanwhile: a server that doesn't answer must not keep us."""
    preparing, stopped = asyncio.create_task(lanes.prepare()), asyncio.create_task(stop.wait())
    await asyncio.wait([preparing, stopped], return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not preparing.done():
        preparing.cancel()
        await asyncio.gather(preparing, return_exceptions=True)
        return False
    preparing.result()
    return True


async def _first(stop: asyncio.Event, failed: asyncio.Future[None]) -> None:
    """Until asked to stop; a lane's task ends by itself only through a bug, which must not stay unseen."""
    stopped = asyncio.create_task(stop.wait())
    either: list[asyncio.Future[Any]] = [stopped, failed]
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if failed.done():
        failed.result()


def _traces(settings: Settings, ledger: Ledger | None) -> Traces | None:
    """Raises ConfigurationError."""
    if settings.traces is None:
        return None
    return open_traces(settings.traces, ledger.now_us if ledger is not None else None)


def _recorders(ledger: Ledger | None, traces: Traces | None) -> OpensRecorders:
    """Where the lanes are told of."""
    if ledger is not None and traces is not None:
        return Both(ledger, traces)
    return ledger or traces or NO_LEDGER


async def _stop(lanes: Lanes, server: HttpServer, ledger: Ledger | None, traces: Traces | None) -> None:
    await lanes.stop(STOP_S)
    await server.stop()
    if traces is not None and not await asyncio.to_thread(traces.stop, TRACES_STOP_S):
        log.warning("traces_not_finished")
    if ledger is not None and not await asyncio.to_thread(ledger.stop, LEDGER_STOP_S):
        log.warning("ledger_not_finished")
    sys.stdout.flush()
