"""The process: every lane of the configuration, the HTTP server, and how it stops."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import sys
from typing import Final

import structlog

from dispatcher.errors import ConfigurationError, DispatcherError
from dispatcher.http.server import HttpServer
from dispatcher.service.lane_runner import LaneRunner
from dispatcher.settings import Settings

log = structlog.get_logger()

#: How long a stop may take before the connections are simply dropped.
STOP_S: Final = 4.0
#: Messages, groups and records hold no cycles: they go with their last reference. A full search for cycles
#: stops a lane of a million groups for 0.6 s and finds nothing, so only the end of a leadership starts one
#: (LaneRunner); the small ones, for what libraries leave, come rarely.
GC_THRESHOLDS: Final = (100_000, 20, 1_000_000)


def run(settings: Settings) -> int:
    """Run until SIGTERM or SIGINT; returns the exit code.

    Raises ConfigurationError when RabbitMQ or Redis refuse something that an operator has to change, all
    lanes' problems at once. A server that is only away is waited for.
    """
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        import uvloop
    except ImportError:  # not on this platform: asyncio's own loop is slower, not different
        return asyncio.run(_run(settings))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(settings))


async def _run(settings: Settings) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    runners = [LaneRunner(settings, lane) for lane in settings.lanes.values()]
    if not await _prepared(runners, stop):
        return 0
    server = HttpServer(settings.http, runners)
    await server.start()
    tasks = [asyncio.create_task(runner.run(), name=runner.name) for runner in runners]
    log.info("dispatcher_started", lanes=[runner.name for runner in runners])
    try:
        await _first(stop, tasks)
    finally:
        await _stop(runners, tasks, server)
    log.info("dispatcher_stopped")
    return 0


async def _prepared(runners: list[LaneRunner], stop: asyncio.Event) -> bool:
    """Refuse what can't work before anything runs; servers that are away are not a reason to refuse.

    False when asked to stop meanwhile: a server that doesn't answer must not keep us.
    """
    problems: list[str] = []

    async def prepare(runner: LaneRunner) -> None:
        try:
            await runner.prepare()
        except ConfigurationError as refused:
            problems.extend(line for line in refused.problems if line not in problems)
        except DispatcherError as away:
            log.warning("not_ready_yet", lane=runner.name, problem=str(away))

    async def prepare_all() -> None:
        await asyncio.gather(*(prepare(runner) for runner in runners))

    preparing, stopped = asyncio.create_task(prepare_all()), asyncio.create_task(stop.wait())
    await asyncio.wait([preparing, stopped], return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not preparing.done():
        preparing.cancel()
        await asyncio.gather(preparing, return_exceptions=True)
        return False
    preparing.result()
    if problems:
        raise ConfigurationError(problems)
    return True


async def _first(stop: asyncio.Event, tasks: list[asyncio.Task[None]]) -> None:
    """Until asked to stop; a lane's task ends by itself only through a bug, which must not stay unseen."""
    stopped = asyncio.create_task(stop.wait())
    done, _ = await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    for task in done:
        if task is not stopped:
            task.result()


async def _stop(runners: list[LaneRunner], tasks: list[asyncio.Task[None]], server: HttpServer) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(STOP_S):
            await asyncio.gather(*(runner.stop() for runner in runners), return_exceptions=True)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await server.stop()
    sys.stdout.flush()
