"""A lane's core with parking queues around it: stores, confirms and reads them, and lets leaders die."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from dispatcher.core.effects import Effects, Snapshot
from dispatcher.core.events import Event, MessagesArrived, PingRouted, RedeliveriesEnded
from dispatcher.core.lane import Lane
from dispatcher.core.model import Original
from dispatcher.core.orders import AckInbound, Action, SendNotice
from dispatcher.core.parking.events import (
    ParkingQueueDeleted,
    ParkingQueueOpened,
    ParkingQueueRead,
    RelocationConfirmed,
    RelocationRefused,
)
from dispatcher.core.parking.orders import (
    AbandonParkingQueue,
    DeleteParkingQueue,
    GiveBack,
    OpenParkingQueue,
    ParkCopy,
    ReadParkingQueue,
)
from dispatcher.core.parking.policy import BLOCKED_MS
from dispatcher.core.queue_ids import parking_id
from dispatcher.core.records import Dispatched, OpenEntry, Record
from tests.spec.lane_bench import LaneBench

FIRST: Final = parking_id(0)


@dataclass(eq=False)
class Parked:
    """One message in a parking queue, as the broker has it."""

    name: str
    group: bytes | None
    copy: bytes
    term: int
    root: tuple[int, int]
    inbound: int
    attempt: int
    deadline_at_ms: int | None
    closing: bool
    waits_since_ms: int
    flagged: bool = False


class ParkingBench(LaneBench):
    """`hold_confirms`, `hold_reads`, not `opens_parking`: the broker does not answer for now."""

    def __init__(self, name: str = "exclusive", *, parking: int = 4, **options: Any) -> None:
        self.ready: dict[int, deque[Parked]] = {}
        self.unacked: dict[int, dict[int, Parked]] = {}
        self.pending: deque[Event] = deque()
        self.unconfirmed: list[tuple[ParkCopy, Parked]] = []
        self.hold_confirms = self.hold_reads = False
        self.opens_parking = True
        self.opening: list[int] = []
        self.rounds = 0  # steps that `run` took
        self.journal: list[Record] = []
        self.owners: dict[bytes, Any] = {}
        self.sequences: dict[bytes, int] = {}
        self.rows: dict[int, Any] = {}
        self.results: dict[str, Any] = {}  # of commands
        self.moved: list[str] = []  # every publish to a parking queue
        self.deleted: list[int] = []
        self.abandoned: list[int] = []
        self.inbound_unacked: dict[tuple[int, int], tuple[str, dict[str, Any]]] = {}
        self._name: dict[Original, str] = {}
        self._read_tags: dict[int, int] = {}
        self._lane_epoch = 7
        queues = tuple(f"park.{number}" for number in range(1, parking + 1))
        super().__init__(name, parking_queues=queues, **options)

    # -- the broker --

    def _take(self, effects: Effects) -> list[Dispatched]:
        self._commit(effects)
        sent = super()._take(effects)
        for action in effects.actions:
            self._carry_out(action)
        for copy in sent:
            self._name[copy.message] = self._name_of(copy.message)
        return sent

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, ParkCopy):
            self._store(action)
        elif isinstance(action, ReadParkingQueue):
            self._reads.append(action)
        elif isinstance(action, AckInbound):
            for message in action.messages:
                self._ack(message)
        else:
            self._carry_out_rare(action)

    def _carry_out_rare(self, action: Action) -> None:
        match action:
            case SendNotice(type="dispatch.ping"):
                self.pending.append(PingRouted(action.queue))
            case OpenParkingQueue():
                self.ready.setdefault(action.queue, deque())
                self.unacked.setdefault(action.queue, {})
                self.opening.append(action.queue)
                if self.opens_parking:
                    self._opened()
            case GiveBack():
                returned = [self.unacked[action.queue].pop(tag) for tag in action.tags]
                self._requeue(action.queue, returned)
            case AbandonParkingQueue():
                self._abandon(action.queue)
            case DeleteParkingQueue():
                assert not self.ready[action.queue]
                del self.ready[action.queue], self.unacked[action.queue]
                self.deleted.append(action.queue)
                self.pending.append(ParkingQueueDeleted(action.queue, True))

    def _abandon(self, queue: int) -> None:
        self.opening.remove(queue)
        assert not self.ready.pop(queue)
        del self.unacked[queue]
        self.abandoned.append(queue)

    def open_parking(self) -> None:
        """The broker answers that the parking queues are there."""
        self.opens_parking = True
        self._opened()
        self.run()

    def _opened(self) -> None:
        self.pending += [ParkingQueueOpened(queue) for queue in self.opening]
        self.opening.clear()

    def _commit(self, effects: Effects) -> None:
        if effects.checkpoint:
            self.journal.clear()
        self.journal += [_stored(record) for record in effects.records]
        self.rows.update(effects.incarnations)
        sequences = (self.sequences | effects.sequences).items()
        self.sequences = {group: last for group, last in sequences if last is not None}
        self.results.update(effects.commands)
        for group, row in effects.owners.items():
            if row is None:
                self.owners.pop(group, None)
            else:
                self.owners[group] = row

    def _ack(self, message: Original) -> None:
        if message.queue < FIRST:
            del self.inbound_unacked[message.queue, message.tag]
        else:
            del self.unacked[message.queue][message.tag]

    def _store(self, order: ParkCopy) -> None:
        message, move = order.message, order.message.relocation
        assert move is not None
        name = self._name_of(message)
        self.moved.append(name)
        parked = Parked(
            name, message.group_id, move.copy, order.term, message.first_arrival, message.inbound,
            message.attempt, message.deadline_at_ms, message.closing, message.waits_since_ms,
        )  # fmt: skip
        self.ready[order.queue].append(parked)
        self.unconfirmed.append((order, parked))

    def _requeue(self, queue: int, parked: list[Parked]) -> None:
        for one in parked:
            one.flagged = True
        self.ready[queue].extendleft(reversed(parked))

    def _name_of(self, message: Original) -> str:
        if isinstance(message.content, str):
            self._name[message] = message.content
        return self._name.get(message) or message.fingerprint.rstrip(b"\0").decode()

    @property
    def _reads(self) -> list[ReadParkingQueue]:
        return self.__dict__.setdefault("reads", [])  # type: ignore[no-any-return]

    # -- going on --

    def run(self, ms: int = 0) -> list[str]:
        """Let the broker answer until nothing is under way, for at least so long; what was dispatched."""
        begun, until_ms = len(self.sent), self.now_ms + ms
        while True:
            self.rounds += 1
            events = self._answers()
            if events:
                self.step(*events, after_ms=0)
                continue
            deadline = self.lane.next_deadline_ms()
            if deadline is None or deadline > until_ms:
                break
            self.now_ms = max(self.now_ms, deadline)
            self.step(after_ms=0)
        self.now_ms = max(self.now_ms, until_ms)
        return [self._name_of(copy.message) for copy in self.sent[begun:]]

    def _answers(self) -> list[Event]:
        events: list[Event] = list(self.pending)
        self.pending.clear()
        if not self.hold_confirms:
            events += [RelocationConfirmed(order.message, order.term) for order, _ in self.unconfirmed]
            self.unconfirmed.clear()
        if not self.hold_reads:
            for order in self._reads:
                events.append(self._read(order))
            self._reads.clear()
        return events

    def _read(self, order: ReadParkingQueue) -> ParkingQueueRead:
        ready, messages = self.ready[order.queue], []
        while ready and len(messages) < order.limit:
            parked = ready.popleft()
            tag = self._read_tags[order.queue] = self._read_tags.get(order.queue, 0) + 1
            self.unacked[order.queue][tag] = parked
            message = Original(
                parked.inbound, tag, (self._lane_epoch, tag), parked.copy, parked.group, parked.name, 100,
                self.now_ms, parked.flagged, parked.closing, parked.deadline_at_ms,
            )  # fmt: skip
            message.queue, message.origin_arrival, message.term = order.queue, parked.root, parked.term
            message.attempt, message.waits_since_ms = parked.attempt, parked.waits_since_ms
            self._name[message] = parked.name
            messages.append(message)
        return ParkingQueueRead(order.queue, messages, len(messages) < order.limit, len(ready))

    def refuse(self) -> None:
        """The broker nacks the oldest unanswered publish, and keeps those behind it."""
        order, parked = self.unconfirmed.pop(0)
        self.ready[order.queue].remove(parked)
        self.step(RelocationRefused(order.message, order.term))

    # -- what comes in --

    def arrive(self, *names: str, inbound: int = 0, **fields: Any) -> list[Dispatched]:
        for offset, name in enumerate(names, 1):
            self.inbound_unacked[inbound, self._tags[inbound] + offset] = (name, fields)
        return super().arrive(*names, inbound=inbound, **fields)

    def settle_each(self, consumer: str, numbers: Iterable[int], group: str = "a") -> None:
        """One after the other, as they are handed over."""
        for number in numbers:
            self.settle(consumer, f"{group}{number}")
            self.run()

    def latest(self, name: str) -> Dispatched:
        return next(copy for copy in reversed(self.sent) if self._name_of(copy.message) == name)

    def handed(self) -> list[str]:
        """Names of all that was dispatched, in order."""
        return [self._name_of(copy.message) for copy in self.sent]

    def in_parking(self, queue: int = FIRST) -> list[str]:
        """What is in a parking queue: read and not acked, then ready."""
        read = self.unacked.get(queue, {}).values()
        return [parked.name for parked in [*read, *self.ready.get(queue, ())]]

    # -- leaders --

    def fail_over(
        self, *, forget: bool = False, older: list[Record] | None = None, lost: int = 0, ends: bool = True
    ) -> None:
        """The leader dies; the broker forgets the last `lost` unconfirmed copies; another one begins.
        Redis has forgotten everything (`forget`), or what it learnt after this `older` journal. Not `ends`:
        the redeliveries go on."""
        for order, parked in self.unconfirmed[len(self.unconfirmed) - lost :]:
            self.ready[order.queue].remove(parked)
        self.unconfirmed.clear()
        self.pending.clear()
        self._reads.clear()
        for queue, unacked in self.unacked.items():
            self._requeue(queue, list(unacked.values()))
            unacked.clear()
        self._read_tags.clear()
        self._lane_epoch += 1
        forgot = forget or older is not None
        snapshot = Snapshot(
            self._lane_epoch, complete=not forgot, broker_restarted=False,
            records=[] if forget else list(self.journal if older is None else older),
            owners={} if forget else dict(self.owners),
            operator_rows={} if forget else dict(self.flags),
            incarnations={} if forget else {n: row for n, row in self.rows.items() if row is not None},
            commands={} if forget else dict(self.results),
            parking_found=tuple(self.ready) if forgot else (),
            sequences={} if forget else dict(self.sequences),
        )  # fmt: skip
        self.lane = Lane(self.lane.state.options, snapshot, self.now_ms)
        before, self.inbound_unacked = self.inbound_unacked, {}
        self._take(self.lane.start(self.now_ms))
        self._tags = [0 for _ in self._tags]
        for (inbound, _), (name, fields) in sorted(before.items()):
            self._redeliver(inbound, name, fields)
        if ends:
            self.step(*(RedeliveriesEnded(index) for index in range(len(self._tags))))

    def _redeliver(self, inbound: int, name: str, fields: dict[str, Any]) -> None:
        self._tags[inbound] += 1
        tag = self._tags[inbound]
        self.inbound_unacked[inbound, tag] = (name, fields)
        group = None if name.startswith("-") else name.rstrip("0123456789").encode()
        message = Original(
            inbound, tag, (self._lane_epoch, tag), name.encode().ljust(16, b"\0"), group, object(), 100,
            self.now_ms, True,
        )  # fmt: skip
        for field, value in fields.items():
            setattr(message, field, value)
        self.step(MessagesArrived([message]))


def _stored(record: Record) -> Record:
    """What a leader reads of it: messages change after their commit."""
    if not isinstance(record, Dispatched):
        return record
    message = record.message
    return OpenEntry(
        message.queue, message.arrival, message.fingerprint, record.incarnation, record.seq, message.group_id,
        record.group_seq, record.epoch, record.attempt, record.first,
    )  # fmt: skip


def blocked(look_ahead: int = 10, *, confirmed: bool = True, **options: object) -> ParkingBench:
    """Consumer one is stuck with a1; two idles; the look-ahead is full of group a, and parked. Not
    `confirmed`: its moves are under way, and the broker does not answer for now."""
    bench = ParkingBench(look_ahead=look_ahead, **options)  # type: ignore[arg-type]
    bench.join("one", prefetch=1)
    bench.arrive("a1")
    bench.join("two")
    bench.hold_confirms = not confirmed
    bench.arrive(*(f"a{n}" for n in range(2, look_ahead + 1)))
    bench.run(BLOCKED_MS)
    return bench


def numbers(bench: ParkingBench, group: str = "a") -> list[int]:
    return [int(name[len(group) :]) for name in bench.handed() if name.startswith(group)]
