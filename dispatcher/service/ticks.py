"""Steps of the core on their way to Redis and back.

The commits of several steps may be under way. When Redis has answered, a step's actions are carried out;
steps are finished in their order, also those that had nothing to commit.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Final

from dispatcher.core.effects import Effects
from dispatcher.ledger.recorder import Recorder
from dispatcher.redis_store.store import LaneStore
from dispatcher.service.control_inbox import ReadUpTo
from dispatcher.service.durations import Durations

#: Commits under way: more only lengthen the queue, fewer leave the core idle while Redis answers.
COMMITS_UNDER_WAY_MAX: Final = 8


@dataclass(slots=True)
class Tick:
    """One step of the core on its way: its actions and control acks wait for its commit."""

    effects: Effects
    read: ReadUpTo
    decided_at_us: int
    commit: int = 0  # its number; 0: it has none
    ordered_at_s: float = 0.0  # when that was sent to Redis
    committed: bool = False
    finished: asyncio.Future[None] | None = None  # who waits for it


class Ticks:
    """The steps under way. `finish` carries out one, `go_on` is called when there is room again for another
    (see `has_room`), and `fail` when a commit was refused."""

    def __init__(
        self,
        store: LaneStore,
        recorder: Recorder,
        *,
        finish: Callable[[Tick], None],
        go_on: Callable[[], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._store = store
        self._recorder = recorder
        self._finish = finish
        self._go_on = go_on
        self._fail = fail
        self._ticks: deque[Tick] = deque()
        self._over = False
        #: From the order of a commit to Redis' answer.
        self.commits = Durations()
        self._room_is_awaited = False

    def __len__(self) -> int:
        return len(self._ticks)

    def has_room(self) -> bool:
        """Whether there may be a further step; if not, `go_on` is called as soon as a commit is answered."""
        self._room_is_awaited = len(self._ticks) >= COMMITS_UNDER_WAY_MAX
        return not self._room_is_awaited

    def add(self, effects: Effects, read: ReadUpTo) -> None:
        """Commit what a step decided, and finish it after all that were added before."""
        tick = Tick(effects, read, self._recorder.now_us())
        if effects.needs_commit():
            self._ticks.append(tick)
            tick.ordered_at_s = monotonic()
            future = self._store.commit(effects)
            tick.commit = self._store.last_commit
            future.add_done_callback(partial(self._committed, tick))
        elif self._ticks:
            tick.committed = True
            self._ticks.append(tick)
        else:
            self._finished(tick)

    def confirm_complete(self) -> None:
        """The consumers have said what they hold, and that is committed: Redis may be trusted again."""
        tick = Tick(Effects(), ReadUpTo(0, 0), self._recorder.now_us(), ordered_at_s=monotonic())
        self._ticks.append(tick)
        self._store.confirm_complete().add_done_callback(partial(self._committed, tick))

    async def all_finished(self) -> None:
        """Return once all ticks that were added before are in Redis and carried out; never if it is stopped
        first."""
        if self._ticks:
            last = self._ticks[-1]
            if last.finished is None:
                last.finished = asyncio.get_running_loop().create_future()
            await asyncio.shield(last.finished)

    def stop(self) -> None:
        """Finish nothing any more, whatever Redis answers."""
        self._over = True

    def _finished(self, tick: Tick) -> None:
        self._recorder.decided(tick.effects, tick.decided_at_us, tick.commit)
        self._finish(tick)

    def _committed(self, tick: Tick, future: asyncio.Future[None]) -> None:
        if self._over or future.cancelled():
            future.cancelled() or future.exception()
            return
        failure = future.exception()
        if failure is not None:
            self._fail(failure)
            return
        tick.committed = True
        self.commits.add(monotonic() - tick.ordered_at_s)
        while self._ticks and self._ticks[0].committed:
            finished = self._ticks.popleft()
            self._finished(finished)
            if finished.finished is not None:
                finished.finished.set_result(None)
        if self._room_is_awaited:
            self._room_is_awaited = False
            self._go_on()
