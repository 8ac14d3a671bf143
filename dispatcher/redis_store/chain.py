"""The chain of one leader's commits: numbered, kept until Redis says that they are applied."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from dispatcher.core.effects import Effects
from dispatcher.core.orders import LookUp
from dispatcher.errors import DispatcherError
from dispatcher.redis_store import tables
from dispatcher.redis_store.codec import encode
from dispatcher.redis_store.scripts import COMMIT_SHA, VERIFY, Argument, LaneKeys, evaluate, pack
from dispatcher.redis_store.snapshot import Leadership

Future = asyncio.Future[None]


@dataclass(slots=True)
class Commit:
    """One step's effects as Redis gets them, as often as it takes."""

    ordinal: int
    blob: bytes
    changes: tuple[bytes, ...]
    checkpoint: bool
    complete: bool  # once it is applied, Redis is known to hold everything
    future: Future
    lookup: LookUp | None  # what it asks of the window of ids


class CommitChain:
    """Commits in their order. Pure bookkeeping: it makes commands and takes answers, others do the I/O."""

    def __init__(self, keys: LaneKeys, leadership: Leadership) -> None:
        self.leader = leadership.leader
        self.pending: deque[Commit] = deque()
        self.applied = leadership.ordinal  # the last one that Redis has said to be applied
        self.last = leadership.ordinal  # the last one that was given out; applied <= last
        self.inbounds = leadership.inbounds
        self.complete = leadership.complete  # whether Redis will hold all that is committed from now on
        self._keys = keys
        self._to_stored = leadership.inbounds.to_stored
        self._head = commit_head(keys, self.leader)

    def add(self, effects: Effects, future: Future) -> Commit:
        """Number the effects and keep them until they are applied."""
        commit = self.number(effects, future)
        self.pending.append(commit)
        return commit

    def number(self, effects: Effects, future: Future) -> Commit:
        """The next commit of the chain, encoded now: what the effects name may change later."""
        blob = encode(effects.records, self._to_stored) if effects.records else b""
        changes = tables.changes(effects)
        self.last += 1  # not before: effects that can't be encoded must leave no hole
        lookup = effects.window.lookup if effects.window is not None else None
        return Commit(self.last, blob, changes, effects.checkpoint, self.complete, future, lookup)

    def packed(self, commit: Commit, run_id: str) -> bytes:
        """The command that applies it."""
        ordinal = commit.ordinal
        return pack(
            *self._head, ordinal - 1, ordinal, run_id if commit.complete else "", commit.blob,
            "checkpoint" if commit.checkpoint else "", *commit.changes,
        )  # fmt: skip

    def verification(self, run_id_before: str, run_id: str) -> tuple[Argument, ...]:
        """The command that asks whether all that was applied is still there."""
        return evaluate(VERIFY, self._keys, self.leader, self.applied, run_id_before, run_id)

    def resolve_oldest(self, known: bytes | None = None) -> None:
        """The oldest one is applied; `known` is the answer to its question."""
        commit = self.pending.popleft()
        self.applied = commit.ordinal
        if commit.lookup is not None:
            commit.lookup.known = known
        if not commit.future.done():
            commit.future.set_result(None)

    def supersede(self) -> list[Future]:
        """Drop the unanswered commits, since the next one says it all; returns the futures that wait for
        them."""
        futures = [commit.future for commit in self.pending]
        self.pending.clear()
        return futures


def commit_head(keys: LaneKeys, leader: str) -> tuple[Argument, ...]:
    """What all commits of a leader begin with."""
    return ("EVALSHA", COMMIT_SHA, len(keys.all()), *keys.all(), leader)


def resolve(futures: Iterable[Future]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


def fail(futures: Iterable[Future], error: DispatcherError) -> None:
    """End them with this error, quietly: a caller that awaits one of a chain may not look at the others."""
    for future in futures:
        if not future.done():
            future.set_exception(error)
            future.exception()
