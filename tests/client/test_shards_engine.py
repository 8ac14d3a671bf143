"""The application's questions to a consumer of several shards, while these come and go."""

from __future__ import annotations

from typing import Any

from dispatcher.client.retries import RetryPolicy
from dispatcher.client.shards import ShardsEngine


class Engine:
    """Of one shard. While its doubts are counted, the thread of the connections does `meanwhile`."""

    retry = RetryPolicy()

    def __init__(self, listener: Any) -> None:
        self.listener = listener
        self.shards = 1
        self.has_joined = False
        self.meanwhile: Any = lambda: None

    def start(self) -> None: ...

    def share(self, prefetch: int) -> None: ...

    def leave(self) -> None: ...

    @property
    def joined(self) -> bool:
        return self.has_joined

    @property
    def doubts(self) -> int:
        self.meanwhile()
        return 1


class Consumer:
    def __init__(self) -> None:
        self.engines: dict[int, Engine] = {}
        self.shards: ShardsEngine[Any] = ShardsEngine(self._make, 10, self)

    def _make(self, number: int, prefetch: int, listener: Any) -> Any:
        self.engines[number] = Engine(listener)
        return self.engines[number]

    def received(self, messages: list[Any]) -> None: ...

    def lost(self, messages: list[Any]) -> None: ...

    def changed(self) -> None: ...

    def ended(self, error: Exception | None) -> None: ...

    def welcomes(self, shards: int) -> None:
        self.engines[1].shards, self.engines[1].has_joined = shards, True
        self.engines[1].listener.changed()


def test_it_has_joined_when_it_is_in_all_that_there_are() -> None:
    consumer = Consumer()
    assert not consumer.shards.joined
    consumer.welcomes(2)
    assert not consumer.shards.joined
    consumer.engines[2].has_joined = True
    assert consumer.shards.joined
    consumer.welcomes(1)
    consumer.engines[2].has_joined = False
    assert consumer.shards.joined, "the one that it leaves is not asked"


def test_a_shard_that_comes_while_doubts_are_counted_disturbs_nothing() -> None:
    consumer = Consumer()
    consumer.welcomes(1)
    consumer.engines[1].meanwhile = lambda: consumer.welcomes(2)
    assert consumer.shards.doubts == 1
    consumer.engines[1].meanwhile = lambda: None
    assert consumer.shards.doubts == 2
