"""The table in Redis that the demo's consumers write to, by compare-and-set."""

from __future__ import annotations

from enum import StrEnum
from importlib.resources import files
from typing import Any, Final

import redis
import redis.asyncio

from dispatcher.demo.workload import RowChange

SCRIPT: Final = files(__package__).joinpath("table.lua").read_text()


class ApplyOutcome(StrEnum):
    """What became of a change."""

    APPLIED = "applied"
    AGAIN = "again"  # it had been applied before
    CONFLICT = "conflict"  # the row did not hold the old value
    STALE = "stale"  # a newer owner of the group has written already


class TableKeys:
    """The Redis keys of one table; all in one hash slot."""

    def __init__(self, prefix: str) -> None:
        self.rows = f"{{{prefix}}}:rows"
        self.epochs = f"{{{prefix}}}:epochs"
        self.numbers = f"{{{prefix}}}:numbers"

    def all(self) -> list[str]:
        return [self.rows, self.epochs, self.numbers]

    def arguments(self, change: RowChange, epoch: int, number: int) -> list[Any]:
        """Keys and arguments of the script, in its order."""
        return [*self.all(), change.group, epoch, number, change.key, change.old, change.new]


class Table:
    """For threads. Raises redis.RedisError."""

    def __init__(self, client: redis.Redis, prefix: str) -> None:
        self._client = client
        self._keys = TableKeys(prefix)
        self._script = client.register_script(SCRIPT)

    def apply(self, change: RowChange, epoch: int, number: int) -> ApplyOutcome:
        """Apply change `number` if its row holds the old value and no newer owner has written to its
        group."""
        given = self._keys.arguments(change, epoch, number)
        return ApplyOutcome(_text(self._script(keys=given[:3], args=given[3:])))

    def rows(self) -> dict[bytes, bytes]:
        """Everything in it."""
        found: Any = self._client.hgetall(self._keys.rows)
        return dict(found)

    def clear(self) -> None:
        """Remove it."""
        self._client.delete(*self._keys.all())


class AsyncTable:
    """`Table` for asynchronous code."""

    def __init__(self, client: redis.asyncio.Redis, prefix: str) -> None:
        self._keys = TableKeys(prefix)
        self._script = client.register_script(SCRIPT)

    async def apply(self, change: RowChange, epoch: int, number: int) -> ApplyOutcome:
        """See Table."""
        given = self._keys.arguments(change, epoch, number)
        return ApplyOutcome(_text(await self._script(keys=given[:3], args=given[3:])))


def _text(answer: Any) -> str:
    return answer.decode() if isinstance(answer, bytes) else str(answer)
