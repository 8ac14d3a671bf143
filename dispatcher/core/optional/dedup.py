"""Originals that repeat another one's `message_id` within the lane's window: they are acked, and no consumer
gets them.

The window is in Redis, where a new leader has nothing to load. An id enters it in the commit of its message's
first journal entry, whatever that is, and no earlier: else a crash between would lose the message. Which ids
are in it is asked with the commit of the step in which they arrive, so no round trip is added but that one,
and the answer knows of every commit before. Until it comes they wait, and behind them all that arrived later,
so their order stays. Of several that are here the first one counts; the others wait for its entry.

What recovery matches is a message coming back, not a repeated one: it never gets here. What recovery has lost
sight of, and may come all the same, is remembered in the window by its fingerprint: such a one counts as new.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from dispatcher.core.effects import Effects, IdRange, Snapshot, WindowChange
from dispatcher.core.entries import OriginalKey, originals_of
from dispatcher.core.events import IdsLookedUp
from dispatcher.core.feature import Feature, Handler
from dispatcher.core.model import Original
from dispatcher.core.options import DedupOptions
from dispatcher.core.orders import LookUp
from dispatcher.core.queue_ids import QueueId
from dispatcher.core.records import SettledEntries
from dispatcher.core.state import LaneState

#: Bytes of an id as it is kept: a digest, as long as a fingerprint, so that none is taken for another.
ID_BYTES: Final = 16
_KNOWN: Final = ord("1")


class Dedup(Feature):
    """Knows which ids wait for an answer or for an entry. `take_in` gets messages that repeat none."""

    def __init__(self, state: LaneState, options: DedupOptions, take_in: Callable[[Original], None]) -> None:
        self._state = state
        self._options = options
        self._take_in = take_in
        self._is_complete = True  # Redis knows all ids of the window, as far as this leader knows
        self._arriving: list[Original] = []  # in this step, and those that come behind them
        self._asked: deque[tuple[LookUp, list[Original]]] = deque()
        self._withdrawn: set[Original] = set()  # of those: a consumer has them
        self._first: dict[bytes, Original] = {}  # by id: here, and without an entry
        self._repeated: dict[bytes, list[Original]] = {}  # by id, of one that is here without an entry
        self._place: dict[OriginalKey, bytes] = {}  # ids of the first ones
        self._entering: list[bytes] = []
        self._doubted: list[bytes] = []
        self._dropped: list[Original] = []
        #: What this leader has entered, in case that Redis loses it: 16 bytes an id.
        self._memory: deque[IdRange] = deque()
        self._doubts: deque[IdRange] = deque()
        self.remembered = 0  # ids in that memory
        state.signals.deferring.append(self.holds)
        state.signals.withdrawing.append(self.withdraw)
        state.signals.claimed.append(self.came_back)
        state.signals.lost.append(self.lost_sight_of)
        state.signals.overtaken.append(lambda message: message.message_id is not None)

    def events(self) -> Mapping[type, Handler]:
        return {IdsLookedUp: self.looked_up}

    def load_first(self, snapshot: Snapshot) -> None:
        self._is_complete = snapshot.complete

    @property
    def waiting(self) -> int:
        """Messages that are here and wait for an answer, or for what another one becomes."""
        asked = sum(len(line) for _, line in self._asked)
        return len(self._arriving) + asked + sum(len(line) for line in self._repeated.values())

    # -- what arrives --

    def holds(self, message: Original) -> bool:
        """True: it will be taken in, or acked, when more is known."""
        key = message.message_id
        if key is None:
            line = self._arriving or (self._asked[-1][1] if self._asked else None)
            if line is None:
                return False
            line.append(message)
        elif key in self._first:
            self._repeated.setdefault(key, []).append(message)
        else:
            self._first[key] = message
            self._place[message.queue, message.arrival] = key
            self._arriving.append(message)
        return True

    def came_back(self, message: Original) -> None:
        """Recovery knows it. Its id is in the window, unless Redis has forgotten that."""
        if message.message_id is not None and not self._is_complete:
            self._entering.append(message.message_id)

    def lost_sight_of(self, message: Original) -> None:
        """It has an entry, and its original did not come back. One that comes all the same must go on."""
        self._doubted.append(message.fingerprint)

    def withdraw(self, message: Original) -> bool:
        """A consumer has it in hand: true if it was waiting here."""
        key = message.message_id
        repeated = self._repeated.get(key, []) if key is not None else []
        if message in repeated:
            repeated.remove(message)
            return True
        if any(message in line for line in (self._arriving, *(line for _, line in self._asked))):
            self._withdrawn.add(message)
            return True
        return False

    def looked_up(self, event: IdsLookedUp) -> None:
        """Redis has said which ids are in the window; or it lost the question with other writes."""
        lookup = event.lookup
        if all(asked is not lookup for asked, _ in self._asked):  # it was asked again since
            return
        if lookup.known is None:
            lines = [line for _, line in self._asked] + [self._arriving]
            self._arriving = [message for line in lines for message in line]
            self._asked.clear()
            return
        _, line = self._asked.popleft()
        answers = iter(lookup.known)
        for message in line:
            key = message.message_id
            is_known = key is not None and next(answers) == _KNOWN
            if message in self._withdrawn:
                self._withdrawn.discard(message)
            elif is_known and key is not None:
                del self._first[key]
                del self._place[message.queue, message.arrival]
                self._dropped += [message, *self._repeated.pop(key, ())]
            else:
                self._take_in(message)

    # -- the end of a step --

    def finish_step(self) -> None:
        """Enter the ids of messages with a first entry, ask for new ones, and drop repeated messages."""
        state = self._state
        if self._place:
            for record in state.effects.records:
                for place in originals_of(record):
                    key = self._place.pop(place, None)
                    if key is not None:
                        del self._first[key]
                        self._entering.append(key)
                        self._dropped += self._repeated.pop(key, ())
        if self._dropped:
            self._drop()
        if self._entering or self._doubted or self._arriving:
            self._write()

    def _drop(self) -> None:
        """They end: the messages that they repeat are committed, or are in this very commit."""
        state, dropped = self._state, self._dropped
        self._dropped = []
        queues: dict[QueueId, list[Original]] = {}
        for message in dropped:
            queues.setdefault(message.queue, []).append(message)
        for queue, messages in queues.items():
            entries = tuple((message.arrival, message.fingerprint) for message in messages)
            state.effects.records.append(SettledEntries(queue, False, entries))
            for message in messages:
                state.effects.repeated.append((queue, message.arrival))
                state.settled(message)
        state.counters["deduplicated"] += len(dropped)
        state.log_message(
            dropped[0], "messages_deduplicated", messages=len(dropped),
            queue=state.inbounds[dropped[0].inbound].name,
        )  # fmt: skip

    def _write(self) -> None:
        """Have Redis do it with this step's commit."""
        state = self._state
        change = self._change()
        if self._entering:
            change.entered.append(self._remember(self._entering))
        if self._doubted:
            doubts = IdRange(state.now_ms, b"".join(self._doubted))
            self._doubts.append(doubts)
            change.doubted.append(doubts)
        if self._arriving:
            asking = [m for m in self._arriving if m.message_id is not None]
            change.lookup = LookUp([(m.message_id or b"", m.fingerprint) for m in asking])
            self._asked.append((change.lookup, self._arriving))
            state.effects.actions.append(change.lookup)
        self._entering, self._doubted, self._arriving = [], [], []
        state.effects.window = change

    def _change(self) -> WindowChange:
        options = self._options
        return WindowChange(self._state.now_ms, options.window_ms, options.ids_max)

    # -- what Redis may lose --

    def _remember(self, ids: list[bytes]) -> IdRange:
        """Keep them for a Redis that loses them, as long and as many as it keeps itself."""
        state, memory = self._state, self._memory
        entered = IdRange(state.now_ms, b"".join(ids))
        memory.append(entered)
        self.remembered += len(ids)
        since_ms = state.now_ms - self._options.window_ms
        while self._doubts and self._doubts[0].at_ms < since_ms:
            self._doubts.popleft()
        while memory[0].at_ms < since_ms or (self.remembered > self._options.ids_max and len(memory) > 1):
            oldest = memory.popleft()
            count = len(oldest.ids) // ID_BYTES
            self.remembered -= count
            if oldest.at_ms >= since_ms:
                if not state.counters["ids_forgotten"]:
                    state.log_event("dedup_window_full", ids=self._options.ids_max)
                state.counters["ids_forgotten"] += count
        return entered

    def add_rows(self, effects: Effects) -> None:
        """All that this leader knows of the window."""
        effects.window = change = self._change()
        change.entered, change.doubted = list(self._memory), list(self._doubts)
