"""The numbers that producers give to the messages of a group: gaps and repeated ones (`sequence_check`).

A number is looked at when its message gets its first journal entry, whatever that is: so each is looked at
once, in the order in which the group goes on, and messages that operators take out leave no gap. The last
number of each group is committed with that entry, so a new leader goes on from exactly there. A message that
a fail-over gives back without an entry is looked at again: nothing was reported of it before.

A message that ends without a hand-over (it expires) may do so before its turn. Then its number is *gone*: it
leaves no gap when its turn comes.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dispatcher.core.effects import Effects, Snapshot
from dispatcher.core.entries import OriginalKey, originals_of
from dispatcher.core.feature import Feature
from dispatcher.core.model import Original
from dispatcher.core.parking.orders import Relocating
from dispatcher.core.records import Dispatched
from dispatcher.core.state import LaneState
from dispatcher.wire.group_text import format_group

#: Rows of groups that are forgotten, in one commit.
FORGOTTEN_PER_STEP: Final = 1_000
#: Of each kind the log tells at most this often, with how many there were.
TELL_EVERY_MS: Final = 10_000
#: Groups of which `groups why` knows the last irregularity.
SHOWN_MAX: Final = 1_000
#: JMS producers close a group with it wherever they are: it follows whatever came before.
_CLOSE: Final = -1

_GAP: Final = "sequence_gap"
_REPEATED: Final = "sequence_repeated"


@dataclass(frozen=True, slots=True)
class Irregular:
    """A number that did not follow the last one of its group."""

    kind: str
    group: bytes
    number: int
    due: int  # what would have followed
    at_ms: int


class SequenceNumbers(Feature):
    """The last number of every group, by its id."""

    def __init__(self, state: LaneState) -> None:
        self._state = state
        self._last: OrderedDict[bytes, int] = OrderedDict()  # those that were idle for longest come first
        #: Numbers below the last one that came latest: two in a row say that the producer began anew.
        self._below: dict[bytes, int] = {}
        self._unseen: dict[OriginalKey, Original] = {}  # here, and without an entry
        self._waiting: Counter[bytes] = Counter()  # of those, by group
        self._gone: dict[bytes, set[int]] = {}  # numbers that ended before their turn, while others wait
        self._irregular: OrderedDict[bytes, Irregular] = OrderedDict()
        self._moved: list[bytes] = []  # group ids of which something else is due now
        self._untold: dict[str, tuple[int, Irregular]] = {}
        self._told_at_ms: dict[str, int] = {}
        #: Whether something waits for numbers (`sequence_hold`): then `take_moved` has to be asked.
        self.is_watched = False
        # See DeliveryPass.
        self.handed_over: Callable[[Original], None] = self._handed_over
        self._note: Callable[[str, bytes, int, int], None] = self._note_irregular
        state.signals.accepted.append(self.arrived)

    def load_first(self, snapshot: Snapshot) -> None:
        """Take over what former leaders have committed; nothing, if Redis may have lost the latest of it."""
        if snapshot.complete:
            self._last.update(snapshot.sequences)

    def last(self, group_id: bytes) -> int | None:
        """The last number of the group; None: its next message may have any."""
        return self._last.get(group_id)

    def due(self, group_id: bytes) -> int | None:
        """The number that would follow; None: any would."""
        last = self._last.get(group_id)
        return None if last is None else self._behind_gone(group_id, last + 1)

    def waits_beside(self, message: Original) -> bool:
        """Others of its group id are here without an entry."""
        return message.group_id is not None and self._waiting[message.group_id] > 1

    def take_moved(self) -> list[bytes]:
        """Group ids of which something else may be due than when this was asked last."""
        moved, self._moved = self._moved, []
        return moved

    def irregular(self, key: bytes) -> list[Irregular]:
        """The last irregularity of each id of the group with this key, as far as it is remembered."""
        ours = self._state.key_of
        return [found for group_id, found in self._irregular.items() if ours(group_id) == key]

    def add_rows(self, effects: Effects) -> None:
        effects.sequences = dict(self._last)

    def arrived(self, message: Original) -> None:
        """An original is here for the first time: its number is looked at when its first entry is written."""
        if message.group_id is not None and (message.number is not None or message.closing):
            self._unseen[message.queue, message.arrival] = message
            self._waiting[message.group_id] += 1

    def _handed_over(self, message: Original) -> None:
        """Look at its number now: what may follow it in this very step depends on that."""
        if self._unseen.pop((message.queue, message.arrival), None) is not None:
            self._entered(message, goes_on=True)

    def finish_step(self) -> None:
        """Look at the numbers of all that has got its first entry."""
        if self._unseen:
            for record in self._state.effects.records:
                goes_on = isinstance(record, Dispatched | Relocating)
                for place in originals_of(record):
                    message = self._unseen.pop(place, None)
                    if message is not None:
                        self._entered(message, goes_on=goes_on)
        for kind in list(self._untold):
            self._tell(kind)

    def next_deadline_ms(self) -> int | None:
        """When there is something to tell."""
        waits = (self._told_at_ms.get(kind, 0) + TELL_EVERY_MS for kind in self._untold)
        return min(waits, default=None)

    # -- one number --

    def _entered(self, message: Original, *, goes_on: bool) -> None:
        """It has its first entry; `goes_on`: in its turn, as those do that are handed over or parked."""
        group_id = message.group_id
        assert group_id is not None
        if self.is_watched:
            self._moved.append(group_id)
        self._waiting[group_id] -= 1
        if message.closing or message.number is None:
            place = place_of(message)
            if place is not None:
                self._passes(group_id, place)
            self._closed(group_id)
        elif goes_on or message.number <= self._last.get(group_id, -1) + 1:
            self._passes(group_id, message.number)  # a repeated one has no turn that it could wait for
        else:
            self._gone.setdefault(group_id, set()).add(message.number)
        if not self._waiting[group_id]:
            del self._waiting[group_id]
            for number in sorted(self._gone.pop(group_id, ())):
                self._passes(group_id, number)

    def _closed(self, group_id: bytes) -> None:
        """The next message may have any number."""
        self._last.pop(group_id, None)
        self._below.pop(group_id, None)
        self._state.effects.sequences[group_id] = None

    def _passes(self, group_id: bytes, number: int) -> None:
        last = self._last.pop(group_id, None)
        below = self._below.pop(group_id, None)
        gone = self._gone.get(group_id, ())
        due = self._behind_gone(group_id, number if last is None else last + 1)
        if number < due and number - 1 != below:
            self._below[group_id] = number
            self._note(_REPEATED, group_id, number, due)
            number = due - 1
        elif number > due:
            self._note(_GAP, group_id, number, due)
        number = self._behind_gone(group_id, number + 1) - 1
        if gone:
            self._gone[group_id] = {one for one in gone if one > number}
        self._commit_last(group_id, number)

    def _behind_gone(self, group_id: bytes, number: int) -> int:
        """The first number from this one on that has not ended before its turn."""
        gone = self._gone.get(group_id, ())
        while number in gone:
            number += 1
        return number

    def _commit_last(self, group_id: bytes, last: int) -> None:
        self._last[group_id] = self._state.effects.sequences[group_id] = last
        if len(self._last) > self._state.options.sequences_max:
            idle, _ = self._last.popitem(last=False)
            self._below.pop(idle, None)
            self._state.effects.sequences[idle] = None
            self._state.counters["sequences_forgotten"] += 1

    # -- reports --

    def _note_irregular(self, kind: str, group_id: bytes, number: int, due: int) -> None:
        if kind == _GAP:
            self._state.counters["sequence_gaps"] += 1
        else:
            self._state.counters["sequence_repeats"] += 1
        found = Irregular(kind, group_id, number, due, self._state.now_ms)
        self._irregular[group_id] = found
        self._irregular.move_to_end(group_id)
        if len(self._irregular) > SHOWN_MAX:
            self._irregular.popitem(last=False)
        count, _ = self._untold.get(kind, (0, found))
        self._untold[kind] = count + 1, found

    def _tell(self, kind: str) -> None:
        now_ms = self._state.now_ms
        told_at_ms = self._told_at_ms.get(kind)
        if told_at_ms is not None and now_ms - told_at_ms < TELL_EVERY_MS:
            return
        count, found = self._untold.pop(kind)
        self._told_at_ms[kind] = now_ms
        group = format_group(found.group)
        self._state.log_event(kind, group=group, number=found.number, due=found.due, count=count)


def place_of(message: Original) -> int | None:
    """Its producer's number, without the sign that closes a group; None: it stands where it came."""
    number = message.number
    return None if number is None or number == _CLOSE else abs(number)


class Leftovers(Feature):
    """Rows of a former check: the lane checks no numbers any more, or Redis may have lost some."""

    def __init__(self, state: LaneState, snapshot: Snapshot) -> None:
        self._state = state
        self._groups = deque(snapshot.sequences)

    @staticmethod
    def are_in(snapshot: Snapshot, numbers: SequenceNumbers | None) -> bool:
        """Whether Redis has such rows."""
        return bool(snapshot.sequences) and (numbers is None or not snapshot.complete)

    def finish_step(self) -> None:
        """Forget a few, unless this very step has said more of them."""
        sequences = self._state.effects.sequences
        for _ in range(min(FORGOTTEN_PER_STEP, len(self._groups))):
            sequences.setdefault(self._groups.popleft(), None)

    def next_deadline_ms(self) -> int | None:
        return self._state.now_ms + 1 if self._groups else None


def irregularities(state: LaneState, key: bytes) -> list[str]:
    """The last irregularity in the numbers of a group, a line for each id."""
    sequences = state.find(SequenceNumbers)
    return [] if sequences is None else [_line(found, state.now_ms) for found in sequences.irregular(key)]


def _line(found: Irregular, now_ms: int) -> str:
    ago = f"{(now_ms - found.at_ms) // 1000} s ago"
    what = (
        f"number {found.number} came where {found.due} was due"
        if found.kind == _GAP
        else f"number {found.number} came again, or late: {found.due} was due"
    )
    return f"sequence of {format_group(found.group)}: {ago} {what}"
