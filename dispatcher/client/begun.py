"""What the application has begun, and what the dispatcher knows of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dispatcher.client.ranges import SeqRanges
from dispatcher.wire.protocol import Begun

#: Each settle names the begun messages if they are no more than this. More of them would cost too much.
SMALL: Final = 64
#: For so long, at most, a message waits for the word about it if its consumer may have died of it before.
TOLD_WITHIN_S: Final = 0.05


class BegunMessages:
    """Numbers of one incarnation that have begun and have not ended.

    If the consumer dies, the dispatcher blames those that it was told, and as many others as `concurrency`
    says (M-1). So it needs another word only when more than these have begun since the latest one: then
    `word_is_due`, and `wake` is called. `add` and `discard` may be called from any thread, all else from one.
    """

    __slots__ = ("_awaited", "_told", "_untold", "_wake", "concurrency")

    def __init__(self, concurrency: int, wake: Callable[[], None]) -> None:
        self.concurrency = concurrency
        self._wake = wake
        # A set's single operations are atomic, also where other threads add to it meanwhile.
        self._told: set[int] = set()
        self._untold: set[int] = set()
        self._awaited: list[Callable[[], None]] = []

    def __len__(self) -> int:
        return len(self._told) + len(self._untold)

    def add(self, seq: int) -> None:
        """This one has begun, perhaps not for the first time."""
        if seq not in self._told:
            self._untold.add(seq)
            if self.word_is_due:
                self._wake()

    def tell_now(self, told: Callable[[], None]) -> None:
        """What has begun so far is told at once. `told` is called when RabbitMQ has confirmed it, or when it
        can't be told soon. May be called from any thread; `told` is called in the member's."""
        self._awaited.append(told)
        self._wake()

    @property
    def is_awaited(self) -> bool:
        return bool(self._awaited)

    def take_awaited(self) -> list[Callable[[], None]]:
        """Who waits for the next word. Only those that were there before: others may come meanwhile."""
        return [self._awaited.pop(0) for _ in range(len(self._awaited))]

    def discard(self, seq: int) -> None:
        """This one has ended, or is not in hand any more. `tell` in another thread may undo it: that thread
        says it once more when it hears of the settle."""
        self._told.discard(seq)
        self._untold.discard(seq)

    def clear(self) -> None:
        self._told.clear()
        self._untold.clear()

    @property
    def word_is_due(self) -> bool:
        return len(self._untold) > self.concurrency

    def tell(self) -> Begun:
        """The word for the dispatcher; from now on it counts as told."""
        new = tuple(self._untold)
        self._told.update(new)
        self._untold.difference_update(new)
        return Begun(SeqRanges.of(self._told).pairs(), self.concurrency)

    def mention(self) -> Begun:
        """The same word on a way on which it may be dropped: nothing counts as told because of it."""
        return Begun(SeqRanges.of(self._told | set(tuple(self._untold))).pairs(), self.concurrency)

    def connection_lost(self) -> None:
        """The latest word may not have arrived: nothing counts as told any more."""
        told, self._told = self._told, set()
        self._untold.update(told)
