"""The lanes of one process: all that the configuration names, also after it has changed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Any, Final

import structlog

from dispatcher.errors import CommandRefused, ConfigurationError, DispatcherError
from dispatcher.ledger.recorder import NO_LEDGER, OpensRecorders
from dispatcher.service.lane_runner import LaneRunner
from dispatcher.service.reloading import Change, Reread, changes, read_again
from dispatcher.service.replicas import this_process
from dispatcher.service.spreading import LOOK_S, spread
from dispatcher.settings import Settings

log = structlog.get_logger()

#: How long a lane that is no longer configured may take to stop.
LANE_STOP_S: Final = 4.0


class Lanes:
    """Runs every lane of the settings. `runners` is one list for good; `failed` holds the first bug."""

    runner_type: type[LaneRunner] = LaneRunner
    spread_look_s: float = LOOK_S

    def __init__(self, settings: Settings, reread: Reread, ledger: OpensRecorders = NO_LEDGER) -> None:
        self._settings = settings
        self._reread = reread
        self._ledger = ledger
        self._reloading = asyncio.Lock()
        self._started = False
        self._asked_early = False
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._errands: set[asyncio.Task[None]] = set()  # asyncio itself keeps only weak references
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.runners = [self._runner(settings, name) for name in settings.lanes]

    def _runner(self, settings: Settings, name: str) -> LaneRunner:
        return self.runner_type(settings, settings.lanes[name], self.reload, self._ledger, self._led)

    def _led(self) -> int:
        return sum(runner.leads for runner in self.runners)

    # -- life --

    async def prepare(self) -> None:
        """Refuse what can't work before anything runs: raises ConfigurationError with all of it."""
        await _prepare(self.runners)

    def start(self) -> None:
        self._started = True
        for runner in self.runners:
            self._start(runner)
        if self._settings.spread_lanes:
            spreading = asyncio.create_task(spread(self.runners, self.spread_look_s))
            self._errands.add(spreading)
            spreading.add_done_callback(self._ended)
        if self._asked_early:
            self.reload_soon()

    def _start(self, runner: LaneRunner) -> None:
        task = self._tasks[runner.name] = asyncio.create_task(runner.run(), name=runner.name)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or self.failed.done():
            return
        if (failure := task.exception()) is not None:
            self.failed.set_exception(failure)

    async def stop(self, timeout_s: float) -> None:
        """All of them, as SIGTERM does; after that time their connections are simply dropped."""
        for errand in self._errands:
            errand.cancel()
        await self._stop(self.runners, timeout_s)

    async def _stop(self, runners: Iterable[LaneRunner], timeout_s: float) -> None:
        runners = list(runners)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*(runner.stop() for runner in runners), return_exceptions=True)
        tasks = [self._tasks.pop(runner.name) for runner in runners if runner.name in self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- another configuration --

    def reload_soon(self) -> None:
        """For a signal: the log has the result."""
        if not self._started:
            self._asked_early = True
            return
        self._soon(self._reload_quietly())

    async def _reload_quietly(self) -> None:
        with contextlib.suppress(CommandRefused):
            await self.reload()

    async def reload(self) -> dict[str, Any]:
        """Read the file again and apply it as a whole, or refuse it as a whole.

        The result of the command `reload`. Raises CommandRefused with a line for each problem.
        """
        async with self._reloading:
            try:
                settings = read_again(self._reread, self._settings)
                plan = changes(self._settings, settings)
                added = [self._runner(settings, name) for name, c in plan.items() if c is Change.STARTED]
                others = [self._runner(settings, name) for name, c in plan.items() if c is Change.ANEW]
                await _prepare(added + others)
            except ConfigurationError as error:
                log.error("configuration_refused", problems=error.problems)
                raise CommandRefused("\n".join(error.problems)) from None
            self._apply(settings, plan, added)
            told = {name: change.value for name, change in plan.items()}
            log.info("configuration_reloaded", lanes=told)
            return {"dispatcher": this_process(), "lanes": told}

    def _apply(self, settings: Settings, plan: dict[str, Change], added: list[LaneRunner]) -> None:
        """Nothing waits in here, so that an answer to the command leaves before its lane is led anew."""
        self._settings = settings
        gone = [runner for runner in self.runners if plan[runner.name] is Change.STOPPED]
        for runner in self.runners:
            if plan[runner.name] in (Change.AT_ONCE, Change.ANEW):
                runner.reconfigure(settings.lanes[runner.name])
        self.runners[:] = [runner for runner in self.runners if runner not in gone] + added
        for runner in added:
            self._start(runner)
        if gone:
            self._soon(self._stop(gone, LANE_STOP_S))

    def _soon(self, errand: Any) -> None:
        task = asyncio.get_running_loop().create_task(errand)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)


async def _prepare(runners: Iterable[LaneRunner]) -> None:
    """Raises ConfigurationError with all problems; servers that are away are not a reason to refuse."""
    problems: list[str] = []

    async def prepare(runner: LaneRunner) -> None:
        try:
            await runner.prepare()
        except ConfigurationError as refused:
            problems.extend(line for line in refused.problems if line not in problems)
        except DispatcherError as away:
            log.warning("not_ready_yet", lane=runner.name, problem=str(away))

    await asyncio.gather(*(prepare(runner) for runner in runners))
    if problems:
        raise ConfigurationError(problems)
