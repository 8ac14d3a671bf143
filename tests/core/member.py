"""A consumer of the tests of the core: it does what the contract asks of consumers, and keeps a record."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from dispatcher.core.orders import SendNotice
from dispatcher.wire.protocol import (
    TYPE_REJOIN,
    TYPE_TAKEN,
    TYPE_WELCOME,
    FailedMessage,
    Heartbeat,
    InHand,
    Join,
    Leave,
    Settle,
)
from tests.core.broker import Copy

if TYPE_CHECKING:
    from tests.core.world import World


class Member:
    """One incarnation of a consumer."""

    def __init__(self, world: World, name: str, life: int, prefetch: int) -> None:
        self.world = world
        self.name = name
        self.life = life
        self.uuid = f"{name}-{life}"
        self.prefetch = prefetch
        self.n = 0
        self.queue: str | None = None  # None: not connected
        self.alive = True  # False: its process is gone
        self.over = False  # it knows that it was taken back
        self.joined = False
        self.leaving = False
        self.seen: dict[int, Copy] = {}
        self.in_hand: dict[int, Copy] = {}
        self.last_of_group: dict[bytes | None, tuple[int, int]] = {}
        self.unconfirmed: list[Settle] = []

    # -- connection --

    @property
    def connected(self) -> bool:
        return self.queue is not None

    def connect(self) -> None:
        """A new queue, what was not confirmed again, and a join with what is in hand."""
        self.disconnect()
        self.queue = f"{self.uuid}-q{self.n + 1}"
        self.world.broker.consumer_queues[self.queue] = deque()
        for settle in self.unconfirmed:
            self._publish(settle)
        self.unconfirmed.clear()
        self.join()

    def disconnect(self) -> None:
        if self.queue is not None:
            self.world.broker.consumer_queues.pop(self.queue, None)
        self.queue = None
        self.joined = False

    def die(self) -> None:
        """kill -9."""
        self.disconnect()
        self.alive = False

    def join(self) -> None:
        assert self.queue is not None
        self.n += 1
        self._publish(self.joining())

    def joining(self) -> Join:
        in_hand = tuple(
            InHand(seq=copy.seq, group=copy.group, fingerprint=copy.fingerprint)
            for copy in self.in_hand.values()
        )
        assert self.queue is not None
        return Join(
            consumer=self.name, incarnation=self.uuid, n=self.n, queue=self.queue,
            prefetch=self.prefetch, in_hand=in_hand,
        )  # fmt: skip

    def heartbeat(self) -> Heartbeat:
        return Heartbeat(
            consumer=self.name, incarnation=self.uuid, queue=self.queue or "",
            held=len(self.in_hand), last=max(self.seen, default=0),
        )  # fmt: skip

    def leave(self) -> None:
        self.leaving = True
        self._publish(Leave(consumer=self.name, incarnation=self.uuid))

    # -- receiving --

    def receive(self, count: int = 1_000_000) -> None:
        """Take what came, in order."""
        while count and self.queue is not None:
            queue = self.world.broker.consumer_queues[self.queue]
            if not queue:
                return
            count -= 1
            item = queue.popleft()
            if isinstance(item, SendNotice):
                self._notified(item)
            else:
                self._received(item)

    def _notified(self, notice: SendNotice) -> None:
        if notice.body.get("incarnation") != self.uuid:
            return
        if notice.type == TYPE_WELCOME and notice.body["n"] == self.n:
            self.joined = True
        elif notice.type == TYPE_TAKEN:
            self.disconnect()
            self.over = True
            self.in_hand.clear()
        elif notice.type == TYPE_REJOIN:
            self.join()

    def _received(self, copy: Copy) -> None:
        if copy.seq in self.seen:
            self.world.check_same_copy(self, self.seen[copy.seq], copy)
            if copy.seq not in self.in_hand:
                self._publish(self._settle([copy.seq]))
            return
        if copy.group_seq and not self._is_next(copy):
            self.world.gaps += 1
            self.connect()
            return
        self.seen[copy.seq] = copy
        self.in_hand[copy.seq] = copy
        self.world.handed_over(self, copy)

    def _is_next(self, copy: Copy) -> bool:
        epoch, last = self.last_of_group.get(copy.group, (0, 0))
        if copy.epoch < epoch:
            return False
        expected = last + 1 if copy.epoch == epoch else 1
        if copy.group_seq != expected:
            return False
        self.last_of_group[copy.group] = (copy.epoch, copy.group_seq)
        return True

    # -- settling --

    def ack(self, seqs: Iterable[int], fate: str = "confirmed") -> None:
        """Settle these. `lost` or `unconfirmed`: the connection ends with it, and the broker has not or has
        read it; either way it is said again over the next one."""
        self._tell(self._settle(list(seqs)), fate)

    def fail(self, seq: int, reason: str = "failed", fate: str = "confirmed") -> None:
        self._forget([seq])
        failed = FailedMessage(seq=seq, reason=reason, attempts=1)
        self._tell(Settle(consumer=self.name, incarnation=self.uuid, failed=(failed,)), fate)

    def _tell(self, settle: Settle, fate: str) -> None:
        if fate != "lost":
            self._publish(settle)
        if fate != "confirmed":
            self.unconfirmed.append(settle)
            self.disconnect()

    def _settle(self, seqs: list[int]) -> Settle:
        self._forget(seqs)
        ranges: list[list[int]] = []
        for seq in sorted(seqs):
            if ranges and ranges[-1][1] == seq - 1:
                ranges[-1][1] = seq
            else:
                ranges.append([seq, seq])
        acked = tuple((first, last) for first, last in ranges)
        return Settle(consumer=self.name, incarnation=self.uuid, acked=acked)

    def _forget(self, seqs: list[int]) -> None:
        for seq in seqs:
            self.in_hand.pop(seq, None)

    def _publish(self, message: Join | Settle | Leave) -> None:
        self.world.publish_control(self, message)

    def __repr__(self) -> str:
        return f"<Member {self.uuid} in hand {sorted(self.in_hand)}>"
