"""One lane with everything around it, in memory: broker, journal, consumers, and a dispatcher that may die.

A dispatcher's step is decided, committed, performed; it may die between any two of these or within the last.
"""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from dispatcher.core.effects import Effects, Snapshot
from dispatcher.core.events import (
    AcksProven,
    CommandReceived,
    CopiesConfirmed,
    DeadLetterConfirmed,
    Event,
    MessagesArrived,
    PingRouted,
    QueueReturned,
    RedeliveriesEnded,
)
from dispatcher.core.lane import Lane
from dispatcher.core.model import Original
from dispatcher.core.options import LaneOptions, policy
from dispatcher.core.orders import (
    AckInbound,
    Action,
    DeadLetter,
    PublishMarker,
    Reply,
    SendCopy,
    SendNotice,
    SetWindow,
)
from dispatcher.core.records import Dispatched, OpenEntry, Record
from dispatcher.core.tables import IncarnationRow, OwnerRow
from dispatcher.wire.protocol import TYPE_PING, Leave, Marker, Settle
from tests.core.broker import Broker, Copy, InboundQueue, PublishedMessage
from tests.core.member import Member
from tests.core.slow_lane import SlowlyResetting
from tests.core.truth import Truth

START_MS = 1_700_000_000_000


@dataclass(slots=True)
class Store:
    """What Redis holds of the lane."""

    lane_epoch: int = 0
    complete: bool = True
    records: list[Record] = field(default_factory=list)
    owners: dict[bytes, OwnerRow] = field(default_factory=dict)
    incarnations: dict[int, IncarnationRow] = field(default_factory=dict)
    commands: dict[str, dict[str, Any]] = field(default_factory=dict)
    operator_rows: dict[bytes, dict[str, Any]] = field(default_factory=dict)

    def copy(self) -> Store:
        return Store(
            self.lane_epoch, self.complete, list(self.records), dict(self.owners), dict(self.incarnations),
            dict(self.commands), dict(self.operator_rows),
        )  # fmt: skip

    def apply(self, effects: Effects, records: list[Record]) -> None:
        if effects.checkpoint:
            self.records.clear()
        self.records += records
        for name in ("owners", "incarnations", "operator_rows"):
            table = getattr(self, name)
            for key, row in getattr(effects, name).items():
                if row is None:
                    table.pop(key, None)
                else:
                    table[key] = row
        self.commands |= effects.commands


@dataclass(slots=True)
class Step:
    """One step of the dispatcher on its way."""

    effects: Effects
    records: list[Record]  # as Redis will hold them: encoded when the commit is sent
    control: int  # control messages read up to here


def world(policy_name: str = "exclusive", *, weights: tuple[int, ...] = (1,), **options: Any) -> World:
    """A world whose dispatcher has just begun to lead."""
    top_up = options.pop("top_up", False)
    inbounds = tuple((f"in{index}", weight) for index, weight in enumerate(weights))
    lane_options = LaneOptions(policy=policy(policy_name, top_up=top_up), inbounds=inbounds, **options)
    return World(lane_options)


class World:
    """See the module."""

    def __init__(self, options: LaneOptions) -> None:
        self.options = options
        self.now_ms = START_MS
        self.broker = Broker([InboundQueue() for _ in options.inbounds])
        self.store = Store()
        self.members: list[Member] = []  # every incarnation that ever was
        self.originals: list[PublishedMessage] = []
        self.truth = Truth(self)
        self.broker_restarted = True  # the witness has never been laid down
        self.gaps = 0
        self.commands = 0
        self.replies: list[Reply] = []
        self.lane: Lane | None = None
        self.take_over()

    # -- producers and consumers --

    def publish(
        self, group: str | None = None, *, inbound: int = 0, count: int = 1, **more: Any
    ) -> PublishedMessage:
        """Publish messages; returns the last. `body` makes two of them equal in every byte."""
        body = more.pop("body", None)
        for _ in range(count):
            number = len(self.originals) + 1
            identity = f"{group} {number if body is None else body}".encode()
            fingerprint = hashlib.blake2b(identity, digest_size=16).digest()
            group_id = group.encode() if group is not None else None
            original = PublishedMessage(number, inbound, group_id, fingerprint, **more)
            self.originals.append(original)
            self.broker.inbounds[inbound].originals.append(original)
        return original

    def join(self, name: str, prefetch: int = 10) -> Member:
        """A new incarnation of this consumer connects."""
        life = sum(member.name == name for member in self.members) + 1
        member = Member(self, name, life, prefetch)
        self.members.append(member)
        member.connect()
        return member

    def publish_control(self, member: Member, message: Any) -> None:
        self.broker.control.append(message)
        if isinstance(message, Settle):
            self.truth.settled(member, message, len(self.broker.control))
        elif isinstance(message, Leave):
            member.leaving = True

    # -- the dispatcher --

    def take_over(self) -> None:
        """A new leader reads what was committed."""
        store = self.store
        store.lane_epoch = max(store.lane_epoch + 1, self.now_ms // 1000)
        self.events: list[Event] = []
        self.steps: deque[Step] = deque()  # decided
        self.committed: deque[Step] = deque()
        self.wire: deque[tuple[int, int]] = deque()  # acks sent and not processed
        self.unproven = [0] * len(self.broker.inbounds)
        snapshot = Snapshot(
            store.lane_epoch, store.complete, self.broker_restarted, list(store.records), dict(store.owners),
            dict(store.incarnations), dict(store.commands), dict(store.operator_rows),
        )  # fmt: skip
        self.truth.taken_over()
        self.lane = SlowlyResetting(self.options, snapshot, self.now_ms)
        self._decided(self.lane.start(self.now_ms), 0)

    def crash(self, performed: int = 0) -> None:
        """The dispatcher dies. Of the oldest committed step it has done the first `performed` actions."""
        if self.committed:
            self._perform_actions(self.committed[0].effects.actions[:performed])
        self.process_acks(len(self.wire) // 2)
        self.lane = None
        self.broker.connection_lost()

    def fail_over(self, performed: int = 0) -> None:
        self.crash(performed)
        self.take_over()

    def restart_broker(self, *lost_acks: int) -> None:
        """RabbitMQ is killed and comes back; the dispatcher recovers, consumers are all disconnected."""
        self.lane = None
        self.process_acks(len(self.wire))
        counts = list(lost_acks) or [0] * len(self.broker.inbounds)
        self.broker.restart(counts)
        for member in self.members:
            member.disconnect()
        self.broker_restarted = True
        self.take_over()

    def forget(self, older: Store | None = None) -> None:
        """Redis is empty, or back with what it held earlier; the dispatcher must be dead."""
        assert self.lane is None
        self.now_ms += 10_000
        self.truth.redis_forgets()
        for inbound in self.broker.inbounds:  # acks are on disk by now: Redis and RabbitMQ never both forget
            inbound.acked.clear()
        self.store = older.copy() if older is not None else Store()
        self.store.complete = False

    def step(self, *events: Event) -> Effects:
        """Decide once, with what came in."""
        assert self.lane is not None
        given = [*self.events, *events]
        self.events = []
        self.truth.took_in(given)
        effects = self.lane.step(given, self.now_ms)
        self._decided(effects, self.broker.control_read)
        if all(inbound.recovery is None for inbound in self.lane.state.inbounds):
            self.broker_restarted = False
        self.truth.check()
        return effects

    def _decided(self, effects: Effects, control: int) -> None:
        records = [_stored(record) for record in effects.records]
        self.truth.decided(effects, records)
        self.steps.append(Step(effects, records, control))

    def checkpoint(self) -> None:
        assert self.lane is not None
        self._decided(self.lane.checkpoint(), 0)  # what was read and not stepped is not in it

    def commit(self) -> bool:
        """Redis applies the oldest decided step."""
        if not self.steps:
            return False
        step = self.steps.popleft()
        self.store.apply(step.effects, step.records)
        self.truth.committed(step.records, step.control)
        self.committed.append(step)
        return True

    def perform(self) -> bool:
        """Carry out the oldest committed step."""
        if not self.committed:
            return False
        step = self.committed.popleft()
        self._perform_actions(step.effects.actions)
        self.broker.control_acked = max(self.broker.control_acked, step.control)
        assert self.lane is not None
        if not self.store.complete and self.lane.is_complete():
            self.store.complete = True
        return True

    # -- what comes in --

    def deliver(self, inbound: int, count: int = 1_000_000) -> None:
        """The broker delivers."""
        arrived = []
        queue = self.broker.inbounds[inbound]
        if queue.window is None:  # else the queue itself knows how much goes
            count = min(count, self.options.look_ahead - len(queue.delivered))
        for _ in range(count):
            delivery = queue.deliver()
            if delivery is None:
                break
            arrived.append(self._message(inbound, *delivery))
        if arrived:
            self.events.append(MessagesArrived(arrived))

    def _message(self, inbound: int, tag: int, original: PublishedMessage) -> Original:
        lifetime_ms = original.lifetime_ms
        message = Original(
            inbound, tag, (self.store.lane_epoch, tag), original.fingerprint, original.group, original,
            original.size, self.now_ms, original.flagged, original.closing,
            None if lifetime_ms is None else self.now_ms + lifetime_ms, original.refusal, original.cost,
        )  # fmt: skip
        return message

    def end_redeliveries(self) -> None:
        """Passive declares say that nothing is ready."""
        for index, inbound in enumerate(self.broker.inbounds):
            assert self.lane is not None
            if self.lane.state.inbounds[index].recovery is not None and not inbound.ready():
                self.events.append(RedeliveriesEnded(index))

    def read_control(self, count: int = 1_000_000) -> None:
        self.events += self.broker.read_control(count)

    def process_acks(self, count: int = 1_000_000) -> None:
        """The broker processes acks that were sent."""
        for _ in range(min(count, len(self.wire))):
            inbound, tag = self.wire.popleft()
            self.truth.acked(self.broker.inbounds[inbound].ack(tag))
            self.unproven[inbound] += 1

    def prove_acks(self) -> None:
        for index, count in enumerate(self.unproven):
            if count:
                self.events.append(AcksProven(index, count))
        self.unproven = [0] * len(self.unproven)

    def order(self, command: str = "rebalance", **arguments: Any) -> None:
        """An operator's command."""
        self.commands += 1
        self.events.append(CommandReceived("", f"command-{self.commands}", command, arguments))

    def command(self, **arguments: Any) -> Reply:
        """The same, through to its answer."""
        self.order(**arguments)
        self.run()
        return self.replies[-1]

    # -- actions --

    def _perform_actions(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Dispatched():
                    self._send(action)
                case SendCopy():
                    self._send(action.copy)
                case SendNotice():
                    self._notify(action)
                case AckInbound():
                    self.wire += [(message.inbound, message.tag) for message in action.messages]
                case DeadLetter():
                    self.truth.dead_lettered(action.message.content, action.reason)
                    self.events.append(DeadLetterConfirmed(action.message))
                case PublishMarker():
                    fields = {"incarnation": action.incarnation, "n": action.n}
                    self.broker.control.append(Marker(lane_epoch=self.store.lane_epoch, **fields))
                case SetWindow():
                    self.broker.inbounds[action.inbound].set_window(action.originals)
                case Reply():
                    self.replies.append(action)

    def _send(self, sent: Dispatched) -> None:
        original = sent.message.content
        if original is not None and not self.broker.to_consumer(sent.queue, Copy(sent, original)):
            self.events.append(QueueReturned(sent.queue))
        self.events.append(CopiesConfirmed(1, sent.message.size))

    def _notify(self, notice: SendNotice) -> None:
        if not self.broker.to_consumer(notice.queue, notice):
            self.events.append(QueueReturned(notice.queue))
        if notice.type == TYPE_PING:
            self.events.append(PingRouted(notice.queue))

    # -- everything at once --

    def run(self) -> World:
        """Do what is due now, until nothing is; consumers receive, but settle nothing."""
        for _ in range(200):
            before = self._progress()
            self.read_control()
            for index in range(len(self.broker.inbounds)):
                self.deliver(index)
            self.end_redeliveries()
            self.step()
            while self.commit():
                pass
            while self.perform():
                pass
            self.process_acks()
            self.prove_acks()
            for member in list(self.members):
                member.receive()
            if before == self._progress() and not self.events:
                return self
        raise AssertionError("the world does not come to rest")

    def _progress(self) -> tuple[int, ...]:
        broker = self.broker
        return (
            len(broker.control), broker.control_read, len(broker.dead), self.truth.hand_overs,
            *(queue.last_tag for queue in broker.inbounds), *(len(queue.acked) for queue in broker.inbounds),
        )  # fmt: skip

    def wait(self, ms: int) -> World:
        """Let time pass, step by step with the dispatcher's deadlines, and run."""
        end_ms = self.now_ms + ms
        self.run()
        while self.now_ms < end_ms:
            assert self.lane is not None
            deadline_ms = self.lane.next_deadline_ms()
            due_ms = end_ms if deadline_ms is None else max(self.now_ms + 1, deadline_ms)
            self.now_ms = min(end_ms, due_ms)
            self.run()
        return self

    # -- for the checks --

    def handed_over(self, member: Member, copy: Copy) -> None:
        self.truth.handed_over(member, copy)

    def check_same_copy(self, member: Member, first: Copy, again: Copy) -> None:
        self.truth.check_same_copy(member, first, again)


def _stored(record: Record) -> Record:
    """A record as a new leader reads it."""
    if not isinstance(record, Dispatched):
        return record
    message = record.message
    return OpenEntry(
        message.inbound, message.arrival, message.fingerprint, record.incarnation, record.seq,
        message.group_id, record.group_seq, record.epoch, record.attempt, record.first,
    )  # fmt: skip
