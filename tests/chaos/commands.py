"""What operators do while everything else happens: each kind of command is a method of its name."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tests.chaos.operator import Operator
from tests.chaos.plan import Fault
from tests.chaos.stage import LaneOnStage, Process, Stage


@dataclass(slots=True)
class Happened:
    """One fault as it was; times in seconds since the chaos began."""

    fault: str
    target: str
    since_s: float
    until_s: float = 0.0
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Commands:
    """The part of `Faults` that an operator plays."""

    _stage: Stage
    _operator: Operator

    def _consumer(self, fault: Fault, happened: Happened) -> Process | None:
        raise NotImplementedError

    def _lane(self, fault: Fault) -> LaneOnStage:
        return picked(self._stage.lanes, fault)

    def _owning_lane(self, fault: Fault) -> LaneOnStage:
        """One whose groups have lasting owners, if there is any: the others refuse to move them."""
        return picked([lane for lane in self._stage.lanes if lane.keeps_owner] or self._stage.lanes, fault)

    async def rebalance(self, fault: Fault, happened: Happened) -> None:
        await self._operator.rebalance(self._owning_lane(fault), happened)

    async def reset(self, fault: Fault, happened: Happened) -> None:
        await self._operator.rebalance(self._owning_lane(fault), happened, reset=True)

    async def reset_group(self, fault: Fault, happened: Happened) -> None:
        lane = self._owning_lane(fault)
        if group := await self._operator.some_group(lane, fault.pick):
            await self._operator.rebalance(lane, happened, reset=True, group=group)

    async def move_group(self, fault: Fault, happened: Happened) -> None:
        lane = self._owning_lane(fault)
        group = await self._operator.some_group(lane, fault.pick)
        there = [p for p in self._stage.living(self._stage.consumers) if p.lane is lane]
        if group is not None and there:
            await self._operator.rebalance(lane, happened, group=group, to=picked(there, fault).who)

    async def rebalance_by_cli(self, fault: Fault, happened: Happened) -> None:
        await self._operator.rebalance_by_cli(self._owning_lane(fault), happened)

    async def close_group(self, fault: Fault, happened: Happened) -> None:
        lane = self._lane(fault)
        if group := await self._operator.some_group(lane, fault.pick):
            await self._operator.close_group(lane, happened, group)

    async def evict_consumer(self, fault: Fault, happened: Happened) -> None:
        if process := self._consumer(fault, happened):
            await self._operator.evict(process.lane, happened, process.who)

    async def pause_group(self, fault: Fault, happened: Happened) -> None:
        lane = self._lane(fault)
        if group := await self._operator.some_group(lane, fault.pick):
            which = {"group": group}
            undo = ("groups.resume", which)
            await self._operator.flag(lane, happened, ("groups.pause", which), undo, fault.length_s)

    async def pause_lane(self, fault: Fault, happened: Happened) -> None:
        pause, undo = ("groups.pause", {"all": True}), ("groups.resume", {"all": True})
        await self._operator.flag(self._lane(fault), happened, pause, undo, fault.length_s)

    async def pin_group(self, fault: Fault, happened: Happened) -> None:
        lane = self._lane(fault)
        group = await self._operator.some_group(lane, fault.pick)
        there = [p for p in self._stage.living(self._stage.consumers) if p.lane is lane]
        if group is not None and there:
            pin = ("groups.pin", {"group": group, "consumer": picked(there, fault).who})
            undo = ("groups.pin", {"group": group, "undo": True})
            moved = frozenset([group])
            await self._operator.flag(lane, happened, pin, undo, fault.length_s, moved=moved)

    async def drain_consumer(self, fault: Fault, happened: Happened) -> None:
        if process := self._consumer(fault, happened):
            which = {"consumer": process.who}
            drain, undo = ("consumers.drain", which), ("consumers.drain", {**which, "undo": True})
            await self._operator.flag(process.lane, happened, drain, undo, fault.length_s, moved=None)


def picked(things: list[Any], fault: Fault) -> Any:
    return things[int(fault.pick * len(things))]
