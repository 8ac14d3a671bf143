"""C-8, C-9: what is not settled within `ack_timeout` is told of, and its consumer evicted where that is asked
for, neither early nor never; and who is evicted gets nothing more.

The times are the world's: when a leader read Redis, handed something over, heard that RabbitMQ takes
publishes again. What became of a message is in its consumer's words. That what an evicted one had goes on in
order is for others to see.
"""

from __future__ import annotations

import heapq

from dispatcher.core.effects import (
    Action,
    Dispatched,
    Effects,
    IncarnationRow,
    PublishMarker,
    SendCopy,
    Snapshot,
    Taken,
    Tell,
)
from dispatcher.core.events import CopyRefused, Event, PublishersBlocked
from dispatcher.protocol import Settle
from dispatcher.settings_parts import OverdueAct
from dispatcher.sim.checkers import Checker, HandOver
from dispatcher.sim.life import Life
from dispatcher.sim.world import World

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
        self.newcomers: set[str] = set()  # who came under this leader
        self.out: dict[str, dict[int, int]] = {}  # by incarnation and seq: when it was handed over
        self.over: set[tuple[str, int]] = set()  # what was settled
        self.told: set[tuple[str, int]] = set()
        self.evicted: set[str] = set()
        self.away: set[str] = set()  # their queue is gone, or their end is on its way
        self.returned_at_ms: dict[str, int] = {}
        self.due: list[tuple[int, str, int]] = []  # a heap: when to look whether it was told of
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

    def hand(self, uuid: str, seq: int, at_ms: int, due_ms: int) -> None:
        self.out.setdefault(uuid, {})[seq] = at_ms
        heapq.heappush(self.due, (due_ms, uuid, seq))

    def had_for_ms(self, uuid: str, seq: int, now_ms: int) -> int:
        """For how long, as far as that counts; what a former leader handed over counts from this one on."""
        given_ms = self.out.get(uuid, {}).get(seq, self.patient_from_ms)
        return now_ms - max(given_ms, self.patient_from_ms)


class Overdue(Checker):
    """Follows each leader's steps, what it hears and what it tells people."""

    name = "overdue"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        options = world.scenario.options
        self._timeout_ms: int = options["ack_timeout_ms"]
        self._evicts = options["on_ack_timeout"] is OverdueAct.EVICT
        #: A leader looks that often.
        tick_ms = min(self._timeout_ms, options["liveness_interval_ms"])
        self._bound_ms = self._timeout_ms + tick_ms + _ROUNDING_MS
        self._tick_ms = tick_ms + _ROUNDING_MS
        self._leaders: dict[str, _Leader] = {}  # by process
        self._late: set[str] = set()  # of whom something is told in this step
        self._latest: dict[int, tuple[str, int]] = {}  # by message: who got it last, and its seq

    # -- what leaders find --

    def dispatched(self, life: Life, to: HandOver) -> None:
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
                leader.hand(uuid, seq, now_ms, now_ms + self._bound_ms)

    def _is_surely_open(self, life: Life, uuid: str, seq: int) -> bool:
        """Nobody has said that it is over, and its original comes back."""
        history = self.world.history
        doubtful = life.twins > 1 or life.expires or life.repeated or life.was_parked
        ended = life.over or life.given_up or life.is_let_go_by(uuid) or (uuid, seq) in life.failed
        return not (doubtful or ended or uuid in history.taken or life.uid in history.excused)

    # -- what leaders do --

    def decided(self, process: str, events: list[Event], effects: Effects) -> None:
        leader, now_ms = self._leaders[process], self.world.scheduler.now_ms
        for event in events:
            leader.take_in(event, now_ms)
        evicted = set(leader.evicted)
        for number, row in effects.incarnations.items():
            if row is not None:
                leader.know(number, row)
        for record in effects.records:
            if type(record) is Dispatched:
                uuid = leader.rows[record.incarnation].uuid
                if uuid in leader.evicted:
                    self.violate(f"{uuid} gets {record.seq} although it is evicted")
                leader.hand(uuid, record.seq, now_ms, now_ms + self._bound_ms)
            elif type(record) is Taken:
                leader.out.pop(leader.rows[record.incarnation].uuid, None)
        self._do(leader, effects.actions, evicted)
        if not leader.blocked:
            self._look(leader)

    def _do(self, leader: _Leader, actions: list[Action], evicted: set[str]) -> None:
        """`evicted`: who was before this step."""
        for action in actions:
            if type(action) is Tell:
                self._tells(leader, action)
            elif type(action) is PublishMarker:
                leader.away.add(action.incarnation)
            elif type(action) is SendCopy and leader.rows[action.copy.incarnation].uuid in evicted:
                self.violate(f"{action.copy.seq} is sent again to somebody who is evicted")
        for uuid in self._late:
            self._must_all_be_told_of(leader, uuid)
        self._late.clear()

    def _tells(self, leader: _Leader, said: Tell) -> None:
        if said.event == "message_overdue":
            self._is_overdue(leader, leader.uuids[said.fields["consumer"]], said.fields["seq"])
        elif said.event == "consumer_evicted" and said.fields["by"] == "ack_timeout":
            self._is_evicted(leader, said.fields["incarnation"])
        elif said.event == "consumer_lost":
            leader.away.add(leader.uuids[said.fields["consumer"]])
        elif said.event == "consumer_returned":
            self._returned(leader, said.fields["incarnation"])

    def _returned(self, leader: _Leader, uuid: str) -> None:
        now_ms = self.world.scheduler.now_ms
        leader.away.discard(uuid)
        leader.returned_at_ms[uuid] = now_ms
        for seq in leader.out.get(uuid, ()):
            heapq.heappush(leader.due, (now_ms + self._tick_ms, uuid, seq))

    # -- not early --

    def _is_overdue(self, leader: _Leader, uuid: str, seq: int) -> None:
        had_ms = leader.had_for_ms(uuid, seq, self.world.scheduler.now_ms)
        self.world.history.met["overdue", "told"] += 1
        if leader.blocked or had_ms < self._timeout_ms - _ROUNDING_MS:
            self.violate(f"{seq} of {uuid} is overdue after {had_ms} ms of {self._timeout_ms}")
        if (uuid, seq) in leader.over:
            self.violate(f"{seq} of {uuid} is overdue although it was settled")
        if (uuid, seq) in leader.told:
            self.violate(f"{seq} of {uuid} is told of twice")
        leader.told.add((uuid, seq))
        self._late.add(uuid)

    def _is_evicted(self, leader: _Leader, uuid: str) -> None:
        now_ms = self.world.scheduler.now_ms
        self.world.history.met["overdue", "evicted"] += 1
        if not self._evicts:
            self.violate(f"{uuid} is evicted although nobody asked for it")
        all_known = leader.complete and uuid in leader.newcomers
        of_before = () if all_known else (now_ms - leader.patient_from_ms,)
        had = [leader.had_for_ms(uuid, seq, now_ms) for seq in leader.out.get(uuid, ())]
        longest_ms = max((*had, *of_before), default=0)
        if leader.blocked or longest_ms < self._timeout_ms - _ROUNDING_MS:
            self.violate(f"{uuid} is evicted, and has nothing for longer than {longest_ms} ms")

    # -- not never --

    def _look(self, leader: _Leader) -> None:
        """After a step: what was due a tick ago must have been told of."""
        now_ms = self.world.scheduler.now_ms
        while leader.due and leader.due[0][0] <= now_ms:
            _, uuid, seq = heapq.heappop(leader.due)
            given_ms = leader.out.get(uuid, {}).get(seq)
            if given_ms is None or uuid in leader.away:
                continue
            due_ms = max(
                max(given_ms, leader.patient_from_ms) + self._bound_ms,
                leader.returned_at_ms.get(uuid, 0) + self._tick_ms,
            )
            if due_ms > now_ms:
                heapq.heappush(leader.due, (due_ms, uuid, seq))
            elif (uuid, seq) not in leader.told:
                self.violate(f"{uuid} has {seq} for {now_ms - given_ms} ms, and nobody says so")
            elif self._evicts:
                self.violate(f"{uuid} has {seq} for {now_ms - given_ms} ms, and is not evicted")

    def _must_all_be_told_of(self, leader: _Leader, uuid: str) -> None:
        """Who is looked at may be evicted for it, and is not looked at again."""
        now_ms = self.world.scheduler.now_ms
        for seq in leader.out.get(uuid, ()):
            had_ms = leader.had_for_ms(uuid, seq, now_ms)
            if had_ms >= self._timeout_ms + _ROUNDING_MS and (uuid, seq) not in leader.told:
                self.violate(f"{uuid} has {seq} for {had_ms} ms, and others of it are told of")

    # -- the end --

    def at_end(self) -> None:
        leader = self._leaders[self.world.history.leader]
        for uuid in leader.evicted - self.world.history.taken:
            self.violate(f"{uuid} is evicted, and was never taken back")
