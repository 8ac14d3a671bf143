"""Whatever the network does, no number is handed over twice and no group is out of order.

A model dispatcher that keeps the contract stands behind a network that loses and repeats copies, cuts
connections in any moment and loses confirms. When the faults stop, everything must get done.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dispatcher.client.copies import Message, Numbers
from dispatcher.client.member import ONLINE
from dispatcher.client.membership import LaneMembership
from dispatcher.client.orders import Lose, OpenQueue, Publish
from dispatcher.client.tap import TappedDelivery
from dispatcher.wire.protocol import Heartbeat, Join, Leave, Settle
from tests.client.copies_on_wire import copy_properties, notice_properties

GROUPS = [b"a", b"\xff"]
PREFETCH = 8


@dataclass(eq=False)
class Original:
    group: bytes | None
    index: int  # in its group
    seq: int = 0
    numbers: tuple[int, int] = (0, 0)  # epoch, group-seq
    state: str = "held"  # in flight, settled


@dataclass
class ModelDispatcher:
    """Hands out originals in order, resends what a join misses, takes back on demand."""

    held: dict[bytes | None, deque[Original]] = field(default_factory=dict)
    in_flight: dict[int, Original] = field(default_factory=dict)
    epochs: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    incarnation: str = ""
    retired: set[str] = field(default_factory=set)
    queue: str = ""
    n: int = 0
    next_seq: int = 1
    epoch: int = 0
    leaving: bool = False

    def dispatch(self, group: bytes | None) -> Original | None:
        waiting = self.held.get(group)
        if not waiting or not self.incarnation or self.leaving or len(self.in_flight) >= PREFETCH:
            return None
        original = waiting.popleft()
        original.seq, self.next_seq = self.next_seq, self.next_seq + 1
        if group is not None:
            if group not in self.epochs:
                self.epoch += 1
                self.epochs[group] = (self.epoch, 0)
            epoch, last = self.epochs[group]
            self.epochs[group] = original.numbers = (epoch, last + 1)
        original.state = "in flight"
        self.in_flight[original.seq] = original
        return original

    def take_back(self) -> None:
        for original in sorted(self.in_flight.values(), key=lambda o: o.seq, reverse=True):
            original.state = "held"
            self.held[original.group].appendleft(original)
        self.in_flight.clear()
        self.epochs.clear()
        self.retired.add(self.incarnation)
        self.incarnation, self.queue, self.n, self.leaving = "", "", 0, False

    def settle(self, settle: Settle) -> None:
        if settle.incarnation != self.incarnation:
            return
        seqs = [seq for first, last in settle.acked for seq in range(first, last + 1)]
        for seq in seqs + [failed.seq for failed in settle.failed]:
            if original := self.in_flight.pop(seq, None):
                original.state = "settled"


class Faults(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        uuids = count(1)
        self.dispatcher = ModelDispatcher()
        self.membership: LaneMembership[Message] = LaneMembership(
            "c1", PREFETCH, make_message=self.make_message, new_incarnation=lambda: f"uuid-{next(uuids)}",
            offline_limit_ms=30_000, now_ms=0,
        )  # fmt: skip
        self.queues = count(1)
        self.originals: list[Original] = []
        self.to_consumer: deque[tuple[str, TappedDelivery]] = deque()  # (queue, delivery)
        self.to_dispatcher: deque[Any] = deque()
        self.unconfirmed: list[tuple[int, Any]] = []
        self.in_hand: list[Message] = []
        self.handed: set[tuple[str, int]] = set()
        self.latest: dict[tuple[str, bytes], int] = {}
        self.connected = False
        self.queue = ""

    def make_message(self, numbers: Numbers, properties: bytes, body: bytes) -> Message:
        return Message(numbers, properties, body, self.settled)

    def settled(self, message: Message, reason: str | None, attempts: int) -> bool:
        return self.membership.settle(message, reason, attempts, self.now_ms)

    @initialize()
    def it_joins_and_has_work(self) -> None:
        self.step()
        self.queue_opens()
        self.quiet_turn()
        for group in (None, *GROUPS):
            self.producer_sends(group, 6)

    # --- the client's side ---

    def step(self) -> None:
        for order in self.membership.poll(self.now_ms):
            match order:
                case OpenQueue():
                    self.opening = True
                case Publish(token, message):
                    self.to_dispatcher.append(message)
                    self.unconfirmed.append((token, message))
                case Lose(messages):
                    assert all(message.lost for message in messages)
                    self.in_hand = [message for message in self.in_hand if message not in messages]

    opening = False

    @precondition(lambda self: self.opening)
    @rule(succeeds=st.sampled_from([True, True, False]))
    def opening_ends(self, succeeds: bool) -> None:
        if succeeds:
            self.queue_opens()
        else:
            self.cut(0)

    def queue_opens(self) -> None:
        self.opening = False
        self.connected = True
        self.queue = f"q{next(self.queues)}"
        self.membership.member.queue_opened(self.queue, self.now_ms)
        self.step()

    @precondition(lambda self: self.unconfirmed)
    @rule()
    def broker_confirms(self) -> None:
        token, _ = self.unconfirmed.pop(0)
        self.membership.member.confirmed(token)
        self.step()

    @precondition(lambda self: self.in_hand)
    @rule(data=st.data(), number=st.integers(1, 6), fails=st.booleans())
    def application_settles(self, data: st.DataObject, number: int, fails: bool) -> None:
        for _ in range(min(number, len(self.in_hand))):
            message = data.draw(st.sampled_from(self.in_hand))
            self.in_hand.remove(message)
            assert message.settle("bad" if fails else None)
        self.step()

    @rule(after_ms=st.sampled_from([1, 5, 1_000, None]))
    def time_passes(self, after_ms: int | None = None) -> None:
        """None: to the next deadline."""
        if after_ms is None:
            self.now_ms = max(self.now_ms, self.membership.next_deadline_ms() or 0)
        else:
            self.now_ms += after_ms
        self.step()

    # --- the dispatcher's side ---

    @rule(group=st.sampled_from([None, *GROUPS]), number=st.integers(1, 4))
    def producer_sends(self, group: bytes | None, number: int) -> None:
        waiting = self.dispatcher.held.setdefault(group, deque())
        for _ in range(number):
            index = sum(original.group == group for original in self.originals)
            self.originals.append(Original(group, index))
            waiting.append(self.originals[-1])

    @rule(
        group=st.sampled_from([None, *GROUPS]),
        fates=st.lists(st.sampled_from(["arrives", "arrives", "arrives", "is lost"]), min_size=1, max_size=5),
    )
    def dispatcher_dispatches(self, group: bytes | None, fates: list[str]) -> None:
        for fate in fates:
            original = self.dispatcher.dispatch(group)
            if original and fate == "arrives":
                self.send_copy(original)

    @precondition(lambda self: self.to_dispatcher)
    @rule(number=st.integers(1, 4))
    def dispatcher_reads(self, number: int) -> None:
        for _ in range(min(number, len(self.to_dispatcher))):
            self.read(self.to_dispatcher.popleft())

    def read(self, message: Any) -> None:
        dispatcher = self.dispatcher
        match message:
            case Join():
                self.answer(message)
            case Settle():
                dispatcher.settle(message)
            case Leave() if message.incarnation == dispatcher.incarnation:
                dispatcher.leaving = True
            case Heartbeat() if message.incarnation in dispatcher.retired:
                self.send_notice("taken", message.queue, message.incarnation, 0)

    def answer(self, join: Join) -> None:
        dispatcher = self.dispatcher
        if dispatcher.incarnation not in ("", join.incarnation) and dispatcher.queue != self.queue:
            dispatcher.take_back()  # a ping to the present one came back
        if join.incarnation in dispatcher.retired:
            self.send_notice("taken", join.queue, join.incarnation, join.n)
        elif dispatcher.incarnation not in ("", join.incarnation):
            self.send_notice("wait", join.queue, join.incarnation, join.n)
        elif join.n > dispatcher.n:
            dispatcher.incarnation, dispatcher.queue, dispatcher.n = join.incarnation, join.queue, join.n
            self.send_notice("welcome", join.queue, join.incarnation, join.n)
            in_hand = {entry.seq for entry in join.in_hand}
            for seq, original in dispatcher.in_flight.items():
                if seq not in in_hand:
                    self.send_copy(original)
        elif join.n == dispatcher.n:
            self.send_notice("welcome", join.queue, join.incarnation, join.n)

    @precondition(lambda self: self.dispatcher.incarnation)
    @rule(notice=st.sampled_from(["taken", "rejoin", "rejoin"]))
    def dispatcher_says(self, notice: str) -> None:
        queue, incarnation, n = self.dispatcher.queue, self.dispatcher.incarnation, self.dispatcher.n
        if notice == "taken":
            self.dispatcher.take_back()
        self.send_notice(notice, queue, incarnation, n)

    def send_copy(self, original: Original) -> None:
        epoch, group_seq = original.numbers
        raw = copy_properties(original.seq, original.group, group_seq=group_seq, epoch=epoch)
        body = str(self.originals.index(original)).encode()
        self.send(self.dispatcher.queue, TappedDelivery(b"", raw, body))

    def send_notice(self, kind: str, queue: str, incarnation: str, n: int) -> None:
        raw, body = notice_properties(kind, incarnation=incarnation, n=n)
        self.send(queue, TappedDelivery(b"", raw, body))

    def send(self, queue: str, delivery: TappedDelivery) -> None:
        if queue == self.queue and self.connected:
            self.to_consumer.append((queue, delivery))

    # --- the network ---

    @precondition(lambda self: self.to_consumer)
    @rule(number=st.integers(1, 20))
    def copies_arrive(self, number: int) -> None:
        for _ in range(min(number, len(self.to_consumer))):
            queue, delivery = self.to_consumer.popleft()
            if queue == self.queue and self.connected:
                self.deliver(delivery)
        self.step()

    def deliver(self, delivery: TappedDelivery) -> None:
        before = self.membership.member.incarnation
        for message in self.membership.delivered(delivery, self.now_ms):
            self.receive(before, message)

    def receive(self, before: str, message: Message) -> None:
        assert (before, message.seq) not in self.handed, "handed over twice"
        self.handed.add((before, message.seq))
        original = self.originals[int(message.body)]
        if original.group is not None:
            latest = self.latest.get((before, original.group), -1)
            assert original.index > latest, "an earlier message of the group after a later one"
            between = [
                o for o in self.originals if o.group == original.group and latest < o.index < original.index
            ]
            assert all(o.state == "settled" for o in between), "a message of the group was left out"
            self.latest[before, original.group] = original.index
        self.in_hand.append(message)

    @precondition(lambda self: self.dispatcher.in_flight)
    @rule(data=st.data())
    def a_copy_is_repeated(self, data: st.DataObject) -> None:
        self.send_copy(data.draw(st.sampled_from(list(self.dispatcher.in_flight.values()))))

    @precondition(lambda self: self.connected or self.opening)
    @rule(read=st.integers(0, 10))
    def cut(self, read: int) -> None:
        """The connection is lost; the broker has read only the first `read` unconfirmed messages."""
        lost = [message for _, message in self.unconfirmed][read:]
        kept = [message for message in self.to_dispatcher if not any(message is one for one in lost)]
        self.to_dispatcher = deque(kept)
        self.unconfirmed.clear()
        self.to_consumer.clear()
        self.connected = self.opening = False
        self.membership.member.connection_lost("cut", self.now_ms)
        self.step()

    # --- promises ---

    @invariant()
    def the_client_knows_what_is_in_hand(self) -> None:
        assert set(self.membership.member.in_hand.values()) == set(self.in_hand)

    def teardown(self) -> None:
        """The faults are over: everything gets settled."""
        for _ in range(300):
            if all(original.state == "settled" for original in self.originals):
                return
            for group in (*GROUPS, None):
                self.dispatcher_dispatches(group, ["arrives"] * PREFETCH)
            self.quiet_turn()
            for message in list(self.in_hand):
                self.in_hand.remove(message)
                message.settle()
            if self.connected and self.membership.member.standing in ONLINE and not self.to_consumer:
                for original in list(self.dispatcher.in_flight.values()):
                    self.send_copy(original)  # a ping's return or a heartbeat would find what is missing
        raise AssertionError(f"not settled: {[o for o in self.originals if o.state != 'settled']}")

    @rule()
    def quiet_turn(self) -> None:
        """Everything that is on its way arrives."""
        self.time_passes()
        if self.opening:
            self.queue_opens()
        self.dispatcher_reads(len(self.to_dispatcher))
        while self.unconfirmed:
            self.broker_confirms()
        if self.dispatcher.leaving and not self.dispatcher.in_flight:
            self.dispatcher_says("taken")
        self.copies_arrive(len(self.to_consumer))


TestFaults = Faults.TestCase
TestFaults.settings = settings(max_examples=300, stateful_step_count=100, deadline=None)
