"""What happened in a run, seen from outside: every message's life, and the last events for people."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Container, Sequence
from typing import Any, Final, NamedTuple

from dispatcher.client import properties as amqp_properties
from dispatcher.client.copies import Copy
from dispatcher.core.bounds import COUNTER_SHIFT
from dispatcher.core.effects import Effects, Snapshot
from dispatcher.core.events import Event
from dispatcher.core.lane import Lane
from dispatcher.core.model import Original
from dispatcher.core.operations.events import BarrierMark
from dispatcher.sim.facts import StepFacts, Tag
from dispatcher.sim.life import Life
from dispatcher.sim.loop import Scheduler
from dispatcher.sim.queues import REROUTED, TARGET, Queue, Stored, is_parking_queue, keeps_originals
from dispatcher.sim.watcher import Violation, Watcher
from dispatcher.wire.protocol import LaneNames

#: What a report shows: more would be made for nothing, and freed at the end of every run.
EVENTS_KEPT: Final = 60
CONTROL_KEPT: Final = 500
_KNOWN: Final = ("type", "incarnation", "consumer", "protocol")


class ForgottenAck(NamedTuple):
    """An ack that the next leader of a quorum queue does not have."""

    message: Stored
    is_answered: bool  # so was a question after it: the dispatcher takes it for proven
    leaderships: int  # that there had been, when the message was taken for new, or else the ack forgotten


class RunHistory:
    """Observes the broker, the stores, the cores and the consumers; tells the watchers."""

    def __init__(self, scheduler: Scheduler, names: LaneNames, *, verbose: bool) -> None:
        self.scheduler = scheduler
        self.names = names
        self.watchers: Sequence[Watcher] = ()
        self._hooks: dict[str, list[Callable[..., None]]] = {}
        self.lives: dict[int, Life] = {}
        self.events: deque[tuple[Any, ...]] = deque(maxlen=None if verbose else EVENTS_KEPT)
        self.uid_of: dict[Tag, int] = {}
        self.fingerprints: dict[int, bytes] = {}  # by uid
        self.taken: set[str] = set()  # incarnations whose end is committed
        self.journalled: set[tuple[str, int]] = set()
        self.may_be_acked: set[int] = set()
        self.in_hand: dict[str, dict[int, int]] = {}  # incarnation → seq → uid
        self.control_read: deque[Stored] = deque(maxlen=CONTROL_KEPT)  # control messages that were acked
        self.leaderships = self._lane_epoch = 0
        self.leader = ""  # the process that was the last to read Redis as a new leader
        self.met: Counter[tuple[str, str]] = Counter()  # what happened how often, of things worth seeing
        self.complete = False  # what the present leader read from Redis is known to be everything
        self.doubt = False  # Redis lost writes, and no leader that knew them has written them back
        self.forgot_ms = 0  # when it last did
        self.lost_parked = False  # a kill lost copies on their way to parking queues, since a leader began
        self.forgotten: set[int] = set()  # messages whose ids are not in the window any more, perhaps (U-5)
        self.excused: set[int] = set()  # messages of which only the lost Redis knew that they had ended
        self.stops: Callable[[Life, str], bool] = lambda *_: False  # whether such a failure stops its group
        self._forgotten: dict[int, ForgottenAck] = {}  # by uid, until it is acked again
        self._moved = 0  # copies that operators' targets got
        self._commits: dict[bytes, deque[tuple[int, StepFacts]]] = {}
        self._markers: dict[tuple[str, int, int], int] = {}  # (incarnation, n, lane epoch) → its place
        self._unsettled: dict[int, Life] = {}
        self._late: dict[str, list[Life]] = {}  # messages settled by incarnations that had ended

    # -- telling --

    def _watchers(self, hook: str) -> list[Callable[..., None]]:
        """The hooks of the watchers that have one for this event: few watch for most events."""
        found = self._hooks.get(hook)
        if found is None:
            idle = getattr(Watcher, hook)
            watching = [watcher for watcher in self.watchers if getattr(type(watcher), hook) is not idle]
            found = self._hooks[hook] = [getattr(watcher, hook) for watcher in watching]
        return found

    def _tell(self, hook: str, *details: Any, **more: Any) -> None:
        for call in self._watchers(hook):
            call(*details, **more)

    def note(self, who: str, what: str, *details: Any) -> None:
        self.events.append((self.scheduler.now_ms, who, what, details))

    def violate(self, checker: str, text: str) -> None:
        self.scheduler.failures.append((checker, Violation(checker, text)))

    def all_over(self) -> bool:
        """Whether every message that the broker took is done with."""
        unsettled = self._unsettled
        while unsettled:
            uid, life = next(reversed(unsettled.items()))
            if not self.is_over(life):
                return False
            del unsettled[uid]
        return True

    def find_waiting(self, but: Container[int]) -> Life | None:
        """A message that the broker took and that is not done with; `but`: uids of others."""
        lives = self._unsettled.items()
        return next((life for uid, life in lives if uid not in but and not self.is_over(life)), None)

    @staticmethod
    def is_over(life: Life) -> bool:
        if life.twins > 1:
            return life.acked >= life.stored
        return life.over or not life.stored

    # -- faults --

    def struck(self, kind: str) -> None:
        """A fault of this kind has hit something."""
        self.met["struck", kind] += 1
        self._tell("struck", kind)

    # -- producers --

    def publishes(self, life: Life) -> None:
        known = self.lives.setdefault(life.uid, life)
        self._unsettled[known.uid] = known

    # -- the broker --

    def stored(self, queue: Queue, message: Stored) -> None:
        if message.uid:
            life = self.lives[message.uid]
            life.stored += 1
            life.last = message
            if not life.repeated or life.stored == 1:
                life.count_from(message)
            self._tell("stored", life)
        elif queue.name == self.names.control:
            self._control(message)
        elif queue.name == self.names.dead:
            self._dead(message)
        elif keeps_originals(self.names, queue.name):
            life = self._of_body(message.body)
            life.parked[message] = None
            life.was_parked = True
            life.handed += not is_parking_queue(self.names, queue.name)
            self.met["parked", queue.name] += 1
            self.note("broker", "parked", life.uid, queue.name)
        elif queue.name in (TARGET, REROUTED):
            life = self._of_body(message.body)
            self._moved += 1
            life.moved[message] = self._moved
            self.met["moved", queue.name] += 1
            self.note("broker", "moved", life.uid, queue.name)

    def _of_body(self, body: bytes) -> Life:
        return self.lives[int(body.rstrip(b"!"))]

    def _control(self, message: Stored) -> None:
        fields = json.loads(message.body.decode())
        kind, incarnation = fields["type"], fields["incarnation"]
        rest = {name: value for name, value in fields.items() if name not in _KNOWN}
        self.note(incarnation, kind, rest)
        if kind == "marker":
            self._markers.setdefault((incarnation, fields["n"], fields["lane_epoch"]), message.position)
        elif kind == "settle":
            held = self.in_hand.get(incarnation, {})
            seqs = [seq for first, last in fields["acked"] for seq in range(first, last + 1)]
            for seq, reason in ((failed["seq"], failed["reason"]) for failed in fields["failed"]):
                life = self.lives.get(held.get(seq, 0))
                if life is not None and self.stops(life, reason):
                    life.failed.setdefault((incarnation, seq), message.position)
                    life.came_back_ms = self.scheduler.now_ms
                else:
                    seqs.append(seq)
            for seq in seqs:
                uid = held.get(seq)
                if uid is not None and incarnation in self.taken:
                    self._late.setdefault(incarnation, []).append(self.lives[uid])
                elif uid is not None:
                    self.lives[uid].settled.setdefault(incarnation, message.position)

    def _dead(self, message: Stored) -> None:
        text = message.body.rstrip(b"!")
        if text.isdigit():
            life = self.lives[int(text)]
            life.buried += 1
            life.dead_reason = str(amqp_properties.read(message.properties)[1].get("x-dispatch-reason"))
            self.note("broker", "dead", life.uid, life.dead_reason)
            self._tell("buried", life)

    def confirmed(self, queue: Queue, message: Stored) -> None:
        if message.uid:
            self.lives[message.uid].confirmed = True

    def acked(self, queue: Queue, message: Stored) -> None:
        if message.uid:
            life = self.lives[message.uid]
            life.acked += 1
            self._forgotten.pop(life.uid, None)
            life.acked_places.add(message.position)
            life.fresh += not message.redelivered
            self.met["broker", "forgot an ack"] += life.acked > max(1, life.stored)
            self.note("broker", "acked", life.uid)
            self._tell("acked", life)
        elif keeps_originals(self.names, queue.name):
            life = self._of_body(message.body)
            life.parked.pop(message, None)
            self._forgotten.pop(life.uid, None)
            self.note("broker", "acked parked", life.uid, queue.name)
            self._tell("acked_parked", life)
        elif queue.name == self.names.control:
            self.control_read.append(message)

    def unacked(self, queue: Queue, message: Stored) -> None:
        """The next leader of a quorum queue does not have this ack."""
        self.met["broker", "did not replicate an ack"] += 1
        if message.uid:
            life = self.lives[message.uid]
            life.acked -= 1
            life.acked_places.discard(message.position)
            life.fresh -= not message.redelivered
            self._unsettled.setdefault(life.uid, life)
        elif keeps_originals(self.names, queue.name):
            self._of_body(message.body).parked[message] = None

    def ack_forgotten(self, queue: Queue, message: Stored, *, is_answered: bool) -> None:
        """A quorum queue has this message again. `is_answered`: the dispatcher took the ack for proven."""
        self.met["broker", "forgot a proven ack" if is_answered else "did not hear of an ack"] += 1
        if message.uid or keeps_originals(self.names, queue.name):
            life = self._of_body(message.body)
            if message.uid and life.acked >= life.stored:
                return  # another leader has acked it since
            self.note("broker", "forgot an ack", life.uid, queue.name, is_answered)
            self._forgotten[life.uid] = ForgottenAck(message, is_answered, self.leaderships)

    def _begin_again(self, uid: int) -> None:
        """A leader takes a message for new. That is excused if RabbitMQ has forgotten its ack, and the leader
        can't know that (docs/guarantees.md, "On a cluster"): from now on it is another message."""
        former, forgotten = self.lives[uid], self._forgotten.get(uid)
        if forgotten is None and former.is_behind_newer and former.over and former.last is not None:
            forgotten = ForgottenAck(former.last, False, self.leaderships)
        if forgotten is None or not self._is_excusable(former, forgotten):
            return
        message = forgotten.message
        self._forgotten[uid] = ForgottenAck(message, False, self.leaderships)
        self.met["broker", "gave a message twice"] += 1
        if former.twins > 1 or not former.over:  # the former one is to be handed over as well
            former.twins += former.twins == 1
            former.risks += 1
            former.again_in = self.leaderships
            return
        life = self.lives[uid] = former.again(message, is_parked=not message.uid)
        life.again_in = self.leaderships
        for held in self.in_hand.values():
            for seq in [seq for seq, holds in held.items() if holds == uid]:
                del held[seq]
        self.may_be_acked.discard(uid)
        self._unsettled[uid] = life
        self._tell("begins_again", life)

    def _is_excusable(self, life: Life, forgotten: ForgottenAck) -> bool:
        """The ack was proven. Or RabbitMQ has lost the order, once for each leader. Or the journal has the
        message twice since, and nobody can tell which one comes back after one more fail-over (G-4)."""
        is_twice = life.is_again and life.over and self.leaderships > forgotten.leaderships
        is_behind = forgotten.message.is_behind_newer and self.leaderships > life.again_in
        return forgotten.is_answered or is_behind or is_twice

    def lost(self, queue: Queue, messages: list[Stored]) -> None:
        """A kill lost these, which it may."""
        for message in messages:
            self.met["broker", "lost a message"] += 1
            if message.uid:
                life = self.lives[message.uid]
                life.stored -= 1
                life.lost = life.twins == 1 and not life.stored
                if life.last is not None and message.position == life.place:
                    life.count_from(life.last)
                self._unsettled.setdefault(life.uid, life)
                self.note("broker", "lost", life.uid)
            elif keeps_originals(self.names, queue.name):
                self._of_body(message.body).parked.pop(message, None)
                self.note("broker", "lost parked", message.body)
                self.lost_parked = True
            elif queue.name in (TARGET, REROUTED):
                self._of_body(message.body).moved.pop(message)
            elif queue.name == self.names.control:
                self._forget_settles(message)
            elif queue.name == self.names.dead and message.body.rstrip(b"!").isdigit():
                self.lives[int(message.body.rstrip(b"!"))].buried -= 1

    def recovered(self, queue: Queue) -> None:
        """A killed broker is back: it has parked copies again whose acks it has forgotten."""
        if keeps_originals(self.names, queue.name):
            for message in queue.ready:
                self._of_body(message.body).parked[message] = None

    def exchanged(self, gone: list[Stored], back: list[Stored]) -> None:
        """Another leader of a parking queue has acked other messages than the last one."""
        for message in gone:
            self._of_body(message.body).parked.pop(message, None)
            self.note("broker", "acked elsewhere", message.body)
        for message in back:
            self._of_body(message.body).parked[message] = None

    def nacked(self, queue: Queue, body: bytes) -> None:
        self.met["struck", "nack"] += 1
        self._tell("nacked", queue, body)

    def copy_lost(self, queue: Queue, body: bytes) -> None:
        self.met["struck", "lose_copy"] += 1
        self.note("broker", "lost a copy", body)

    def blocked(self) -> None:  # a client has published during an alarm
        self.met["struck", "alarm"] += 1

    def _forget_settles(self, message: Stored) -> None:
        for life in self.lives.values():
            if not message.deliveries:
                life.failed = {who: at for who, at in life.failed.items() if at != message.position}
            for incarnation, at in list(life.settled.items()):
                if at == message.position:
                    if message.deliveries:
                        life.unsure.add(incarnation)
                    self._reopen(life, incarnation)

    def _reopen(self, life: Life, incarnation: str) -> None:
        del life.settled[incarnation]
        self._unsettled[life.uid] = life
        self._tell("reopened", life)

    def expired(self, queue: Queue, message: Stored) -> None:
        if message.uid:
            self.lives[message.uid].expired = True
            self.met["broker", "dropped what expired"] += 1
            self.note("broker", "expired", message.uid)

    # -- operators and dispatchers --

    def asked(self, uuid: str) -> None:
        """An operator's command is in its queue."""
        self._tell("asked", uuid)

    def leading(self, lane: Lane) -> None:
        """A new leader has a core."""
        self._tell("leading", lane)

    def raised(self, lane_epoch: int) -> None:
        """Redis has taken a new leader."""
        self._tell("led", lane_epoch)

    def led(self, process: str, snapshot: Snapshot) -> None:
        """A new leader has raised the epoch and read everything."""
        self.leaderships += 1
        self.leader, self._lane_epoch = process, snapshot.lane_epoch
        self.note(process, "leads", snapshot.lane_epoch, "complete" if snapshot.complete else "incomplete")
        self.met["leads", "trusts Redis" if snapshot.complete else "asks the consumers"] += 1
        self.complete = snapshot.complete
        self._risk_twins()
        self._tell("read", snapshot)
        self.lost_parked = False
        if self.doubt:
            self.excused.update(self.lives)
            self.taken = {row.uuid for row in snapshot.incarnations.values() if row.state == "taken"}
            for incarnation in self._late.keys() - self.taken:  # Redis forgot that it has ended
                for life in self._late.pop(incarnation):
                    life.unsure.add(incarnation)
            self.doubt = False

    def redis_forgets(self) -> None:
        """Redis loses writes. A leader then knows only those ids of the window that it entered itself."""
        self.doubt, self.forgot_ms = True, self.scheduler.now_ms
        for life in self.lives.values():
            if life.repeated and not (life.starts and life.starts[0][1] >> COUNTER_SHIFT == self._lane_epoch):
                self.forgotten.add(life.uid)

    def _risk_twins(self) -> None:
        """The first one's ack may not be on disk: the second may be taken for it."""
        for life in self.lives.values():
            life.risks += life.twins > 1 and (len(life.starts) > 0 or life.was_parked)

    def killed(self) -> None:
        """The broker was killed: it may have forgotten acks."""
        for life in self.lives.values():
            life.risks += life.twins > 1

    def arrived(self, leader: str, messages: list[Original]) -> None:
        for message in messages:
            if type(message) is not BarrierMark:
                uid = int(message.content.body.rstrip(b"!"))
                self.uid_of[leader, message.queue, message.tag] = uid
                self.fingerprints[uid] = message.fingerprint

    def decided(self, process: str, events: list[Event], effects: Effects) -> None:
        if events or effects.actions:
            self.events.append((self.scheduler.now_ms, process, "step", (events, effects)))
        self._tell("decided", process, events, effects)

    def will_commit(self, leader: bytes, ordinal: int, facts: StepFacts) -> None:
        self._commits.setdefault(leader, deque()).append((ordinal, facts))

    def committed(self, leader: bytes, ordinal: int) -> None:
        """Redis has carried out this commit (and so all before it)."""
        lane_epoch = int(leader.partition(b" ")[0])
        self._tell("committed", lane_epoch)
        waiting = self._commits.get(leader)
        while waiting and waiting[0][0] <= ordinal:
            facts = waiting.popleft()[1]
            self.journalled.update(facts.journalled)
            for uid in (*facts.given_up, *(hand_over.uid for hand_over in facts.dispatched)):
                self._begin_again(uid)
            for uid in facts.given_up:
                self.lives[uid].given_up = True
            for uid in facts.dropped:
                self.lives[uid].purges += 1
            for uid, uuid in facts.left:
                self._left(self.lives[uid], uuid)
            for incarnation, n in facts.taken:
                self._take(incarnation, n, lane_epoch)
            self._tell_facts(facts)
            self.may_be_acked.update(self.uid_of[tag] for tag in facts.acked if tag in self.uid_of)

    def _left(self, life: Life, uuid: str) -> None:
        life.purges += 1
        self.note("redis", "left", life.uid, uuid)
        self._tell("left", life, uuid)

    def _tell_facts(self, facts: StepFacts) -> None:
        for key, row in facts.flags.items():
            self._tell("flagged", key, row)
        for uuid, result in facts.results.items():  # messages behind purged ones may go in the same commit
            self._tell("operated", uuid, result)
        for hand_over in facts.dispatched:
            self._tell("dispatched", self.lives[hand_over.uid], hand_over)

    def _take(self, incarnation: str, n: int, lane_epoch: int) -> None:
        """Its settles behind the marker that ended it do not count."""
        if incarnation in self.taken:
            return
        self.note("redis", "taken", incarnation)
        self.taken.add(incarnation)
        marked = (incarnation, n, lane_epoch) in self._markers
        self._tell("taken", incarnation, marked=marked)
        last = self._markers.get((incarnation, n, lane_epoch))
        if last is None:  # it left: nothing was in its hands
            return
        for uid in set(self.in_hand.get(incarnation, {}).values()):
            life = self.lives[uid]
            life.came_back_ms = self.scheduler.now_ms
            if life.settled.get(incarnation, 0) > last:
                self._late.setdefault(incarnation, []).append(life)
                self._reopen(life, incarnation)

    # -- consumers --

    def _life(self, copy: Copy) -> Life:
        return self._of_body(copy.body)

    def handed(self, incarnation: str, copy: Copy) -> None:
        life = self._life(copy)
        self.note(incarnation, "got", life.uid, copy.seq, copy.epoch, copy.group_seq, copy.attempt)
        self.in_hand.setdefault(incarnation, {})[copy.seq] = life.uid
        if incarnation in self.taken:
            return  # what its socket still held: it may run, and can't settle any more, unless Redis forgets
        self._tell("handed", life, incarnation, copy)
        life.starts.append((incarnation, copy.seq, copy.attempt))

    def begun(self, incarnation: str, copy: Copy) -> Life:
        """The life of the message: it may kill the consumer that works on it, or hang."""
        life = self._life(copy)
        if incarnation not in self.taken:
            self._tell("begun", life, incarnation, copy)
        return life

    def done(self, incarnation: str, copy: Copy, *, failed: bool) -> None:
        life = self._life(copy)
        life.done_by[incarnation] = copy.seq
        self.note(incarnation, "failed" if failed else "done", life.uid)

    def abandoned(self, incarnation: str, copy: Copy) -> None:
        self.note(incarnation, "lost", self._life(copy).uid)

    # -- applications that only read a queue --

    def application_begins(self, reader: str, body: bytes) -> None:
        life = self._of_body(body)
        self.note(reader, "reads", life.uid)
        self._tell("application_begins", life, reader)

    def application_has_done(self, reader: str, body: bytes) -> None:
        """The application is about to ack it."""
        life = self._of_body(body)
        life.settled.setdefault(reader, 1)
        life.done_by[reader] = 0
