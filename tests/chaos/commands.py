"""What operators do while everything else happens: each kind of command is a method of its name."""

from __future__ import annotations

import asyncio
import random
import signal
from dataclasses import asdict, dataclass
from typing import Any

from tests.chaos.deciding import Decider
from tests.chaos.lanes import LaneOnStage
from tests.chaos.operator import Operator
from tests.chaos.parts import Process
from tests.chaos.plan import Fault
from tests.chaos.stage import Stage
from tests.waiting import eventually

#: How long a dispatcher that is not frozen may take to read its file.
REFUSED_WITHIN_S = 5.0


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
    _decider: Decider
    _deciding: asyncio.Lock

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

    # -- what waits of a group, and where groups have stopped --

    async def purge_group(self, fault: Fault, happened: Happened) -> None:
        await self._decider.purge(self._lane(fault), happened, fault.pick)

    async def move_out(self, fault: Fault, happened: Happened) -> None:
        await self._decider.move(self._lane(fault), happened, fault.pick)

    async def reroute_out(self, fault: Fault, happened: Happened) -> None:
        await self._decider.reroute(self._lane(fault), happened, fault.pick)

    async def decide_stopped(self, fault: Fault, happened: Happened) -> None:
        stopping = [lane for lane in self._stage.lanes if self._stage.stops(lane)]
        if not stopping:
            happened.note = "skipped: no lane stops its groups"
            return
        if self._deciding.locked():
            happened.note = "skipped: it is at it already"
            return
        async with self._deciding:
            for lane in stopping:
                await self._decider.decide_stopped(lane, happened, fault.pick)

    # -- the configuration --

    async def reload_weights(self, fault: Fault, happened: Happened) -> None:
        """What the next decision knows (L-2)."""
        chance = random.Random(fault.pick)
        self._stage.changes |= {
            "weights": (chance.randint(1, 5), chance.randint(1, 5)),
            "pause": chance.choice(["group", "lane"]),
            "reconnect_grace": chance.choice(["0s", "2s"]),
            "liveness_interval": chance.choice(["100ms", "200ms", "500ms"]),
        }
        await self._tell_all(happened)

    async def reload_anew(self, fault: Fault, happened: Happened) -> None:
        """What takes a new leadership (L-3)."""
        chance = random.Random(fault.pick)
        self._stage.changes |= {
            "park_after": chance.choice(["10m", "1s", "500ms"]), "ack_timeout": chance.choice([None, "2m"])
        }  # fmt: skip
        await self._tell_all(happened)

    async def _tell_all(self, happened: Happened) -> None:
        told = [replica for replica in self._stage.replicas if self._stage.reads_on_hangup(replica)]
        for replica in self._stage.replicas:
            replica.write(self._stage.configuration(replica))
        for replica in told:
            replica.signal(signal.SIGHUP)
        happened.target = " and ".join(replica.name for replica in told) or "nobody"

    async def reload_nonsense(self, fault: Fault, happened: Happened) -> None:
        """A file that can't apply is refused as a whole, and named (L-1)."""
        replica = picked(self._stage.replicas, fault)
        happened.target = replica.name
        if not self._stage.reads_on_hangup(replica):
            happened.note = "skipped: it is not there"
            return
        process, pid = replica.process, replica.process.pid
        before = len(process.logged("configuration_refused"))
        replica.write({**self._stage.configuration(replica), "nonsense": {"is": "refused"}})
        replica.signal(signal.SIGHUP)

        def answered() -> bool:
            gone = not process.is_alive() or process.pid != pid
            return gone or len(process.logged("configuration_refused")) > before

        try:
            await eventually(answered, REFUSED_WITHIN_S)
        except AssertionError:
            happened.note = "not refused yet"  # it is frozen: it will read the next file
        finally:
            replica.write(self._stage.configuration(replica))
        if process.pid == pid and process.ended_by_itself():
            self._stage.problems.append(f"{replica.name} did not survive a wrong configuration")


def picked(things: list[Any], fault: Fault) -> Any:
    return things[int(fault.pick * len(things))]
