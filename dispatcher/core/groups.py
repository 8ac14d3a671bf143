"""Message groups: their states, the one table of transitions, and what waits in them.

Theory of operation. A group is FREE until the delivery pass gives it to a consumer. Under a policy that
lets its owner go on it is then OWNED; under plain `sequenced` it is BATCHED: one batch is out and the rest
is blocked for everybody. DRAINING means that the owner gets no more and that the group changes hands when
the last message in flight is settled: it was moved, reset or closed, or its consumer is leaving. After a
fail-over a group with open entries is RECOVERING until every one of them has met its original again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from dispatcher.core.model import Message, MessageState
from dispatcher.errors import InvalidTransition

if TYPE_CHECKING:
    from dispatcher.core.consumers import Consumer, ConsumerSource
    from dispatcher.core.inbound import UnownedSource
    from dispatcher.core.parking.queue import Demand


class GroupState(Enum):
    FREE = "free"
    OWNED = "owned"
    BATCHED = "batched"
    DRAINING = "draining"
    RECOVERING = "recovering"


GROUP_TRANSITIONS: Final[dict[GroupState, frozenset[GroupState]]] = {
    GroupState.FREE: frozenset({GroupState.OWNED, GroupState.BATCHED, GroupState.RECOVERING}),
    GroupState.OWNED: frozenset({GroupState.FREE, GroupState.DRAINING, GroupState.RECOVERING}),
    GroupState.BATCHED: frozenset({GroupState.FREE, GroupState.DRAINING, GroupState.RECOVERING}),
    GroupState.DRAINING: frozenset({GroupState.FREE, GroupState.OWNED, GroupState.RECOVERING}),
    GroupState.RECOVERING: frozenset(
        {GroupState.FREE, GroupState.OWNED, GroupState.BATCHED, GroupState.DRAINING}
    ),
}


class Backlog:
    """The messages of one group that wait, from one inbound queue, in that queue's order.

    `source` is the one list of the delivery pass that holds this backlog, None while it may not be served.
    Messages that ended meanwhile (expired) stay inside until they reach the front.
    """

    __slots__ = ("group", "inbound", "messages", "source")

    def __init__(self, group: Group, inbound: int) -> None:
        self.group = group
        self.inbound = inbound
        self.messages: deque[Message] = deque()
        self.source: ConsumerSource | UnownedSource | None = None

    def head(self) -> Message | None:
        """The first message that still waits; drops those in front of it that no longer do."""
        messages = self.messages
        while messages:
            message = messages[0]
            if message.state is MessageState.WAITING:
                return message
            messages.popleft()
        return None

    def put_back(self, messages: list[Message]) -> None:
        """Messages that are older than what waits, or than some of it; their ranks say so."""
        messages.sort(key=lambda message: message.rank)
        waiting = self.messages
        if waiting and waiting[0].rank < messages[-1].rank:
            merged = sorted([*waiting, *messages], key=lambda message: message.rank)
            waiting.clear()
            waiting.extend(merged)
        else:
            waiting.extendleft(reversed(messages))

    def pop_behind(self, queue: int) -> list[Message]:
        """Take out what waits behind everything that came from this queue; all, if nothing did."""
        messages = list(self.messages)
        last = max((at for at, message in enumerate(messages) if message.queue == queue), default=-1)
        self.messages = deque(messages[: last + 1])
        return [message for message in messages[last + 1 :] if message.state is MessageState.WAITING]

    def enter(self, source: ConsumerSource | UnownedSource) -> None:
        """Let it be served from this list, behind the others."""
        source.backlogs[self] = None
        self.source = source

    def leave(self) -> None:
        """It is served from nowhere."""
        if self.source is not None:
            del self.source.backlogs[self]
            self.source = None


@dataclass(slots=True)
class Stop:
    """The message at which a group has stopped (`retry.on_exhausted: park`)."""

    inbound: int
    fingerprint: bytes
    arrival: tuple[int, int]
    reason: str
    attempt: int
    calls: int
    consumer: str
    at_ms: int
    verdict: str | None = None  # "skip" or "drop": to be done once the message is in front

    def row(self) -> dict[str, Any]:
        """As Redis keeps it."""
        return {**asdict(self), "fingerprint": self.fingerprint.hex()}

    @classmethod
    def of_row(cls, row: dict[str, Any]) -> Stop:
        return cls(
            **{**row, "fingerprint": bytes.fromhex(row["fingerprint"]), "arrival": tuple(row["arrival"])}
        )


class GroupFlags:
    """What operators have said of a group, or have to say; falsy when that is nothing."""

    __slots__ = ("consumer", "transferring", "operation", "paused", "pin", "stop")

    def __init__(self, *, paused: bool = False, pin: str | None = None, stop: Stop | None = None) -> None:
        self.paused = paused  # nothing more of it is handed over
        self.pin = pin  # the consumer that alone gets it
        self.stop = stop  # nothing more of it is handed over until somebody decides
        self.consumer: Consumer | None = None  # that to which it is pinned, its present incarnation
        self.operation: str | None = None  # uuid of the operation that is open on it (its row is that's)
        self.transferring = False  # that operation sends it away, and nothing else of it moves

    def __bool__(self) -> bool:
        said = self.paused or self.pin is not None or self.stop is not None
        return said or self.operation is not None

    @property
    def lacks_consumer(self) -> bool:
        """It is pinned to somebody who is not there, or gets nothing."""
        return self.pin is not None and (self.consumer is None or self.consumer.drained)

    def row(self) -> dict[str, Any] | None:
        """As Redis keeps it."""
        row: dict[str, Any] = {"paused": True} if self.paused else {}
        if self.pin is not None:
            row["pin"] = self.pin
        if self.stop is not None:
            row["stopped"] = self.stop.row()
        return row or None

    @classmethod
    def of_row(cls, row: dict[str, Any]) -> GroupFlags:
        """The opposite of `row`."""
        stopped = row.get("stopped")
        stop = Stop.of_row(stopped) if stopped is not None else None
        return cls(paused=bool(row.get("paused")), pin=row.get("pin"), stop=stop)


class Group:
    """One message group of the lane. `in_flight` counts its unsettled copies at all consumers."""

    __slots__ = (
        "_state", "backlogs", "demand", "epoch", "flags", "fresh", "id", "in_flight", "last_seq", "owner",
        "route", "target", "unresolved",
    )  # fmt: skip

    def __init__(self, group_id: bytes, state: GroupState = GroupState.FREE) -> None:
        self.id = group_id
        self._state = state
        self.owner: Consumer | None = None
        self.epoch = 0  # of the present assignment; 0: the next dispatch begins a new epoch
        self.last_seq = 0  # group-seq of the latest message of this epoch
        self.fresh = False  # assigned, and nothing dispatched since
        self.in_flight = 0
        self.unresolved = 0  # open entries whose original has not come back yet
        self.target: Consumer | None = None  # DRAINING: who gets it next, None: nobody in particular
        self.backlogs: dict[int, Backlog] | None = None  # by inbound index; None: nothing waits
        self.route: tuple[int, ...] = ()  # parking queues that its messages pass, by rising index
        self.flags: GroupFlags | None = None
        self.demand: Demand | None = None  # who could take what is read from the last of these

    @property
    def state(self) -> GroupState:
        return self._state

    def become(self, state: GroupState) -> None:
        """Move to `state`. Raises InvalidTransition for a move that the table doesn't have."""
        if state not in GROUP_TRANSITIONS[self._state]:
            raise InvalidTransition(f"group {self.id!r} can't go from {self._state.value} to {state.value}")
        self._state = state

    @property
    def taker(self) -> Consumer | None:
        """Who gets its next message; None: whoever is next."""
        return self.owner if self.owner is not None or self.flags is None else self.flags.consumer

    @property
    def is_held_by_operator(self) -> bool:
        """What operators have said keeps it from being handed over to anybody."""
        flags = self.flags
        if flags is None:
            return False
        stopped = flags.stop is not None and flags.stop.verdict is None
        return flags.paused or flags.transferring or stopped or (self.owner is None and flags.lacks_consumer)

    @property
    def is_transferring(self) -> bool:
        """An operation sends its messages away."""
        return self.flags is not None and self.flags.transferring

    @property
    def is_busy(self) -> bool:
        """What waits of it may be just about to go somewhere."""
        return self._state is GroupState.RECOVERING or self.is_transferring or self.has_decision

    @property
    def has_decision(self) -> bool:
        """It has stopped, and what operators said about that is to be done when the message is here."""
        stop = self.flags.stop if self.flags is not None else None
        return stop is not None and stop.verdict is not None

    @property
    def awaits_operator(self) -> bool:
        """It is held, or has stopped and nobody has decided yet: nothing of it need be here."""
        stop = self.flags.stop if self.flags is not None else None
        return self.is_held_by_operator or (stop is not None and stop.verdict is None)

    @property
    def is_unused(self) -> bool:
        """Nothing is left of it: once it is free too, it is no group any more."""
        return self.backlogs is None and not (self.route or self.in_flight or self.flags)

    def backlog(self, inbound: int) -> Backlog:
        """The backlog for that inbound queue, made when it is first needed."""
        if self.backlogs is None:
            self.backlogs = {}
        backlog = self.backlogs.get(inbound)
        if backlog is None:
            backlog = self.backlogs[inbound] = Backlog(self, inbound)
        return backlog

    def forget_if_empty(self, backlog: Backlog) -> None:
        """Give back the memory of a backlog that ran empty. A backlog that is kept has a message in front."""
        if backlog.head() is None and self.backlogs is not None:
            backlog.leave()
            self.backlogs.pop(backlog.inbound, None)
            if not self.backlogs:
                self.backlogs = None

    def number(self, message: Message, next_epoch: Callable[[], int]) -> None:
        """Give the message the next number under the epoch of the present assignment."""
        self.last_seq += 1
        message.group_seq, message.epoch = self.last_seq, self.epoch

    def renumbered(self, message: Message) -> None:
        """The owner gets this message once more, with these numbers: the next ones follow them."""
        self.last_seq = message.group_seq

    def went_out(self, message: Message) -> None:
        """A message is in a consumer's hands."""
        self.in_flight += 1

    def came_back(self, message: Message) -> None:
        """It no longer is."""
        self.in_flight -= 1

    @property
    def waits_since_ms(self) -> int | None:
        """When the oldest message that waits here was first received; None: nothing waits."""
        heads = (backlog.head() for backlog in (self.backlogs or {}).values())
        return min((head.waits_since_ms for head in heads if head is not None), default=None)

    def waiting(self) -> int:
        """How many of its messages wait here."""
        if self.backlogs is None:
            return 0
        held = MessageState.WAITING
        return sum(m.state is held for backlog in self.backlogs.values() for m in backlog.messages)

    def __repr__(self) -> str:
        return f"<Group {self.id!r} {self._state.value} in_flight={self.in_flight}>"
