"""M-1, M-2: suspects are handed over alone, and are poison only if they killed their consumers so.

Which deaths count for a message is found here from what leaders were told: the consumers' own words of what
they have begun, and their markers. The core's count is not asked. Where nobody outside can tell what the
leader knew, a death may count, and need not.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from dispatcher.core.effects import Effects, Snapshot
from dispatcher.core.events import Event
from dispatcher.core.optional.poison import REASON_POISON
from dispatcher.core.orders import LogEvent
from dispatcher.core.records import Dispatched
from dispatcher.sim.checkers.checker import Checker
from dispatcher.sim.facts import DispatchFact
from dispatcher.sim.life import Life
from dispatcher.sim.queues import Queue
from dispatcher.sim.world import World
from dispatcher.wire.protocol import Begun, Heartbeat, Marker, Settle


class _Told(NamedTuple):
    """What a consumer has said that it has begun, in its latest settle and in its latest heartbeat: these
    take different ways, and the older one may be heard last."""

    begun: dict[type, Begun]
    after: int  # how many hand-overs were committed before the leader heard the later one

    def names(self, seq: int) -> bool:
        return any(first <= seq <= last for begun in self.begun.values() for first, last in begun.ranges)

    @property
    def concurrency(self) -> int | None:
        """How many it processes at a time; None: it does not say that each time."""
        limits = [begun.concurrency for begun in self.begun.values()]
        return None if None in limits else max(filter(None, limits))


class _Death(NamedTuple):
    """The end of an incarnation behind its marker."""

    held: tuple[tuple[int, DispatchFact], ...]  # (which hand-over of the run, the hand-over), by seq
    told: _Told | None  # its last words before the marker; None: this leader has heard none
    leaderships: int

    def hand_over(self, life: Life) -> tuple[int, DispatchFact] | None:
        """How it got the message; None: it did not have it at its end."""
        return next((at for at in self.held if at[1].uid == life.uid), None)


_TRIED: Final = "suspect_tried_alone"
_NOTHING: Final[dict[str, _Told]] = {}


class PoisonChecker(Checker):
    """Looks at the hand-overs that were committed, in their order, and at what leaders are told."""

    name = "poison"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        attempts = world.scenario.options["retry"].attempts
        self._deaths_min: int = max(1, attempts - 1)
        self._groups_stay = len(world.scenario.group_maps) == 1  # no leader sees others than the former one
        self._given: dict[str, list[Life]] = {}  # by incarnation
        self._holders: dict[int, list[str]] = {}  # by message
        self._count = 0  # of hand-overs
        self._latest: dict[int, tuple[int, DispatchFact]] = {}  # by message
        self._at: dict[str, dict[int, None]] = {}  # by incarnation: the messages that it was given
        self._heard: dict[str, dict[str, _Told]] = {}  # by process and incarnation
        self._at_marker: dict[str, dict[str, _Told | None]] = {}  # the same when the marker came
        self._deaths: dict[str, _Death] = {}  # by incarnation
        self._tried: set[tuple[int, int]] = set()  # (uid, seq) of what a leader tries alone
        self._evicted: dict[str, int] = {}  # by operators: in which leadership
        self._refused: set[int] = set()  # copies that RabbitMQ did not take: nobody has them

    # -- what leaders are told --

    def read(self, snapshot: Snapshot) -> None:
        leader = self.world.history.leader
        self._heard[leader], self._at_marker[leader] = {}, {}

    def decided(self, process: str, events: list[Event], effects: Effects) -> None:
        for event in events:
            kind = type(event)
            if kind is Settle or kind is Heartbeat:
                assert isinstance(event, Settle | Heartbeat)
                if event.begun is not None:
                    heard = self._heard.setdefault(process, {})
                    former = heard.get(event.incarnation)
                    begun = {**(former.begun if former is not None else {}), kind: event.begun}
                    heard[event.incarnation] = _Told(begun, self._count)
            elif kind is Marker:
                assert isinstance(event, Marker)
                last = self._heard.get(process, _NOTHING).get(event.incarnation)
                self._at_marker.setdefault(process, {})[event.incarnation] = last
        is_tried = False
        for action in effects.actions:
            if type(action) is LogEvent:
                is_tried = is_tried or action.event == _TRIED
                if action.event == "consumer_evicted" and action.fields["by"] != "ack_timeout":
                    self._evicted[action.fields["incarnation"]] = self.world.history.leaderships
            elif is_tried and type(action) is Dispatched:  # the log tells of it first
                self._tried.add((int(action.message.content.body.rstrip(b"!")), action.seq))
                is_tried = False

    def nacked(self, queue: Queue, body: bytes) -> None:
        text = body.rstrip(b"!")
        if text.isdigit():
            self._refused.add(int(text))

    def begins_again(self, life: Life) -> None:
        for known in (self._holders, self._latest):
            known.pop(life.uid, None)
        for given in self._at.values():
            given.pop(life.uid, None)

    def taken(self, incarnation: str, *, marked: bool) -> None:
        history = self.world.history
        told = self._at_marker.get(history.leader, {})
        if marked and incarnation in told:
            latest = (self._latest[uid] for uid in self._at.pop(incarnation, ()))
            held = sorted((at for at in latest if at[1].incarnation == incarnation), key=_seq)
            self._deaths[incarnation] = _Death(tuple(held), told[incarnation], history.leaderships)

    # -- which deaths count --

    def _must_count(self, life: Life, incarnation: str) -> bool:
        """Whatever the leader knew, this consumer may have begun the message, and died."""
        death = self._deaths.get(incarnation)
        found = death.hand_over(life) if death is not None else None
        if death is None or found is None or life.is_let_go_by(incarnation) or incarnation in self._evicted:
            return False
        _, own = found
        if death.told is not None and death.told.names(own.seq):
            return True
        ahead = [to for _, to in death.held if to.seq < own.seq]
        if death.told is None and self._groups_stay:  # it may have begun the first one of each group
            ahead = [to for to in ahead if to.group == own.group and to.group is not None]
        lives = [self.world.history.lives[to.uid] for to in ahead]
        # Of equal messages nobody can tell which one was settled.
        return all(incarnation in each.settled and each.twins == 1 for each in lives)

    def _may_count(self, life: Life, incarnation: str) -> bool:
        """The consumer may have begun it, or the leader may not know that it had not."""
        death = self._deaths.get(incarnation)
        found = death.hand_over(life) if death is not None else None
        if death is None or found is None or life.was_parked or not self._groups_stay:
            return True
        number, own = found
        told = death.told
        if self._evicted.get(incarnation) == death.leaderships == self.world.history.leaderships:
            return False  # C-9
        is_begun = told is not None and told.names(own.seq)
        if is_begun or death.leaderships != self.world.history.leaderships:
            return True
        ahead = [to for _, to in death.held if to.seq < own.seq and self._surely_has(incarnation, to)]
        if own.group is not None and any(to.group == own.group for to in ahead):
            return False  # it is not the first of its group
        limit = told.concurrency if told is not None else None
        if told is None or limit is None or told.after < number:
            return True
        begun = {_head_of(to) for _, to in death.held if told.names(to.seq)}
        return len({_head_of(to) for to in ahead} - begun) < limit

    def _deaths_at_most(self, life: Life) -> int:
        """How many of its hand-overs so far may count."""
        holders = self._holders.get(life.uid, [])
        former = set(holders)  # one that has it again had not died
        return sum(self._may_count(life, holder) for holder in former) + len(holders) - len(former)

    def _surely_has(self, incarnation: str, to: DispatchFact) -> bool:
        life = self.world.history.lives[to.uid]
        is_elsewhere = life.purges > 0 or life.buried > 0 or life.is_again or to.uid in self._refused
        return not is_elsewhere and self._has(incarnation, life)

    # -- what follows --

    def dispatched(self, life: Life, to: DispatchFact) -> None:
        incarnation = to.incarnation
        given = self._given.setdefault(incarnation, [])
        alone = given[-1] if given and self._is_suspect(given[-1], incarnation) else None
        if alone is not None and self._has(incarnation, alone) and alone is not life:
            self.violate(f"{incarnation} gets {life} while it tries {alone} alone")
        if (life.uid, to.seq) in self._tried and self._is_judged(life):
            deaths = self._deaths_at_most(life)
            if deaths < self._deaths_min:
                self.violate(f"{incarnation} gets {life} alone after {deaths} deaths")
        given.append(life)
        self._count += 1
        self._latest[life.uid] = self._count, to
        self._at.setdefault(incarnation, {})[life.uid] = None
        self._holders.setdefault(life.uid, []).append(incarnation)
        if to.attempt > self._deaths_min and self._is_suspect(life, incarnation):
            others = [other for other in given if other is not life and self._has(incarnation, other)]
            if others:
                self.violate(f"{incarnation} gets the suspect {life} beside {others[0]}")

    def _is_suspect(self, life: Life, incarnation: str) -> bool:
        """Enough other consumers may have begun it and died. A leader whose Redis forgot deaths may not know
        that.

        A consumer that settled it did not die of it: it may come twice, when Redis forgot its id.
        """
        holders = self._holders.get(life.uid, [])  # none: it has ended, and RabbitMQ gave it back since
        if life.twins > 1 or len(holders) <= self._deaths_min or not self._is_known(life):
            return False
        former = set(holders) - {incarnation}
        return sum(self._must_count(life, holder) for holder in former) >= self._deaths_min

    def _is_known(self, life: Life) -> bool:
        return self.world.history.complete and life.uid not in self.world.history.excused

    def _has(self, incarnation: str, life: Life) -> bool:
        """Unsettled there, as far as the broker knows, and its original exists."""
        gone = life.lost or life.expired or life.given_up or life.twins > 1 or not self._is_known(life)
        return not (gone or life.is_let_go_by(incarnation))

    def _is_judged(self, life: Life) -> bool:
        """A hand-over that it failed, and was released, counts as the others."""
        return life.twins == 1 and not life.failed and self._is_known(life)

    def buried(self, life: Life) -> None:
        if life.dead_reason != REASON_POISON or not self._is_judged(life):
            return
        holders = self._holders.get(life.uid, [])
        deaths = self._deaths_at_most(life)
        if deaths <= self._deaths_min:
            self.violate(f"called poison after {deaths} deaths: {life}")
        elif self._given[holders[-1]][-1] is not life:
            self.violate(f"called poison although {holders[-1]} got others after it: {life}")


def _head_of(to: DispatchFact) -> bytes | int:
    """What has one first message: its group, or it alone."""
    return to.group if to.group is not None else to.uid


def _seq(at: tuple[int, DispatchFact]) -> int:
    return at[1].seq
