"""`dispatcher conformance`: brings the servers, plays the scenes, judges the record, and reports."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dispatcher.conformance.scenes import SCENES, Scene, spread
from dispatcher.conformance.stage import STEAL_AFTER_S, SceneFailed, Stage
from dispatcher.judge.judge import Story, violations
from dispatcher.nodes import Servers, open_servers

#: Of each kind of problem the report names so many.
_NAMED: Final = 5
INTERRUPTED: Final = 130


def run(command: Sequence[str]) -> int:
    """Try a program; returns the exit code, 0 when it conforms.

    Raises DispatcherError when something can't be started.
    """
    try:
        with open_servers() as servers:
            return asyncio.run(_try(command, servers))
    except KeyboardInterrupt:
        print("dispatcher: interrupted; everything that was started is ended", file=sys.stderr)
        return INTERRUPTED


async def _try(command: Sequence[str], servers: Servers) -> int:
    with tempfile.TemporaryDirectory(prefix="dispatcher-conformance-") as folder:
        async with Stage(command, servers, Path(folder)) as stage:
            holds = True
            for scene in SCENES:
                problems = await _play(stage, scene)
                _report(scene.__doc__ or "", problems, stage)
                holds = holds and not problems
                if not holds:
                    break  # what follows builds on it
            found = await _judge(stage) if holds else []
            if holds:
                _report(f"the record of {handlings(stage)} calls holds", found, stage)
    conforms = holds and not found
    print("It conforms." if conforms else "It does not conform.")
    return 0 if conforms else 1


async def _play(stage: Stage, scene: Scene) -> list[str]:
    """What was wrong."""
    try:
        await scene(stage)
    except SceneFailed as error:
        stage.problems.append(str(error))
    found = stage.problems + stage.tap.problems
    for program in stage.all_programs:
        found += program.problems
        program.problems = []
    stage.problems, stage.tap.problems = [], []
    return found


def _report(what: str, problems: list[str], stage: Stage) -> None:
    print(f"{'FAILED' if problems else 'ok    '} {what}", flush=True)
    for problem in problems[:_NAMED]:
        print(f"       {problem}")
    if len(problems) > _NAMED:
        print(f"       and {len(problems) - _NAMED} more")
    if problems:
        for program in stage.programs.values():
            print(f"       {program.consumer} wrote to stderr: {program.last_words() or 'nothing'}")


def handlings(stage: Stage) -> int:
    return sum(len(program.handlings) for program in stage.all_programs)


async def _judge(stage: Stage) -> list[str]:
    """What the whole record says."""
    record = sorted((h for p in stage.all_programs for h in p.handlings), key=lambda handling: handling.start)
    story = Story(
        frozenset(stage.published), stage.killed_at, stage.left_at, keeps_owner=True,
        steal_after_s=STEAL_AFTER_S, poison=frozenset(stage.poison),
    )  # fmt: skip
    found = [str(breach) for breach in violations(record, story)]
    return found + _settled_unfinished(stage) + await _left(stage)


def _settled_unfinished(stage: Stage) -> list[str]:
    """A settle names only messages whose handler has ended, at this consumer."""
    found = []
    for consumer, settles in stage.tap.settles.items():
        ended = {
            h.seq
            for p in stage.all_programs
            if p.consumer == consumer
            for h in p.handlings
            if h.end is not None
        }
        for settle in settles:
            wrong = (spread(settle.acked) | {failed.seq for failed in settle.failed}) - ended
            if wrong:
                found.append(f"{consumer} settled {sorted(wrong)[:_NAMED]}, which its handler has not ended")
    return found


async def _left(stage: Stage) -> list[str]:
    """Every original is acked, so the dispatchers have everything and the queues are empty when they end."""

    async def settled() -> bool:
        return await asyncio.to_thread(stage.dispatchers[0].unfinished) == 0

    try:
        await stage.until_async(settled, "the dispatcher to read the last settles")
    except SceneFailed as error:
        return [str(error)]
    for dispatcher in stage.dispatchers:
        await asyncio.to_thread(dispatcher.stop)
    left = await stage.left_in_inbound_queues()
    return [f"{left} messages are left in the inbound queues"] if left else []
