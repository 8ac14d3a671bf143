"""N-1, N-6, N-7: every gap that a producer left is reported, and none that it did not leave.

N-9, N-10: where gaps are waited for, what goes before a smaller number was reported to do so.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from dispatcher.core.effects import Effects, Snapshot
from dispatcher.core.events import Event
from dispatcher.core.lane import Lane
from dispatcher.core.model import MessageState, Original
from dispatcher.core.operations.orders import SendTransfer
from dispatcher.core.optional.sequence_numbers import Irregular, SequenceNumbers
from dispatcher.settings import SequenceCheck
from dispatcher.sim.checkers.checker import Checker
from dispatcher.sim.facts import DispatchFact
from dispatcher.sim.life import Life
from dispatcher.sim.scenario import MessagePlan
from dispatcher.sim.world import World


class SequenceChecker(Checker):
    """Compares the leaders' findings with the published messages."""

    name = "sequence"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._uids: dict[tuple[bytes, int], list[int]] = {}  # by group and number
        for plan in world.scenario.messages:
            if plan.number and plan.group is not None:
                self._uids.setdefault((plan.group.encode(), plan.number), []).append(plan.uid)
        self._holds = world.scenario.options.get("sequence_check") is SequenceCheck.HOLD
        self._swapped = self._holds and _any_swapped(world.scenario.messages)
        #: Nothing else ends a wait.
        self._is_timed = self._holds and not (
            world.scenario.parking_queues or any("clock" in fault.kind for fault in world.scenario.faults)
        )
        self._handing_over = False
        self._went: dict[bytes, dict[int, int]] = {}  # by group: numbers as they were handed over, by uid
        self._found: set[tuple[bytes, int, int]] = set()  # group, due, number
        self._forgot = False  # Redis lost something: nothing was due afterwards
        #: Messages that may be reported once more after a leader's end (N-7): those that Redis forgot, and
        #: those that were to be sent elsewhere and stayed.
        self._may_be_forgotten: set[int] = set()

    def read(self, snapshot: Snapshot) -> None:
        history = self.world.history
        self._forgot |= not snapshot.complete and history.leaderships > 1
        if not snapshot.complete or history.doubt:
            for life in history.lives.values():
                if life.starts or life.over or life.given_up or life.was_parked:
                    self._may_be_forgotten.add(life.uid)

    def decided(self, process: str, events: list[Event], effects: Effects) -> None:
        if self._uids:
            sent = (action.message for action in effects.actions if type(action) is SendTransfer)
            self._may_be_forgotten.update(int(message.content.body.rstrip(b"!")) for message in sent)

    def leading(self, lane: Lane) -> None:
        sequences: Any = lane.state.find(SequenceNumbers)
        if sequences is None or not self.world.scenario.groups:
            return
        note = sequences._note

        def watched(kind: str, group: bytes, number: int, due: int) -> None:
            note(kind, group, number, due)
            if self._handing_over and number > due:
                self._must_not_be_here(lane, group, range(due, number))
            self._look(sequences._irregular[group], sequences._gone.get(group, ()))

        sequences._note = watched
        handed_over = sequences.handed_over

        def handing_over(message: Original) -> None:
            self._handing_over = True
            handed_over(message)
            self._handing_over = False

        sequences.handed_over = handing_over

    def _look(self, found: Irregular, gone: Collection[int]) -> None:
        """`gone`: the leader knows that these ended before their turn, in this very step perhaps."""
        self._found.add((found.group, found.due, found.number))
        self.world.history.met["sequence", "gap" if found.number > found.due else "repeated"] += 1
        if self._is_timed and self._handing_over and found.number > found.due:
            self._must_have_waited(found)
        if self._swapped:  # a missing message may come after the wait for it
            return
        if found.number > found.due:
            missing = range(found.due, found.number)
            came = [number for number in missing if self._surely_came(found.group, number)]
            # What operators take out says nothing when its turn comes: the next one that goes on says it all.
            handed = [n for n in came if n not in gone and not self._were_taken_out(found.group, n)]
            if handed or len(came) == len(missing):
                self.violate(f"{found} is reported, and {came} came before")
        elif len(self._lives(found.group, found.number)) < 2 and not self._is_unclear(found):
            self.violate(f"{found} is reported, and its number was given once")

    def _must_not_be_here(self, lane: Lane, group_id: bytes, missing: range) -> None:
        """In its place it would have gone before."""
        group = lane.state.groups.get(lane.state.key_of(group_id))
        for backlog in (group.backlogs or {}).values() if group is not None else ():
            for message in backlog.messages:
                is_it = message.group_id == group_id and message.number in missing
                if self._holds and is_it and message.state is MessageState.WAITING:
                    self.violate(f"{message.number} of {group_id!r} is given up while it is here")

    def _must_have_waited(self, found: Irregular) -> None:
        """A message of the group must have waited: this one may have come when others had waited for long."""
        world, group = self.world, found.group.decode()
        first_ms = min(p.at_ms for p in world.scenario.messages if p.group == group and p.number > found.due)
        waited_ms = world.scheduler.now_ms - world.begun_at_ms - first_ms
        if waited_ms < world.scenario.options["sequence_timeout_ms"]:
            self.violate(f"{found} is given up after {waited_ms} ms")

    def asked(self, uuid: str) -> None:
        self._is_timed = self._is_timed and not uuid.startswith("groups.resume")

    def _lives(self, group: bytes, number: int) -> list[Life]:
        known = self.world.history.lives
        uids = self._uids.get((group, number), ())
        return [known[uid] for uid in uids if uid in known]

    def _surely_came(self, group: bytes, number: int) -> bool:
        lives = self._lives(group, number)
        known = [life for life in lives if life.uid not in self._may_be_forgotten]
        # Of two copies the first may be lost: the second comes late, perhaps in another group.
        whole = [life for life in known if life.stored > life.repeated]
        return any(not (life.lost or life.expired or life.expires) for life in whole)

    def _were_taken_out(self, group: bytes, number: int) -> bool:
        return all(life.purges for life in self._lives(group, number))

    def _is_unclear(self, found: Irregular) -> bool:
        """It was published again and its id forgotten, or the broker gave back a message that had ended."""
        excused = self.world.history.excused
        lives = self._lives(found.group, found.number)
        return any(life.repeated or life.expires or life.is_again or life.uid in excused for life in lives)

    def dispatched(self, life: Life, to: DispatchFact) -> None:
        if self._holds and life.number and life.group is not None:
            self._went.setdefault(life.group, {}).setdefault(life.uid, life.number)

    def at_end(self) -> None:
        if self._forgot or self.world.history.doubt or not self.world.scenario.groups:
            return
        closed = {plan.group for plan in self.world.scenario.messages if plan.closes}
        for group, went in self._went.items():
            if group.decode() not in closed:
                self._must_be_in_order(group, went)
        if self._swapped:
            return
        before: dict[str, MessagePlan] = {}
        for plan in self.world.scenario.messages:
            if not plan.number or plan.group is None or plan.group in closed or plan.repeats:
                continue
            last = before.get(plan.group)
            if last is not None and plan.number != last.number + 1:
                self._must_be_found(plan.group.encode(), last, plan)
            before[plan.group] = plan

    def _must_be_found(self, group: bytes, last: MessagePlan, plan: MessagePlan) -> None:
        clear = all(self._ended_in_turn(each.uid) for each in (last, plan))
        due = last.number + 1
        # What expired before its turn is not due any more: a repeated number is behind even later ones.
        is_reported = any(
            (of, number) == (group, plan.number) and (at == due or at > due > number)
            for of, at, number in self._found
        )
        if clear and not is_reported:
            self.violate(f"{plan.number} came behind {last.number} in {group!r}, and no leader reported that")

    def _must_be_in_order(self, group: bytes, went: dict[int, int]) -> None:
        first = highest = next(iter(went.values()))  # any may come first
        for uid, number in went.items():
            life = self.world.history.lives[uid]
            # A message that was to be sent elsewhere, and stayed, waits no more (N-11b).
            peculiar = life.repeated or life.expires or life.was_parked or uid in self._may_be_forgotten
            is_plain = len(self._uids[group, number]) == 1 and not peculiar
            if is_plain and first < number < highest and uid not in self.world.history.excused:
                is_reported = any(of == group and due <= number < beyond for of, due, beyond in self._found)
                if not is_reported:
                    self.violate(f"{number} of {group!r} went behind {highest}, and no leader reported that")
            highest = max(highest, number)

    def _ended_in_turn(self, uid: int) -> bool:
        life = self.world.history.lives.get(uid)
        if uid in self._may_be_forgotten:
            return False
        return life is not None and bool(life.starts) and not (life.expires or life.repeated or life.lost)


def _any_swapped(plans: tuple[MessagePlan, ...]) -> bool:
    """Whether a number comes behind a larger one of its group."""
    last: dict[str, int] = {}
    for plan in plans:
        if plan.number and plan.group is not None and not plan.repeats:
            if plan.number < last.get(plan.group, 0):
                return True
            last[plan.group] = plan.number
    return False
