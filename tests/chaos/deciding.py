"""The operator who takes messages out of groups, and decides about those at which groups have stopped.

A command is repeated with its uuid until somebody says what came of it, over the death of any dispatcher: so
the verdict knows how many messages each has taken.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
from collections.abc import AsyncIterator
from typing import Any

from dispatcher.cli.command_client import new_command, send
from dispatcher.cli.rabbitmq import connected
from dispatcher.errors import BrokerUnavailable, CommandRefused, NoAnswer
from dispatcher.wire.protocol import Command, LaneNames
from tests.chaos.decisions import (
    DROP,
    MOVE,
    PURGE,
    RELEASE,
    REROUTE,
    SKIP,
    Decision,
    with_error,
    with_result,
)
from tests.chaos.lanes import LaneOnStage
from tests.chaos.stage import EXCHANGE, PREFIX, Stage

TIMEOUT_MS = 5_000
POLL_S = 0.05
#: Longer than any server is away, and than an operation waits where nothing moves.
ANSWERED_WITHIN_S = 120.0
#: How often an operator pauses the group first, and for how long before the command.
PAUSED_SHARE = 0.7
PAUSE_S = 0.5
#: Most groups have little that waits: the deepest ones are of interest.
DEEPEST = 8


class Decider:
    """Gives commands and notes in the stage's `decisions` what came of them."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    # -- what waits of a group --

    async def purge(self, lane: LaneOnStage, happened: Any, pick: float) -> None:
        await self._take_out(PURGE, lane, happened, pick, {})

    async def move(self, lane: LaneOnStage, happened: Any, pick: float) -> None:
        await self._take_out(MOVE, lane, happened, pick, {"to": lane.target})

    async def reroute(self, lane: LaneOnStage, happened: Any, pick: float) -> None:
        await self._take_out(REROUTE, lane, happened, pick, {"exchange": EXCHANGE, "key": lane.name})

    async def _take_out(
        self, command: str, lane: LaneOnStage, happened: Any, pick: float, where: dict[str, Any]
    ) -> None:
        chance = random.Random(pick)
        happened.target = lane.name
        group = await self._deep_group(lane, chance)
        if group is None:
            happened.note = "skipped: nobody names a group"
            return
        first = chance.choice([None, None, 1, 5])
        happened.target = f"{lane.name} group={group}" + (f" first={first}" if first is not None else "")
        arguments = {"group": group, "first": first, **where}
        if chance.random() < PAUSED_SHARE:
            async with self._paused(lane, group):
                await asyncio.sleep(PAUSE_S)  # sleeps: some of the group comes, and waits
                decision = await self._decide(lane, command, arguments)
        else:
            decision = await self._decide(lane, command, arguments)
        happened.note = decision.said()

    @contextlib.asynccontextmanager
    async def _paused(self, lane: LaneOnStage, group: str) -> AsyncIterator[None]:
        """Nothing more of the group is handed over meanwhile."""
        await self._until_done(lane, new_command("groups.pause", {"group": group}))
        yield
        await self._until_done(lane, new_command("groups.resume", {"group": group}))

    async def _deep_group(self, lane: LaneOnStage, chance: random.Random) -> str | None:
        rows = await self._read(lane, "groups.list", {"limit": DEEPEST, "sort": "depth"}, "groups")
        return chance.choice(rows)["group"] if rows else None

    # -- groups that have stopped --

    async def decide_stopped(self, lane: LaneOnStage, happened: Any, pick: float) -> None:
        """Each of those that there are now is released, skipped, or what it stopped at is dropped."""
        chance = random.Random(pick)
        rows = await self._stopped(lane)
        verdicts = [chance.choice([RELEASE, RELEASE, SKIP, DROP]) for _ in rows]
        await self._judge(lane, rows, verdicts)
        happened.target, happened.note = lane.name, f"{len(rows)} stopped groups"

    async def skip_stopped(self, lane: LaneOnStage) -> None:
        """So that everything comes to its end."""
        rows = await self._stopped(lane)
        await self._judge(lane, rows, [SKIP for _ in rows])

    async def _stopped(self, lane: LaneOnStage) -> list[dict[str, Any]]:
        rows = await self._read(lane, "dead.stopped", {"after": None}, "groups")
        return [row for row in rows if row["verdict"] is None]

    async def _judge(self, lane: LaneOnStage, rows: list[dict[str, Any]], verdicts: list[str]) -> None:
        pairs = zip(rows, verdicts, strict=True)
        await asyncio.gather(*(self._decide(lane, say, {"group": row["group"]}) for row, say in pairs))

    # -- commands --

    async def _read(
        self, lane: LaneOnStage, command: str, arguments: dict[str, Any], key: str
    ) -> list[dict[str, Any]]:
        """The rows of an answer, none if nobody answers."""
        try:
            result = await asyncio.to_thread(self._send, lane, new_command(command, arguments))
        except (CommandRefused, NoAnswer, BrokerUnavailable):
            return []
        return list(result[key])

    async def _decide(self, lane: LaneOnStage, command: str, arguments: dict[str, Any]) -> Decision:
        decision = Decision(command, arguments["group"], time.monotonic(), math.inf, None)
        decisions = self._stage.decisions[lane.name]
        place = len(decisions)
        decisions.append(decision)  # it may be carried out whatever becomes of us
        result, error = await self._until_done(lane, new_command(command, arguments))
        if result is not None:
            decision = with_result(decision, result)
        elif error is not None:
            decision = with_error(decision, error)
        decisions[place] = decision._replace(until=time.monotonic())
        return decisions[place]

    async def _until_done(
        self, lane: LaneOnStage, order: Command
    ) -> tuple[dict[str, Any] | None, str | None]:
        """The result, or the refusal; neither if nobody knows what came of it."""
        begun, repeated = time.monotonic(), False
        while time.monotonic() < begun + ANSWERED_WITHIN_S:
            try:
                result = await asyncio.to_thread(self._send, lane, order)
            except CommandRefused as refused:
                if "s old" in str(refused) and repeated:
                    return None, None  # nobody knows it any more, and it may have been done
                return None, str(refused)
            except (NoAnswer, BrokerUnavailable):
                pass
            else:
                if not result.get("open"):
                    return result, None
            repeated = True
            await asyncio.sleep(POLL_S)  # sleeps: until the next question
        group = order.arguments["group"]
        problem = f"not live: nobody says what came of {order.name} of {group} in {lane.name}"
        self._stage.unanswered[lane.name].append(problem)
        return None, None

    def _send(self, lane: LaneOnStage, order: Command) -> dict[str, Any]:
        with connected(self._stage.rabbitmq, "chaos") as connection:
            return send(connection, LaneNames(lane.name, PREFIX), order, timeout_ms=TIMEOUT_MS)
