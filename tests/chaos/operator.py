"""An operator who moves groups around, through the command queue and through the command line."""

from __future__ import annotations

import asyncio
import json
import math
import sys
import time
from typing import Any

from dispatcher.cli.command_client import ask
from dispatcher.cli.rabbitmq import connected
from dispatcher.errors import BrokerUnavailable, CommandRefused, NoAnswer
from dispatcher.judge.judge import Move
from dispatcher.wire.protocol import LaneNames
from tests.chaos.lanes import LaneOnStage
from tests.chaos.parts import Eviction
from tests.chaos.stage import PREFIX, Stage
from tests.service.harness import ROOT

TIMEOUT_MS = 5_000
#: A group moves when what is in flight of it is settled; its consumer may be frozen for that long.
MOVE_LASTS_S = 30.0
#: A command that nobody answered is carried out within this time or refused.
COMMAND_LIVES_S = 60.0
REFUSED = "refused"
#: More than any restart takes.
UNDONE_WITHIN_S = 120.0
#: A Redis that is killed, or whose replica takes its place, may lack what was written within this time.
LOST_S = 2.0
#: While RabbitMQ is away every try ends at once.
UNDO_PAUSE_S = 0.5
NO_GROUPS: frozenset[str] = frozenset()
Order = tuple[str, dict[str, Any]]


class Operator:
    """Gives commands and notes which groups they may have moved, when."""

    pause_s = UNDO_PAUSE_S
    undone_within_s = UNDONE_WITHIN_S

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    async def rebalance(self, lane: LaneOnStage, happened: Any, **arguments: Any) -> None:
        begun = time.monotonic()
        happened.target = " ".join([lane.name, *(f"{name}={value}" for name, value in arguments.items())])
        result, happened.note = await self._answer(lane, "rebalance", arguments)
        if result is not None:
            happened.note = f"{result['groups']} groups"
        if result is not None or not happened.note.startswith(REFUSED):
            self._moved(lane, begun, result)

    async def rebalance_by_cli(self, lane: LaneOnStage, happened: Any) -> None:
        begun = time.monotonic()
        happened.target = lane.name
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "dispatcher", "rebalance", lane.name, "--json", "--timeout", "5s",
            "-c", str(self._stage.replicas[0].process.config),
            cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            out, err = await process.communicate()
        except BaseException:
            process.kill()
            raise
        if process.returncode == 0:
            result = json.loads(out)
            happened.note = f"{result['groups']} groups"
            self._moved(lane, begun, result)
        else:
            happened.note = f"exit {process.returncode}: {err.decode().strip().splitlines()[-1][:80]}"
            self._moved(lane, begun, None)

    async def close_group(self, lane: LaneOnStage, happened: Any, group: str) -> None:
        begun = time.monotonic()
        happened.target = f"{lane.name} group={group}"
        result, happened.note = await self._answer(lane, "groups.close", {"group": group})
        if result is not None or not happened.note.startswith(REFUSED):
            groups = frozenset([group])
            self._stage.moves[lane.name].append(Move(begun, self._lasts_until(result), groups))

    async def evict(self, lane: LaneOnStage, happened: Any, who: str) -> None:
        begun = time.monotonic()
        happened.target = f"{lane.name} {who}"
        result, happened.note = await self._answer(lane, "consumers.evict", {"consumer": who})
        if result is not None:
            name = result["incarnation"][:8]
            self._stage.evictions.append(Eviction(begun, math.inf, who, name))
        elif not happened.note.startswith(REFUSED):
            until = begun + COMMAND_LIVES_S + MOVE_LASTS_S
            self._stage.evictions.append(Eviction(begun, until, who, None))

    async def flag(
        self, lane: LaneOnStage, happened: Any, order: Order, undo: Order, seconds: float,
        *, moved: frozenset[str] | None = NO_GROUPS,
    ) -> None:  # fmt: skip
        """Set a flag, and undo it after so many seconds, as often as it takes. Meanwhile the owners of the
        groups `moved` may change, None: any group's."""
        begun = time.monotonic()
        happened.target = " ".join([lane.name, *(f"{name}={value}" for name, value in order[1].items())])
        result, happened.note = await self._answer(lane, *order)
        if result is None and happened.note.startswith(REFUSED):
            return
        await asyncio.sleep(seconds)  # sleeps: that long it lasts
        result = await self._undo(lane, *undo)
        self._stage.undone.append((time.monotonic(), lane, *undo))
        if moved is None or moved:
            self._stage.moves[lane.name].append(Move(begun, self._lasts_until(result), moved))

    async def undo_again(self) -> None:
        """At the end: a new leader has the flags that Redis has, which may have lost that one was undone."""
        for at, lane, *order in self._stage.undone:
            losses = [outage for outage in self._stage.redis_outages_of(lane) if outage.killed]
            if any((o.since if o.back_to is None else o.back_to) - LOST_S <= at <= o.until for o in losses):
                await self._undo(lane, *order)

    async def _undo(
        self, lane: LaneOnStage, command: str, arguments: dict[str, Any]
    ) -> dict[str, Any] | None:
        """The result, None if it is refused. A flag that nobody undid would keep what waits from ever being
        handled, and that would look like a fault of the dispatcher."""
        until = time.monotonic() + self.undone_within_s
        while True:
            result, note = await self._answer(lane, command, arguments)
            if result is not None or note.startswith(REFUSED):
                return result
            if time.monotonic() >= until:
                what = " ".join([command, *(f"{name}={value}" for name, value in arguments.items())])
                said = f"nobody answered {what} of {lane.name} within {self.undone_within_s:.0f} s: {note}"
                self._stage.unanswered[lane.name].append(f"not live: {said}")
                return None
            await asyncio.sleep(self.pause_s)  # sleeps: between two tries

    async def some_group(self, lane: LaneOnStage, pick: float) -> str | None:
        """One of the groups that are known now, None if nobody says."""
        try:
            result = await asyncio.to_thread(self._ask, lane, "groups.list", {"limit": 100})
        except (CommandRefused, NoAnswer, BrokerUnavailable):
            return None
        groups = [row["group"] for row in result["groups"]]
        return groups[int(pick * len(groups))] if groups else None

    async def _answer(
        self, lane: LaneOnStage, command: str, arguments: dict[str, Any]
    ) -> tuple[dict[str, Any] | None, str]:
        """The result, or None and why there is none; unless that begins with REFUSED it may still come."""
        try:
            return await asyncio.to_thread(self._ask, lane, command, arguments), ""
        except CommandRefused as refused:
            return None, f"{REFUSED}: {refused}"
        except (NoAnswer, BrokerUnavailable) as failure:
            return None, str(failure).splitlines()[0][:80]

    def _ask(self, lane: LaneOnStage, command: str, arguments: dict[str, Any]) -> dict[str, Any]:
        with connected(self._stage.rabbitmq, "chaos") as connection:
            return ask(connection, LaneNames(lane.name, PREFIX), command, arguments, timeout_ms=TIMEOUT_MS)

    def _moved(self, lane: LaneOnStage, begun: float, result: dict[str, Any] | None) -> None:
        until = self._lasts_until(result)
        named = [] if result is None else [move["group"] for move in result["moves"]]
        groups = None if result is None or result["groups"] > len(named) else frozenset(named)
        self._stage.moves[lane.name].append(Move(begun, until, groups))

    def _lasts_until(self, result: dict[str, Any] | None) -> float:
        return time.monotonic() + MOVE_LASTS_S + (COMMAND_LIVES_S if result is None else 0.0)
