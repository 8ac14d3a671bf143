"""A lane's core with hands: arrive, join, settle; and what it sent to whom."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from dispatcher.core.effects import Effects, Snapshot
from dispatcher.core.events import (
    CommandReceived,
    CopiesConfirmed,
    Event,
    MessagesArrived,
    QueueReturned,
    RedeliveriesEnded,
)
from dispatcher.core.lane import Lane
from dispatcher.core.membership.ack_timeout import EVERYBODY
from dispatcher.core.model import Original
from dispatcher.core.operations.events import BarrierMark
from dispatcher.core.operations.orders import PublishBarrier
from dispatcher.core.options import LaneOptions, policy
from dispatcher.core.orders import (
    AckInbound,
    DeadLetter,
    LogEvent,
    PublishMarker,
    Reply,
    SendCopy,
    SendNotice,
)
from dispatcher.core.records import Dispatched
from dispatcher.core.views.views import Views
from dispatcher.wire.protocol import FailedMessage, InHand, Join, Leave, Marker, Settle

SEMANTICS: Final = " ".join((Path(__file__).parents[2] / "docs" / "semantics.md").read_text().split())
START_MS: Final = 1_800_000_000_000


def clause(name: str, words: str) -> None:
    """The clause of that id says these words; else the test is about something that the page doesn't say."""
    text = re.search(rf"\*\*{name}\b.*?(?=\*\*[A-Z]-\d|## |$)", SEMANTICS)
    assert text is not None, f"docs/semantics.md has no clause {name}"
    assert " ".join(words.split()) in text[0], f"{name} does not say: {words}"


class LaneBench:
    """One leader of one lane with nothing before it."""

    def __init__(
        self,
        name: str = "exclusive",
        *,
        weights: Iterable[int] = (1,),
        top_up: bool = False,
        grouped: bool = True,
        complete: bool = True,
        flags: dict[bytes, dict[str, Any]] | None = None,
        snapshot: dict[str, Any] | None = None,
        lane_type: type[Lane] = Lane,
        **options: Any,
    ):
        inbounds = tuple((f"in{index}", weight) for index, weight in enumerate(weights))
        self.lane = lane_type(
            LaneOptions(policy=policy(name, top_up=top_up, grouped=grouped), inbounds=inbounds, **options),
            Snapshot(
                lane_epoch=7,
                complete=complete,
                broker_restarted=False,
                operator_rows=flags or {},
                **(snapshot or {}),
            ),
            START_MS,
        )
        self.now_ms = START_MS
        self.flags = dict(flags or {})  # as Redis holds them
        self.sent: list[Dispatched] = []  # every dispatch so far
        self.again: list[Dispatched] = []  # every copy that was sent again
        self.dead: list[tuple[bytes, str]] = []
        self.acked: list[bytes] = []
        self.notices: list[tuple[str, str]] = []
        self.bodies: list[dict[str, Any]] = []  # of the notices
        self.markers: list[PublishMarker] = []
        self.asked: list[PublishMarker] = []  # those that ask what RabbitMQ has
        self.barriers: list[PublishBarrier] = []  # markers of operations that have not come back
        self.replies: list[Reply] = []
        self.told: list[tuple[str, dict[str, Any]]] = []  # for the log
        self.command_uuids: list[str] = []
        self.hears_at_once = True  # what asks RabbitMQ what it has
        self._tags = [0 for _ in inbounds]
        self._begin()

    def _begin(self) -> None:
        self._take(self.lane.start(self.now_ms))
        self.step(*(RedeliveriesEnded(index) for index in range(len(self._tags))))

    def step(self, *events: Event, after_ms: int = 1) -> list[Dispatched]:
        """Feed events; returns what was dispatched."""
        self.now_ms += after_ms
        sent = self._take(self.lane.step(events, self.now_ms))
        if sent:
            sent += self.step(CopiesConfirmed(len(sent), sum(copy.message.size for copy in sent)), after_ms=0)
        if self.hears_at_once:
            self.hear()
        return sent

    def hear(self) -> None:
        """What asks RabbitMQ what it has comes back, when that is all it has."""
        asked, self.asked = self.asked, []
        for order in asked:
            epoch = self.lane.state.lane_epoch
            self.step(Marker(incarnation=order.incarnation, lane_epoch=epoch, n=order.n), after_ms=0)

    def _take(self, effects: Effects) -> list[Dispatched]:
        sent = []
        flags = (self.flags | effects.operator_rows).items()
        self.flags = {key: row for key, row in flags if row is not None}
        for action in effects.actions:
            match action:
                case Dispatched():
                    sent.append(action)
                case SendCopy():
                    self.again.append(action.copy)
                case AckInbound():
                    self.acked += [message.fingerprint.rstrip(b"\0") for message in action.messages]
                case DeadLetter():
                    self.dead.append((action.message.fingerprint.rstrip(b"\0"), action.reason))
                case Reply():
                    self.replies.append(action)
                case SendNotice():
                    self.notices.append((action.queue, action.type))
                    self.bodies.append(action.body)
                case PublishMarker() | PublishBarrier():
                    self._publish_marker(action)
                case LogEvent():
                    self.told.append((action.event, action.fields))
        self.sent += sent
        return sent

    def _publish_marker(self, order: PublishMarker | PublishBarrier) -> None:
        if isinstance(order, PublishMarker) and order.incarnation == EVERYBODY:
            self.asked.append(order)
        elif isinstance(order, PublishMarker):
            self.markers.append(order)
        else:
            self.barriers.append(order)

    # -- what happens --

    def arrive(self, *names: str, inbound: int = 0, after_ms: int = 1, **fields: Any) -> list[Dispatched]:
        """Messages named `<group><number>`, such as `a1`; a name that begins with `-` has no group."""
        messages = []
        for name in names:
            self._tags[inbound] += 1
            tag = self._tags[inbound]
            group = None if name.startswith("-") else name.rstrip("0123456789").encode()
            messages.append(
                Original(
                    inbound,
                    tag,
                    (self.lane.state.lane_epoch, tag),
                    name.encode().ljust(16, b"\0"),
                    group,
                    object(),
                    100,
                    self.now_ms,
                )
            )
            for field, value in fields.items():
                setattr(messages[-1], field, value)
        return self.step(MessagesArrived(messages), after_ms=after_ms)

    def mark(self, inbound: int = 0, command: str | None = None) -> list[Dispatched]:
        """A marker comes: the one that was published to that queue last, or one that somebody made."""
        if command is None:
            order = next(order for order in reversed(self.barriers) if order.inbound == inbound)
            self.barriers.remove(order)
            command = order.command
        self._tags[inbound] += 1
        tag = self._tags[inbound]
        arrival, name = (self.lane.state.lane_epoch, tag), b"mark%d" % tag
        mark = BarrierMark(inbound, tag, arrival, name.ljust(16, b"\0"), None, object(), 10, self.now_ms)
        mark.command = command
        return self.step(MessagesArrived([mark]))

    def join(
        self, consumer: str, prefetch: int = 10, *, n: int = 1, uuid: str = "", **in_hand: Any
    ) -> list[Dispatched]:
        uuid = uuid or f"{consumer}-1"
        held: tuple[InHand, ...] = in_hand.get("in_hand", ())
        queue = f"{uuid}.{n}"
        return self.step(
            Join(consumer=consumer, incarnation=uuid, n=n, queue=queue, prefetch=prefetch, in_hand=held)
        )

    def settle(self, consumer: str, *names: str, uuid: str = "") -> list[Dispatched]:
        """The consumer acks these messages, as it last got them."""
        seqs = [self.latest(name).seq for name in names]
        acked = tuple((seq, seq) for seq in seqs)
        return self.step(Settle(consumer=consumer, incarnation=uuid or f"{consumer}-1", acked=acked))

    def settle_seqs(self, consumer: str, *seqs: int, after_ms: int = 1) -> list[Dispatched]:
        """The consumer acks these numbers, so long after the step before."""
        acked = tuple((seq, seq) for seq in seqs)
        return self.step(
            Settle(consumer=consumer, incarnation=f"{consumer}-1", acked=acked), after_ms=after_ms
        )

    def fail(self, consumer: str, name: str, reason: str) -> list[Dispatched]:
        failed = (FailedMessage(seq=self.latest(name).seq, reason=reason, attempts=1),)
        return self.step(Settle(consumer=consumer, incarnation=f"{consumer}-1", failed=failed))

    def leave(self, consumer: str) -> list[Dispatched]:
        return self.step(Leave(consumer=consumer, incarnation=f"{consumer}-1"))

    def die(self, consumer: str, *, uuid: str = "") -> list[Dispatched]:
        """Its queue is gone, and the marker is read."""
        queue = f"{uuid or f'{consumer}-1'}.1"
        self.step(QueueReturned(queue))
        return self.step(self.marker())

    def returned(self, consumer: str) -> QueueReturned:
        """The queue of its first connection is gone."""
        return QueueReturned(f"{consumer}-1.1")

    def in_hand(self, name: str) -> InHand:
        """A message as its consumer reports it when it joins again."""
        copy = self.latest(name)
        return InHand(seq=copy.seq, group=copy.message.group_id, fingerprint=copy.message.fingerprint)

    def marker(self) -> Marker:
        order = self.markers[-1]
        return Marker(incarnation=order.incarnation, lane_epoch=self.lane.state.lane_epoch, n=order.n)

    def command(self, command: str = "rebalance", **arguments: Any) -> list[Dispatched]:
        self.command_uuids.append(f"uuid-{len(self.command_uuids)}")
        return self.step(CommandReceived(None, self.command_uuids[-1], command, arguments))

    def repeat_command(self) -> list[Dispatched]:
        """The latest one is read once more."""
        return self.step(CommandReceived(None, self.command_uuids[-1], "rebalance", {}))

    # -- what came of it --

    def latest(self, name: str) -> Dispatched:
        """The latest dispatch of a message."""
        return next(copy for copy in reversed(self.sent) if name_of(copy) == name)

    def status(self) -> dict[str, Any]:
        return Views(self.lane.state).status()

    def holder(self, name: str) -> str:
        """To whom it went last."""
        consumer = self.lane.state.by_number.get(self.latest(name).incarnation)
        return consumer.id if consumer is not None else "nobody"


def name_of(copy: Dispatched) -> str:
    return copy.message.fingerprint.rstrip(b"\0").decode()


def names(copies: Iterable[Dispatched]) -> list[str]:
    return [name_of(copy) for copy in copies]
