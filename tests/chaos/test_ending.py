"""How a run of chaos comes to its end: flags are undone, and what is left is awaited."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

from dispatcher.errors import BrokerUnavailable
from tests.chaos.commands import Happened
from tests.chaos.draining import STILL_S, WHOLE_S, Patience, drain
from tests.chaos.lanes import LaneOnStage
from tests.chaos.operator import Operator
from tests.chaos.parts import Outage
from tests.chaos.plan import Plan
from tests.chaos.stage import Stage

LANE = LaneOnStage("orders", "exclusive")
PAUSE, RESUME = ("groups.pause", {"group": "a"}), ("groups.resume", {"group": "a"})


def test_a_backlog_is_awaited_while_it_gets_smaller() -> None:
    patience = Patience(0.0)
    for second in range(0, int(WHOLE_S), 60):
        assert patience.ended_by(second, float(second)) is None


def test_what_does_not_move_is_not_awaited() -> None:
    patience = Patience(0.0)
    assert patience.ended_by(7, 10.0) is None
    assert patience.ended_by(7, 10.0 + STILL_S - 1) is None
    assert patience.ended_by(7, 10.0 + STILL_S) == "not live: not drained, and nothing was handled for 90 s"


def test_nothing_is_awaited_for_ever() -> None:
    patience = Patience(0.0)
    handled = 0
    while (problem := patience.ended_by(handled, handled * 60.0)) is None:
        handled += 1
    assert (problem, handled * 60.0) == ("not live: not drained 20 min after the last fault", WHOLE_S)


async def test_what_is_drained_is_not_counted() -> None:
    async def is_drained() -> bool:
        return True

    assert await drain(is_drained, lambda: math.factorial(-1)) is None


class _Away(Operator):
    """Nobody is there for the first undoings."""

    pause_s = 0.001
    away = 100

    def _ask(self, lane: LaneOnStage, command: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if command == RESUME[0]:
            self.away -= 1
            if self.away > 0:
                raise BrokerUnavailable("connection refused")
        return {}


async def test_a_flag_is_undone_however_long_nobody_is_there(tmp_path: Path) -> None:
    stage = Stage(tmp_path, Plan(1, 1.0), [LANE], 1.0)
    operator, happened = _Away(stage), Happened("pause_group", "", 0.0)
    await asyncio.wait_for(operator.flag(LANE, happened, PAUSE, RESUME, 0.0), 60)
    assert (operator.away, happened.note, stage.unanswered) == (0, "", {LANE.name: []})


async def test_a_flag_that_redis_may_have_back_is_undone_again(tmp_path: Path) -> None:
    stage = Stage(tmp_path, Plan(1, 1.0), [LANE], 1.0)
    operator = _Away(stage)
    await operator.flag(LANE, Happened("pause_group", "", 0.0), PAUSE, RESUME, 0.0)
    asked, (undone_at, *_) = operator.away, stage.undone[0]
    stage.redis_outages += [
        Outage(undone_at - 1, undone_at + 1),  # it was stopped in order
        Outage(undone_at + 60, undone_at + 70, killed=True),
        Outage(undone_at, undone_at + 1, killed=True, lanes=frozenset({"another"})),
    ]
    await operator.undo_again()
    assert operator.away == asked
    stage.redis_outages.append(Outage(undone_at + 5, undone_at + 6, killed=True, back_to=undone_at - 1))
    await operator.undo_again()
    assert operator.away == asked - 1


async def test_a_flag_that_nobody_undoes_is_told(tmp_path: Path) -> None:
    stage = Stage(tmp_path, Plan(1, 1.0), [LANE], 1.0)
    operator, happened = _Away(stage), Happened("pause_group", "", 0.0)
    operator.undone_within_s = 0.01
    operator.away = 1_000_000
    await asyncio.wait_for(operator.flag(LANE, happened, PAUSE, RESUME, 0.0), 60)
    (problem,) = stage.unanswered[LANE.name]
    assert problem.startswith("not live: nobody answered groups.resume group=a of orders within")
