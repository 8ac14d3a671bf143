"""Everything that can happen to a lane, as operations on a `World`; whoever drives it chooses.

`choose(n)` gives a number below n. The same operations serve the Hypothesis machine and plain seeds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from tests.core.broker import PublishedMessage
from tests.core.member import Member
from tests.core.world import Store, World

Choose = Callable[[int], int]

GROUPS: Final = ("a", "b", "c", "d", None)
NAMES: Final = ("one", "two", "three")
FATES: Final = ("confirmed",) * 10 + ("unconfirmed", "lost")


class Chaos:
    """One world and the next thing that happens to it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.earlier: Store | None = None  # what Redis held some time ago

    # -- producers --

    def publish(self, choose: Choose) -> None:
        inbound = choose(len(self.world.broker.inbounds))
        more = {}
        kind = choose(30)
        if kind == 0:
            more = {"closing": True}
        elif kind == 1:
            more = {"lifetime_ms": 1_000 + 1_000 * choose(10)}
        elif kind == 2:
            more = {"refusal": "unreadable"}
        elif kind == 3:
            more = {"body": f"twin {choose(2)}", "twin": True}
        group = GROUPS[choose(len(GROUPS))]
        self.world.publish(group, inbound=inbound, count=1 + choose(4), **more)

    def delete(self, choose: Choose) -> None:
        """Others purge: an original that is not out at the dispatcher goes away."""
        inbound = self.world.broker.inbounds[choose(len(self.world.broker.inbounds))]
        ready = inbound.ready()
        if ready:
            original = ready[choose(len(ready))]
            inbound.originals.remove(original)
            original.gone = True

    # -- consumers --

    def _one(self, choose: Choose, members: list[Member]) -> Member | None:
        return members[choose(len(members))] if members else None

    def _connected(self, choose: Choose) -> Member | None:
        return self._one(choose, [m for m in self.world.members if m.connected])

    def join(self, choose: Choose) -> None:
        name = NAMES[choose(len(NAMES))]
        if sum(m.name == name and m.alive and not m.over for m in self.world.members) < 2:
            self.world.join(name, 1 + choose(5))

    def receive(self, choose: Choose) -> None:
        if member := self._connected(choose):
            member.receive(1 + choose(6))

    def ack(self, choose: Choose) -> None:
        """Settle some, the first ones or any."""
        if (member := self._connected(choose)) and member.in_hand:
            seqs = list(member.in_hand)
            if choose(3) == 0:
                start = choose(len(seqs))
                seqs = seqs[start::2]
            else:
                seqs = seqs[: 1 + choose(len(seqs))]
            member.ack(seqs, FATES[choose(len(FATES))])

    def fail(self, choose: Choose) -> None:
        if (member := self._connected(choose)) and member.in_hand:
            seqs = list(member.in_hand)
            member.fail(seqs[choose(len(seqs))], "failed", FATES[choose(len(FATES))])

    def heartbeat(self, choose: Choose) -> None:
        if member := self._connected(choose):
            self.world.events.append(member.heartbeat())

    def ask_again(self, choose: Choose) -> None:
        """A join that was not answered yet is repeated."""
        if member := self._one(choose, [m for m in self.world.members if m.connected and not m.joined]):
            self.world.publish_control(member, member.joining())

    def leave(self, choose: Choose) -> None:
        if member := self._connected(choose):
            member.leave()

    def disconnect(self, choose: Choose) -> None:
        if member := self._connected(choose):
            member.disconnect()

    def connect(self, choose: Choose) -> None:
        away = [m for m in self.world.members if m.alive and not m.over and not m.connected]
        if member := self._one(choose, away):
            member.connect()

    def die(self, choose: Choose) -> None:
        if member := self._one(choose, [m for m in self.world.members if m.alive]):
            member.die()

    # -- the dispatcher, a part at a time --

    def deliver(self, choose: Choose) -> None:
        self.world.deliver(choose(len(self.world.broker.inbounds)), 1 + choose(8))

    def read_control(self, choose: Choose) -> None:
        self.world.read_control(1 + choose(4))

    def step(self, choose: Choose) -> None:
        self.world.end_redeliveries()
        self.world.step()

    def commit(self, choose: Choose) -> None:
        self.world.commit()

    def perform(self, choose: Choose) -> None:
        self.world.perform()

    def acks(self, choose: Choose) -> None:
        self.world.process_acks(1 + choose(8))
        if choose(2):
            self.world.prove_acks()

    def run(self, choose: Choose) -> None:
        self.world.run()

    def checkpoint(self, choose: Choose) -> None:
        self.world.checkpoint()

    def rebalance(self, choose: Choose) -> None:
        if self.world.options.policy.keeps_owner:
            group = GROUPS[choose(len(GROUPS) - 1)]
            to = NAMES[choose(len(NAMES))]
            arguments = [{}, {"reset": True}, {"group": group}, {"group": group, "to": to}][choose(4)]
            self.world.order(**arguments, pause=(None, "lane")[choose(4) == 0])

    def say(self, choose: Choose) -> None:
        """What lasts until it is unsaid: pauses, pins, drained consumers; and evictions."""
        group, name, undo = GROUPS[choose(len(GROUPS) - 1)], NAMES[choose(len(NAMES))], choose(2) == 1
        match choose(5):
            case 0:
                self.world.order("groups.resume" if undo else "groups.pause", group=group)
            case 1:
                self.world.order("groups.resume" if undo else "groups.pause", all=True)
            case 2:
                self.world.order(
                    "groups.pin", group=group, **({"undo": True} if undo else {"consumer": name})
                )
            case 3:
                self.world.order("consumers.drain", consumer=name, undo=undo)
            case 4:
                self.world.order("consumers.evict", consumer=name)

    def _unsay(self) -> None:
        for group in GROUPS[:-1]:
            self.world.order("groups.resume", group=group)
            self.world.order("groups.pin", group=group, undo=True)
        for name in NAMES:
            self.world.order("consumers.drain", consumer=name, undo=True)
        self.world.order("groups.resume", all=True)

    def wait(self, choose: Choose) -> None:
        self.world.now_ms += (10, 300, 1_000, 6_000, 20_000)[choose(5)]
        for member in self.world.members:
            if member.connected and choose(8):
                self.world.events.append(member.heartbeat())

    # -- faults --

    def crash(self, choose: Choose) -> None:
        for _ in range(choose(3)):
            self.world.commit()
        self.world.crash(choose(12))
        if choose(4) == 0:
            self.delete(choose)
        if choose(2):
            self.world.now_ms += choose(3_000)
        self.world.take_over()

    def remap(self, choose: Choose) -> None:
        """The next dispatcher has another group map."""
        if self.world.options.policy.grouped:
            self.world.crash(choose(12))
            buckets = (None, 1, 2, 3)[choose(4)]
            self.world.options = replace(self.world.options, buckets=buckets)
            self.world.take_over()

    def restart_broker(self, choose: Choose) -> None:
        self.world.restart_broker(*(choose(6) for _ in self.world.broker.inbounds))

    def remember(self, choose: Choose) -> None:
        self.earlier = self.world.store.copy()

    def forget(self, choose: Choose) -> None:
        """Redis is lost while no dispatcher lives; its consumers are asked before time goes on."""
        self.world.crash(choose(12))
        self.world.forget(self.earlier if choose(2) else None)
        self.earlier = None
        self.world.take_over()
        for _ in range(choose(3)):
            self.deliver(choose)
        self.world.step()
        for member in self.world.members:
            if member.connected:
                self.world.events.append(member.heartbeat())
        self.world.run()

    # -- the end --

    def finish(self) -> None:
        """Nothing bad happens any more: everything must drain (liveness)."""
        world = self.world
        world.run()
        self._unsay()
        patience = 40
        while patience:
            before = len(self._unfinished())
            self._come_back()
            world.run()
            for member in world.members:
                if member.connected:
                    member.ack(list(member.in_hand))
                    world.events.append(member.heartbeat())
            world.run()
            left = len(self._unfinished())
            if not left:
                return
            if left >= before:
                patience -= 1
                world.wait(1_000)
        raise AssertionError(f"not drained: {self._unfinished()}")

    def _come_back(self) -> None:
        world = self.world
        for member in list(world.members):
            if member.alive and not member.over and not member.connected:
                member.connect()
            elif member.connected and not member.joined:
                world.publish_control(member, member.joining())
        if not any(m.connected and not m.leaving for m in world.members):
            world.join(NAMES[0], 3)

    def _unfinished(self) -> list[PublishedMessage]:
        return [o for inbound in self.world.broker.inbounds for o in inbound.originals]


#: (operation, weight): how often each happens, beside the others.
WEIGHTS: Final = {
    Chaos.publish: 12, Chaos.deliver: 10, Chaos.read_control: 10, Chaos.step: 14, Chaos.commit: 10,
    Chaos.perform: 10, Chaos.receive: 10, Chaos.ack: 10, Chaos.run: 6, Chaos.acks: 5, Chaos.join: 4,
    Chaos.fail: 2, Chaos.heartbeat: 2, Chaos.ask_again: 1, Chaos.leave: 1, Chaos.disconnect: 2,
    Chaos.connect: 3, Chaos.die: 2, Chaos.wait: 3, Chaos.checkpoint: 1, Chaos.rebalance: 2,
    Chaos.crash: 3, Chaos.restart_broker: 1, Chaos.delete: 1, Chaos.remember: 1, Chaos.forget: 1,
    Chaos.remap: 1, Chaos.say: 3,
}  # fmt: skip
