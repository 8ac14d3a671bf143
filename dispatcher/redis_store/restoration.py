"""Writing a lane's whole state back, after Redis came back without writes that it had confirmed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Final

from dispatcher.core.effects import Effects, IdRange, WindowChange
from dispatcher.core.tables import OwnerRow
from dispatcher.redis_store import tables
from dispatcher.redis_store.chain import Commit, CommitChain, Future, commit_head
from dispatcher.redis_store.connection import RedisConnection
from dispatcher.redis_store.scripts import APPLIED, BEGIN_RESTORE, BEGUN, Argument, LaneKeys, evaluate
from dispatcher.redis_store.tables import TABLES, to_json

#: Owners, or last numbers of groups, per round trip: some tens of milliseconds of Redis' time, so that its
#: other clients go on.
_OWNERS_PER_PART: Final = 20_000
#: Bytes of ids per round trip: as long for Redis.
_ID_BYTES_PER_PART: Final = 16 * 20_000


class Restoration:
    """One checkpoint that replaces everything in Redis and continues the leader's chain."""

    def __init__(
        self, chain: CommitChain, effects: Effects, future: Future, superseded: list[Future]
    ) -> None:
        self._owners = [(group, row) for group, row in effects.owners.items() if row is not None]
        self._sequences = [(group, last) for group, last in effects.sequences.items() if last is not None]
        self._window = effects.window
        self._end: Commit = chain.number(replace(effects, owners={}, sequences={}, window=None), future)
        self._inbounds = to_json(chain.inbounds.stored_names)
        self._leader = chain.leader
        self.ordinal = self._end.ordinal
        self.futures = [*superseded, future]  # in the order of their commits

    async def write(self, connection: RedisConnection, keys: LaneKeys, run: int) -> bytes:
        """Do it once. `run` must be larger at every attempt.

        Returns APPLIED, FENCED, or CHAIN_BROKEN: Redis was emptied meanwhile, begin again. Raises what a
        call raises; a snapshot that is read before the end is not complete.
        """
        begin = evaluate(BEGIN_RESTORE, keys, self._leader, self.ordinal, run, self._inbounds)
        outcome: bytes = await connection.call(*begin)
        if outcome != BEGUN:
            return outcome
        for commit in self._commits(commit_head(keys, self._leader), f"restoring:{run}", connection.run_id):
            outcome = await connection.call(*commit)
            if outcome != APPLIED:
                break
        return outcome

    def _commits(self, head: tuple[Argument, ...], state: str, run_id: str) -> Iterator[tuple[Argument, ...]]:
        # Parts leave the place of the ordinal as it is, so that only the end fits what follows in the chain.
        owners: Iterator[tuple[bytes, OwnerRow]] = iter(self._owners)
        while part := list(islice(owners, _OWNERS_PER_PART)):
            yield (*head, state, state, "", "", "", tables.packed_owners(part), *[b""] * (TABLES - 1))
        sequences: Iterator[tuple[bytes, int]] = iter(self._sequences)
        while rows := list(islice(sequences, _OWNERS_PER_PART)):
            change = (*[b""] * (TABLES - 2), tables.packed_sequences(rows), b"")
            yield (*head, state, state, "", "", "", *change)
        for window in _parts(self._window):
            yield (*head, state, state, "", "", "", *[b""] * TABLES, *tables.window_change(window))
        end = self._end
        yield (
            *head,
            state,
            end.ordinal,
            run_id if end.complete else "",
            end.blob,
            "checkpoint",
            *end.changes,
        )


def _parts(window: WindowChange | None) -> Iterator[WindowChange]:
    """The window in pieces of some thousand ids."""
    if window is None:
        return
    if window.doubted:
        yield replace(window, entered=[])
    part: list[IdRange] = []
    size = 0
    for entered in window.entered:
        part.append(entered)
        size += len(entered.ids)
        if size >= _ID_BYTES_PER_PART:
            yield replace(window, entered=part, doubted=[])
            part, size = [], 0
    if part:
        yield replace(window, entered=part, doubted=[])
