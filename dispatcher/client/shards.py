"""A consumer of a lane with shards: it joins each of them, and takes their messages as those of one lane."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

from dispatcher.client.copies import Copy
from dispatcher.client.engine import ConsumerEngine, Listener
from dispatcher.client.retries import RetryPolicy

M = TypeVar("M", bound=Copy)
#: The engine in the shard with this number, with this prefetch and listener.
MakeEngine = Callable[[int, int, Listener[M]], ConsumerEngine[M]]


def shares(prefetch: int, shards: int) -> list[int]:
    """What each shard gets of a prefetch: as equal as can be, and one at least."""
    each, more = divmod(prefetch, shards)
    return [max(1, each + (place < more)) for place in range(shards)]


class ShardsEngine(Generic[M]):
    """The life of one consumer in all shards of a lane; for the application like the ConsumerEngine of one.

    It joins the first shard, whose welcome says how many there are.
    """

    def __init__(self, make_engine: MakeEngine[M], prefetch: int, listener: Listener[M]) -> None:
        self._make_engine = make_engine
        self._prefetch = prefetch
        self._listener = listener
        self._concurrency: int | None = None
        self._submit: Callable[[Callable[[], None]], None] | None = None
        self._is_leaving = False
        self._shards = 0  # not known yet
        self._error: Exception | None = None
        self._engines: dict[int, ConsumerEngine[M]] = {}
        self._former_doubts = 0  # of engines that have ended
        self._add(1, 1)  # until it is known how many share the prefetch

    def _add(self, number: int, prefetch: int) -> ConsumerEngine[M]:
        engine = self._make_engine(number, prefetch, _OfShard(self, number, self._listener))
        if self._concurrency is not None:
            engine.limit(self._concurrency)
        if self._submit is not None:
            engine.wake_through(self._submit)
        self._engines[number] = engine
        return engine

    # --- the application's facts ----------------------------------------------------------------------

    def start(self) -> None:
        for engine in list(self._engines.values()):
            engine.start()

    def limit(self, concurrency: int) -> None:
        self._concurrency = concurrency
        for engine in self._engines.values():
            engine.limit(concurrency)

    def wake_through(self, submit: Callable[[Callable[[], None]], None]) -> None:
        self._submit = submit
        for engine in self._engines.values():
            engine.wake_through(submit)

    def leave(self) -> None:
        self._is_leaving = True
        for engine in list(self._engines.values()):
            engine.leave()

    def abandon(self) -> None:
        self._is_leaving = True
        for engine in list(self._engines.values()):
            engine.abandon()

    def end(self, error: Exception | None = None) -> None:
        self._is_leaving = True
        self._error = self._error or error
        for engine in list(self._engines.values()):
            engine.end(error)

    @property
    def joined(self) -> bool:
        """In all that there are now."""
        wanted = [self._engines.get(number) for number in range(1, self._shards + 1)]
        return bool(wanted) and all(engine is not None and engine.joined for engine in wanted)

    def flushed(self) -> bool:
        return all([engine.flushed() for engine in self._engines.values()])

    # The blocking consumer asks this in other threads than the one that adds engines: over a copy.

    @property
    def retry(self) -> RetryPolicy:
        return next((engine.retry for engine in list(self._engines.values())), RetryPolicy())

    @property
    def doubts(self) -> int:
        return self._former_doubts + sum(engine.doubts for engine in list(self._engines.values()))

    # --- the engines' facts ---------------------------------------------------------------------------

    def changed(self, number: int) -> None:
        """Something happened in that shard. The first one is always there: its latest welcome says how many
        there are."""
        engine = self._engines.get(number)
        if number == 1 and engine is not None and engine.joined and not self._is_leaving:
            self._be_in(engine.shards)
        self._listener.changed()

    def _be_in(self, shards: int) -> None:
        if shards == self._shards:
            return
        self._shards = shards
        wanted = shares(self._prefetch, shards)
        for number, engine in list(self._engines.items()):
            if number > shards:
                engine.leave()
        for number, prefetch in enumerate(wanted, 1):
            known = self._engines.get(number)
            if known is not None:
                known.share(prefetch)
            else:
                self._add(number, prefetch).start()

    def ended(self, number: int, error: Exception | None) -> None:
        """Without an error: in that shard. With one: in all of them."""
        engine = self._engines.pop(number, None)
        self._former_doubts += engine.doubts if engine is not None else 0
        if error is not None:
            self.end(error)
        elif number <= self._shards and not self._is_leaving:  # it left, and now there are as many again
            self._add(number, shares(self._prefetch, self._shards)[number - 1]).start()
        if not self._engines:
            self._listener.ended(self._error)


class _OfShard(Generic[M]):
    """Listens to the engine of one shard."""

    def __init__(self, engine: ShardsEngine[M], number: int, listener: Listener[M]) -> None:
        self.received = listener.received
        self.lost = listener.lost
        self.changed = partial(engine.changed, number)
        self.ended = partial(engine.ended, number)
