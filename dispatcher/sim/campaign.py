"""Runs seeds: one, or many in several processes; and makes a failing one smaller."""

from __future__ import annotations

import gc
import multiprocessing
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from dispatcher.sim.history import EVENTS_KEPT
from dispatcher.sim.narration import narrate
from dispatcher.sim.run import SimulatedRun
from dispatcher.sim.scenario import RunScenario
from dispatcher.sim.seeds import make_scenario
from dispatcher.sim.watcher import Violation

T = TypeVar("T")
#: Seeds that a worker takes at a time.
_CHUNK: Final = 4


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How a run ended; `problem` None: every guarantee held."""

    seed: int
    checker: str  # which one failed, or "crash"
    problem: str | None
    events: tuple[str, ...]  # the last ones before the problem; all of them if that was asked for
    messages: int
    virtual_ms: int
    steps: int
    met: Counter[tuple[str, str]]  # what happened how often: see World.met


def run_scenario(
    scenario: RunScenario, *, plants: Sequence[object] = (), verbose: bool = False,
    on_sent: Callable[[int, Any], object] | None = None,
) -> RunOutcome:  # fmt: skip
    """One run. The same scenario always has the same outcome.

    `on_sent` is called with all that a process sends to a server, and when (virtual time in ms): an operation
    of AMQP with its arguments, as a tuple, or a command of Redis, as a list of bytes.
    """
    collecting = gc.isenabled()
    gc.disable()  # a run is short, and all that it made goes at its end
    try:
        return _run(scenario, plants, on_sent, verbose=verbose)
    finally:
        gc.collect(0)  # all of it is young, and no frame holds it any more
        if collecting:
            gc.enable()


def _run(
    scenario: RunScenario, plants: Sequence[object], on_sent: Callable[[int, Any], object] | None,
    *, verbose: bool,
) -> RunOutcome:  # fmt: skip
    run = SimulatedRun(scenario, plants=plants, verbose=verbose)
    scheduler = run.world.scheduler
    if on_sent is not None:
        scheduler.on_sent = lambda item: on_sent(scheduler.now_ms, item)
    world, failure = run.world, run.carry_out()
    checker, problem = "", None
    events: tuple[str, ...] = ()
    if failure is not None:
        if isinstance(failure, Violation):
            checker, problem = failure.checker, failure.text
        else:
            checker, problem = "crash", "".join(traceback.format_exception(failure))
    if failure is not None or verbose:
        events = tuple(narrate(world.history, world.begun_at_ms, None if verbose else EVENTS_KEPT))
    return RunOutcome(
        scenario.seed, checker, problem, events, len(scenario.messages),
        scheduler.now_ms - world.begun_at_ms, scheduler.steps, world.met(),
    )  # fmt: skip


def run_seed(seed: int, messages: int | None = None, *, cluster: bool = False) -> RunOutcome:
    return run_scenario(make_scenario(seed, messages, cluster=cluster))


def run_seeds(
    seeds: Sequence[int], *, messages: int | None = None, jobs: int = 1, plants: Sequence[object] = (),
    cluster: bool = False,
) -> Iterator[RunOutcome]:  # fmt: skip
    """The outcomes of many seeds, as they come."""
    work = [(seed, messages, plants, cluster) for seed in seeds]
    if jobs == 1:
        yield from map(_run_work, work)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(_run_work, work, chunksize=_CHUNK)


def _run_work(work: tuple[int, int | None, Sequence[object], bool]) -> RunOutcome:
    seed, messages, plants, cluster = work
    return run_scenario(make_scenario(seed, messages, cluster=cluster), plants=plants)


# --- shrinking ---


def shrink(scenario: RunScenario, fails: Callable[[RunScenario], bool]) -> RunScenario:
    """The smallest scenario found, by leaving things out, that still fails."""
    changed = True
    while changed:
        changed = False
        for candidate in _smaller(scenario):
            if fails(candidate):
                scenario, changed = candidate, True
                break
    return scenario


def _smaller(scenario: RunScenario) -> Iterator[RunScenario]:
    """Candidates, the boldest first."""
    for faults in _parts(scenario.faults):
        yield scenario.but(faults=faults)
    for messages in _parts(scenario.messages):
        yield scenario.but(messages=messages)
    for consumers in _parts(scenario.consumers):
        if consumers:
            yield scenario.but(consumers=consumers)
    if scenario.dispatchers > 1:
        yield from (scenario.but(redis_ms=(way_ms,)) for way_ms in scenario.redis_ms)
    if len(scenario.inbounds) > 1:
        last = len(scenario.inbounds) - 1
        kept = tuple(message for message in scenario.messages if message.inbound != last)
        yield scenario.but(inbounds=scenario.inbounds[:last], messages=kept)


def _parts(items: tuple[T, ...]) -> Iterator[tuple[T, ...]]:
    size = len(items) // 2
    while size:
        for at in range(0, len(items), size):
            yield items[:at] + items[at + size :]
        size //= 2
    if len(items) == 1:
        yield ()
