"""A core of a hand-over lane, with hands: who reads which queue, what is stored, what is read back."""

from __future__ import annotations

from typing import Any

from dispatcher.core.effects import Effects
from dispatcher.core.forwarding.events import (
    CopiesStored,
    QueueInspected,
    QueueReclaimed,
    QueueReleased,
    ReclaimedForwarded,
)
from dispatcher.core.forwarding.orders import (
    AckReclaimed,
    DeadLetterReclaimed,
    ForwardReclaimed,
    InspectQueue,
    ReclaimedCopy,
    ReclaimQueue,
    ReleaseQueue,
)
from dispatcher.core.options import ForwardingConsumer
from dispatcher.core.tables import IncarnationRow
from tests.spec.lane_bench import LaneBench, names

_PREFIX = "dispatch.orders.consumer."


def queue_of(consumer: str) -> str:
    return f"{_PREFIX}{consumer}"


class HandOverBench(LaneBench):
    """Consumers by id and prefetch. What is published is stored when the test says so (`store`)."""

    def __init__(
        self, consumers: dict[str, int] | None = None, name: str = "exclusive", *, redelivering: bool = False,
        **options: Any,
    ):  # fmt: skip
        """`redelivering`: what was unacked before is still to come back."""
        self._redelivering = redelivering
        self.orders: list[Any] = []  # about queues, and what goes on from them
        self.rows: dict[int, IncarnationRow | None] = {}  # as Redis holds them
        self.hold_releases = False
        self._unreleased: list[str] = []
        consumers = consumers if consumers is not None else {"one": 10, "two": 10}
        declared = tuple(ForwardingConsumer(c, queue_of(c), prefetch) for c, prefetch in consumers.items())
        super().__init__(name, handover=declared, handover_prefix=_PREFIX, **options)

    def _begin(self) -> None:
        if self._redelivering:
            super()._take(self.lane.start(self.now_ms))
        else:
            super()._begin()

    def _take(self, effects: Effects) -> list[Any]:
        kinds = (
            AckReclaimed,
            DeadLetterReclaimed,
            ForwardReclaimed,
            InspectQueue,
            ReleaseQueue,
            ReclaimQueue,
        )
        self.orders += [action for action in effects.actions if isinstance(action, kinds)]
        self.rows |= effects.incarnations
        self._unreleased += [action.queue for action in effects.actions if isinstance(action, ReleaseQueue)]
        return super()._take(effects)

    def step(self, *events: Any, after_ms: int = 1) -> list[Any]:
        """RabbitMQ releases a queue at once, unless that is held."""
        sent = list(super().step(*events, after_ms=after_ms))
        while self._unreleased and not self.hold_releases:
            sent += super().step(QueueReleased(self._unreleased.pop(0)), after_ms=0)
        return sent

    def ordered(self, kind: type) -> list[Any]:
        """The orders of that kind since the last call."""
        found = [order for order in self.orders if isinstance(order, kind)]
        self.orders = [order for order in self.orders if not isinstance(order, kind)]
        return found

    # -- what happens --

    def seen(self, consumer: str, readers: int = 1, ready: int = 0) -> list[str]:
        """Its queue was looked at; what was dispatched then."""
        return names(self.step(QueueInspected(queue_of(consumer), readers, ready)))

    def store(self, *wanted: str) -> list[str]:
        """RabbitMQ confirms these copies; what was dispatched then."""
        copies = [self.latest(name) for name in wanted]
        return names(self.step(*(CopiesStored(copy.incarnation, [copy.seq]) for copy in copies)))

    def handed(self, name: str, consumer: str, tag: int = 1) -> ReclaimedCopy:
        """A message as it is read back, by the numbers that it had last."""
        message, copy = self.latest(name).message, self.latest(name)
        return ReclaimedCopy(
            queue_of(consumer),
            tag,
            copy.seq,
            message.group_id,
            copy.attempt,
            message.fingerprint,
            object(),
            100,
        )

    def lose(self, consumer: str, *held: str) -> None:
        """Nobody reads its queue any more, and what is in it, in this order, is read back."""
        self.seen(consumer, readers=0, ready=len(held))
        self.step(self.marker())
        handed = [self.handed(name, consumer, tag) for tag, name in enumerate(held, 1)]
        self.step(QueueReclaimed(queue_of(consumer), handed))

    def confirm_all(self) -> list[ForwardReclaimed | DeadLetterReclaimed]:
        """RabbitMQ takes all that goes on from there."""
        going = self.ordered(ForwardReclaimed) + self.ordered(DeadLetterReclaimed)
        self.step(*(ReclaimedForwarded(order.handed) for order in going))
        return going


def handed_names(orders: list[Any]) -> list[str]:
    return [order.handed.fingerprint.rstrip(b"\0").decode() for order in orders]
