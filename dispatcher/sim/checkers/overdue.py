"""C-8, C-9: a message that is not settled within `ack_timeout` is reported, and its consumer evicted where
the lane asks for that, neither early nor never; and an evicted consumer gets nothing more.

The times are the world's: when a leader read Redis, handed something over, asked what RabbitMQ has for it and
had that back, heard that RabbitMQ takes publishes again. What became of a message is in its consumer's words.
That what an evicted one had goes on in order is for others to see.
"""

from __future__ import annotations

from dispatcher.core.effects import Effects, Snapshot
from dispatcher.core.events import CopyRefused, Event, PublishersBlocked
from dispatcher.core.membership.ack_timeout import ARRIVALS_MAX, EVERYBODY
from dispatcher.core.orders import LogEvent, PublishMarker, SendCopy
from dispatcher.core.records import Dispatched, IncarnationEnded
from dispatcher.core.tables import IncarnationRow
from dispatcher.settings import OverdueAct
from dispatcher.sim.checkers.checker import Checker
from dispatcher.sim.facts import DispatchFact
from dispatcher.sim.life import Life
from dispatcher.sim.world import World
from dispatcher.wire.protocol import Marker, Settle

#: A dispatcher's clock and the world's may round differently.
_ROUNDING_MS = 1


class _Leader:
    """What one leader was told, handed over and said since it read Redis."""

    def __init__(self, snapshot: Snapshot, now_ms: int) -> None:
        self.patient_from_ms = now_ms  # since when consumers could be heard
        self.blocked = False  # RabbitMQ takes no publishes
        self.complete = snapshot.complete  # else consumers may say that they have something
        self.rows: dict[int, IncarnationRow] = {}
        self.uuids: dict[str, str] = {}  # by id: its present incarnation
        self.newcomers: set[str] = set()  # consumers that came under this leader
        self.out: dict[str, dict[int, int]] = {}  # by incarnation and seq: when it was handed over
        self.over: set[tuple[str, int]] = set()  # incarnation and seq of settled messages
        self.told: set[tuple[str, int]] = set()
        self.evicted: set[str] = set()
        self.away: set[str] = set()  # their queue is gone, or their end is on its way
        self.returned_at_ms: dict[str, int] = {}
        self.asked: tuple[int, int] | None = None  # its marker's number, and when it asked
        self.asked_last_ms = now_ms
        self.epoch = snapshot.lane_epoch
        #: By incarnation and seq: RabbitMQ had it surely by then, and the leader has to know that.
        self.arrived: dict[tuple[str, int], int] = {}
        self.noticed: dict[tuple[str, int], int] = {}
        self.behind: set[tuple[str, int]] = set()  # handed over since it asked
        self.first_look_ms: int | None = None
        for number, row in snapshot.incarnations.items():
            self.know(number, row)
        self.newcomers.clear()

    def know(self, number: int, row: IncarnationRow) -> None:
        """A row of the table of incarnations, as it is from now on."""
        if number not in self.rows:
            self.newcomers.add(row.uuid)
        self.rows[number] = row
        if row.state != "taken":
            self.uuids[row.consumer] = row.uuid
        if row.state == "evicted":
            self.evicted.add(row.uuid)
            self.away.add(row.uuid)

    def take_in(self, event: Event, now_ms: int) -> None:
        if type(event) is Settle:
            seqs = [seq for first, last in event.acked for seq in range(first, last + 1)]
            for seq in (*seqs, *(failed.seq for failed in event.failed)):
                if self.out.get(event.incarnation, {}).pop(seq, None) is not None:
                    self.over.add((event.incarnation, seq))
        elif type(event) is CopyRefused and event.copy.incarnation in self.rows:
            self.out.get(self.rows[event.copy.incarnation].uuid, {}).pop(event.copy.seq, None)
        elif type(event) is PublishersBlocked:
            self.blocked = event.blocked
            self.patient_from_ms = now_ms

    def hand(self, uuid: str, seq: int, at_ms: int) -> None:
        self.out.setdefault(uuid, {})[seq] = at_ms
        for known in (self.arrived, self.noticed):
            known.pop((uuid, seq), None)
        self.behind.add((uuid, seq))

    def answers(self, event: Event) -> bool:
        """Whether this is the answer to what it asked last."""
        return (
            type(event) is Marker
            and self.asked is not None
            and (event.incarnation, event.lane_epoch, event.n) == (EVERYBODY, self.epoch, self.asked[0])
        )

    def had_for_ms(self, uuid: str, seq: int, asked_at_ms: int) -> int:
        """For how long, as far as that may count: what a former leader handed over from this one on."""
        return self._had_for_ms(self.arrived, uuid, seq, asked_at_ms)

    def surely_had_for_ms(self, uuid: str, seq: int, asked_at_ms: int) -> int:
        """The same, as far as that has to count."""
        return self._had_for_ms(self.noticed, uuid, seq, asked_at_ms)

    def _had_for_ms(self, known: dict[tuple[str, int], int], uuid: str, seq: int, asked_at_ms: int) -> int:
        since_ms = known.get((uuid, seq))
        if since_ms is None and seq not in self.out.get(uuid, {}):
            since_ms = self.first_look_ms
        return -1 if since_ms is None else asked_at_ms - max(since_ms, self.patient_from_ms)

    def looked(self, asked_at_ms: int, now_ms: int) -> None:
        """RabbitMQ has everything that was handed over before it was asked. A message handed over in that
        very millisecond may be noticed at the next look."""
        self.first_look_ms = now_ms if self.first_look_ms is None else self.first_look_ms
        for uuid, seqs in self.out.items():
            for seq, given_ms in seqs.items():
                if (uuid, seq) not in self.behind:
                    self.arrived.setdefault((uuid, seq), now_ms)
                if given_ms + _ROUNDING_MS < asked_at_ms:
                    self.noticed.setdefault((uuid, seq), now_ms)


class OverdueChecker(Checker):
    """Follows each leader's steps, what it hears and what it tells people."""

    name = "overdue"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        options = world.scenario.options
        self._timeout_ms: int = options["ack_timeout_ms"]
        self._evicts = options["on_ack_timeout"] is OverdueAct.EVICT
        #: A leader asks that often.
        self._tick_ms = min(self._timeout_ms, options["liveness_interval_ms"]) + _ROUNDING_MS
        self._surely_late_ms = self._timeout_ms + self._timeout_ms // ARRIVALS_MAX + _ROUNDING_MS
        self._leaders: dict[str, _Leader] = {}  # by process
        self._late: set[str] = set()  # consumers evicted for that in this step
        self._asked_at_ms: int | None = None  # where the leader of this step looks: when it had asked
        self._latest: dict[int, tuple[str, int]] = {}  # by message: its last consumer, and its seq

    # -- what leaders find --

    def dispatched(self, life: Life, to: DispatchFact) -> None:
        self._latest[life.uid] = to.incarnation, to.seq

    def read(self, snapshot: Snapshot) -> None:
        """The time of all that is in consumers' hands begins again."""
        now_ms, history = self.world.scheduler.now_ms, self.world.history
        leader = self._leaders[history.leader] = _Leader(snapshot, now_ms)
        if not snapshot.complete or history.doubt:
            self._latest.clear()
        here = {row.uuid for row in leader.rows.values() if row.state != "taken"}
        for uid, (uuid, seq) in list(self._latest.items()):
            if uuid not in here or not self._is_surely_open(history.lives[uid], uuid, seq):
                del self._latest[uid]
            else:
                leader.hand(uuid, seq, now_ms)

    def _is_surely_open(self, life: Life, uuid: str, seq: int) -> bool:
        """No consumer has settled the message, and its original comes back."""
        history = self.world.history
        doubtful = life.twins > 1 or life.expires or life.repeated or life.was_parked
        ended = life.over or life.given_up or life.is_let_go_by(uuid) or (uuid, seq) in life.failed
        return not (doubtful or ended or uuid in history.taken or life.uid in history.excused)

    # -- what leaders do --

    def decided(self, process: str, events: list[Event], effects: Effects) -> None:
        leader, now_ms = self._leaders[process], self.world.scheduler.now_ms
        # It looks when its question comes back: events behind that are handled later.
        answer = next((place for place, event in enumerate(events) if leader.answers(event)), len(events))
        for event in events[:answer]:
            leader.take_in(event, now_ms)
        evicted, asked = set(leader.evicted), leader.asked
        for number, row in effects.incarnations.items():
            if row is not None:
                leader.know(number, row)
        self._judge(leader, effects, evicted, is_answered=answer < len(events))
        for event in events[answer:]:
            leader.take_in(event, now_ms)
        self._hand_out(leader, effects, evicted)
        if leader.asked != asked:
            leader.behind.clear()
        self._must_ask(leader)

    def _judge(self, leader: _Leader, effects: Effects, evicted: set[str], *, is_answered: bool) -> None:
        """What it says and does at this look, if it is one; `evicted`: who was before this step."""
        asked_at_ms = leader.asked[1] if is_answered and leader.asked is not None else None
        if is_answered:
            leader.asked = None
        self._asked_at_ms = asked_at_ms
        self._late.clear()
        for action in effects.actions:
            if type(action) is LogEvent:
                self._tells(leader, action)
            elif type(action) is PublishMarker and action.incarnation == EVERYBODY:
                leader.asked = action.n, self.world.scheduler.now_ms
                leader.asked_last_ms = self.world.scheduler.now_ms
            elif type(action) is PublishMarker:
                leader.away.add(action.incarnation)
            elif type(action) is SendCopy and leader.rows[action.copy.incarnation].uuid in evicted:
                self.violate(f"{action.copy.seq} is sent again to an evicted consumer")
        if asked_at_ms is not None:
            if not leader.blocked:
                self._must_be_told_of(leader, asked_at_ms)
            leader.looked(asked_at_ms, self.world.scheduler.now_ms)

    def _hand_out(self, leader: _Leader, effects: Effects, evicted: set[str]) -> None:
        for record in effects.records:
            if type(record) is Dispatched:
                uuid = leader.rows[record.incarnation].uuid
                if uuid in leader.evicted:
                    self.violate(f"{uuid} gets {record.seq} although it is evicted")
                leader.hand(uuid, record.seq, self.world.scheduler.now_ms)
            elif type(record) is IncarnationEnded:
                leader.out.pop(leader.rows[record.incarnation].uuid, None)

    def _tells(self, leader: _Leader, tell: LogEvent) -> None:
        if tell.event == "message_overdue":
            self._is_overdue(leader, leader.uuids[tell.fields["consumer"]], tell.fields["seq"])
        elif tell.event == "consumer_evicted" and tell.fields["by"] == "ack_timeout":
            self._is_evicted(leader, tell.fields["incarnation"])
        elif tell.event == "consumer_lost":
            leader.away.add(leader.uuids[tell.fields["consumer"]])
        elif tell.event == "consumer_returned":
            self._returned(leader, tell.fields["incarnation"])

    def _returned(self, leader: _Leader, uuid: str) -> None:
        now_ms = self.world.scheduler.now_ms
        leader.away.discard(uuid)
        leader.returned_at_ms[uuid] = now_ms

    # -- not early --

    def _is_overdue(self, leader: _Leader, uuid: str, seq: int) -> None:
        self.world.history.met["overdue", "told"] += 1
        if self._asked_at_ms is None:
            self.violate(f"{seq} of {uuid} is overdue, and the leader has not asked what RabbitMQ has")
            return
        had_ms = leader.had_for_ms(uuid, seq, self._asked_at_ms)
        if leader.blocked or had_ms < self._timeout_ms - _ROUNDING_MS:
            self.violate(f"{seq} of {uuid} is overdue after {had_ms} ms of {self._timeout_ms}")
        if (uuid, seq) in leader.over:
            self.violate(f"{seq} of {uuid} is overdue although it was settled")
        if (uuid, seq) in leader.told:
            self.violate(f"{seq} of {uuid} is told of twice")
        leader.told.add((uuid, seq))

    def _is_evicted(self, leader: _Leader, uuid: str) -> None:
        self.world.history.met["overdue", "evicted"] += 1
        self._late.add(uuid)
        if not self._evicts:
            self.violate(f"{uuid} is evicted although the lane does not ask for it")
        if self._asked_at_ms is None:
            self.violate(f"{uuid} is evicted, and the leader has not asked what RabbitMQ has")
            return
        asked_at_ms = self._asked_at_ms
        had = [leader.had_for_ms(uuid, seq, asked_at_ms) for seq in leader.out.get(uuid, ())]
        if not (leader.complete and uuid in leader.newcomers) and leader.first_look_ms is not None:
            had.append(asked_at_ms - max(leader.first_look_ms, leader.patient_from_ms))  # of a former leader
        longest_ms = max(had, default=-1)
        if leader.blocked or longest_ms < self._timeout_ms - _ROUNDING_MS:
            self.violate(f"{uuid} is evicted, and has nothing for longer than {longest_ms} ms")

    # -- not never --

    def _must_be_told_of(self, leader: _Leader, asked_at_ms: int) -> None:
        """The leader must have told by now of each message that was out for too long when it asked."""
        now_ms = self.world.scheduler.now_ms
        for uuid, seqs in leader.out.items():
            is_there = uuid not in leader.away or uuid in self._late
            if not is_there or leader.returned_at_ms.get(uuid) == now_ms:
                continue
            for seq in seqs:
                had_ms = leader.surely_had_for_ms(uuid, seq, asked_at_ms)
                if had_ms < self._surely_late_ms:
                    continue
                if (uuid, seq) not in leader.told:
                    self.violate(f"{uuid} has {seq} for {had_ms} ms, and the leader does not say so")
                elif self._evicts and uuid not in leader.evicted:
                    self.violate(f"{uuid} has {seq} for {had_ms} ms, and is not evicted")

    def _must_ask(self, leader: _Leader) -> None:
        """A leader must ask RabbitMQ once a message that it handed over is out for longer than a look."""
        now_ms = self.world.scheduler.now_ms
        if leader.blocked or leader.asked is not None or now_ms - leader.asked_last_ms <= self._tick_ms:
            return
        for uuid, seqs in leader.out.items():
            if uuid in leader.newcomers and uuid not in leader.away:
                for seq, given_ms in seqs.items():
                    if now_ms - max(given_ms, leader.patient_from_ms) > self._tick_ms:
                        self.violate(f"{uuid} has {seq}, and the leader does not ask what RabbitMQ has")

    # -- the end --

    def at_end(self) -> None:
        leader = self._leaders[self.world.history.leader]
        for uuid in leader.evicted - self.world.history.taken:
            self.violate(f"{uuid} is evicted, and was never taken back")
