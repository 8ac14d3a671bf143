"""A lane's core whose operators send groups elsewhere: a target that answers, or not, over leaders."""

from __future__ import annotations

from typing import Any

from dispatcher.core.effects import Effects
from dispatcher.core.operations.events import TargetOpened, TargetRefused, TransferConfirmed, TransferRefused
from dispatcher.core.operations.orders import CloseTarget, OpenTarget, SendTransfer, Target
from dispatcher.core.records import Dispatched
from tests.spec.parking_bench import ParkingBench


class MoveBench(ParkingBench):
    """`opens`: what the broker says of targets (None: nothing). What is sent waits in `under_way`."""

    def __init__(self, name: str = "exclusive", *, opens: str | None = "opened", **options: Any) -> None:
        self.opens = opens
        self.opened: list[OpenTarget] = []
        self.looked_for: list[Target] = []
        self.under_way: list[SendTransfer] = []
        self.target: list[str] = []  # what the target has
        self.closed: list[str] = []
        super().__init__(name, parking=options.pop("parking", 0), **options)

    def _take(self, effects: Effects) -> list[Dispatched]:
        sent = super()._take(effects)
        for action in effects.actions:
            match action:
                case OpenTarget():
                    self.opened.append(action)
                    self.looked_for.append(action.target)
                case SendTransfer():
                    self.under_way.append(action)
                case CloseTarget():
                    self.closed.append(action.operation)
        return sent

    def mark(self, inbound: int = 0, command: str | None = None) -> list[Dispatched]:
        tag = self._tags[inbound] + 1
        self.inbound_unacked[inbound, tag] = (f"mark{tag}", {})
        return super().mark(inbound, command)

    def order(self, kind: str = "move", **arguments: Any) -> None:
        """A command that is new; the broker finds its target, or does not."""
        target = {"to": "elsewhere"} if kind == "move" else {"exchange": "shop", "key": "k"}
        self.command(f"groups.{kind}", **{"group": "a", **target, **arguments})
        assert self.replies[-1].error is None, self.replies[-1].error
        self.find()

    def find(self) -> None:
        """The broker answers for targets that are looked for."""
        opened, self.opened = self.opened, []
        for order in opened:
            if self.opens == "opened":
                self.step(TargetOpened(order.operation))
            elif self.opens is not None:
                self.step(TargetRefused(order.operation, self.opens))

    def sending(self) -> list[str]:
        """What is published to targets, and not answered."""
        return [self._name_of(order.message) for order in self.under_way]

    def takes(self, count: int = 1) -> list[Dispatched]:
        """The target takes the first so many of what is under way."""
        taken, self.under_way = self.under_way[:count], self.under_way[count:]
        self.target += [self._name_of(order.message) for order in taken]
        return self.step(*(TransferConfirmed(order.operation, order.message) for order in taken))

    def takes_all(self) -> list[Dispatched]:
        """The target takes everything."""
        sent = []
        while self.under_way:
            sent += self.takes(len(self.under_way))
        return sent

    def refuses(self, count: int = 1, *, known: bool = True) -> list[Dispatched]:
        """The target refuses the first so many; not known: the channel was closed before it answered."""
        refused, self.under_way = self.under_way[:count], self.under_way[count:]
        why = "queue 'elsewhere' is gone"
        return self.step(*(TransferRefused(order.operation, order.message, why, known) for order in refused))

    def fail_over(self, **lost: Any) -> None:
        """The leader dies; what was under way has got through."""
        self.target += self.sending()
        self.under_way.clear()
        super().fail_over(**lost)

    def result(self) -> dict[str, Any]:
        """What the latest command is answered when it is asked again."""
        self.repeat_command()
        assert self.replies[-1].error is None, self.replies[-1].error
        return self.replies[-1].result

    def error(self) -> str:
        self.repeat_command()
        return self.replies[-1].error or "none"


def waiting(*messages: str, name: str = "exclusive", **options: Any) -> MoveBench:
    """Consumer one has a1, and what follows of group a waits for it."""
    bench = MoveBench(name, **options)
    bench.join("one", prefetch=1)
    bench.arrive("a1", *(messages or ("a2", "a3", "a4")))
    return bench
