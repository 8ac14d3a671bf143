"""A lane's memory in Redis, as its leader uses it: take the lead, commit, and repair what Redis lost."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Final

import hiredis

from dispatcher.core.effects import Effects, Snapshot
from dispatcher.errors import DispatcherError, Fenced, InvalidTransition, StoreUnavailable
from dispatcher.redis_store.chain import Commit, CommitChain, Future, fail, resolve
from dispatcher.redis_store.connection import RedisConnection
from dispatcher.redis_store.restoration import Restoration
from dispatcher.redis_store.scripts import APPLIED, CHAIN_BROKEN, COMMIT, FENCED, LaneKeys
from dispatcher.redis_store.snapshot import read_snapshot, take_lead
from dispatcher.settings import RedisSettings

_BACKOFF_S_MIN: Final = 0.05
#: Redis restarts within seconds; longer pauses would only add to that.
_BACKOFF_S_MAX: Final = 1.0
#: The part of a pause that is left to chance, so that many lanes don't come back all at once.
_BACKOFF_JITTER: Final = 0.5


class _Phase(Enum):
    """What a commit may do now."""

    FOLLOWING = "following"  # nothing: the lead was not taken
    LEADING = "leading"  # go out whenever there is a connection
    BROKEN = "broken"  # wait: Redis lost applied commits, and `restore` must come
    RESTORING = "restoring"  # wait: the state is being written back
    FENCED = "fenced"  # fail: another leader came
    CLOSED = "closed"  # fail


class LaneStore:
    """One lane's keys in Redis. `lead` first, then `commit` as often as wanted.

    Belongs to one event loop and calls back in it. A lost connection is made again by itself, with pauses
    of 50 ms to 1 s, and unanswered commits are sent again unchanged.
    """

    backoff_jitter: float = _BACKOFF_JITTER

    def __init__(
        self, settings: RedisSettings, lane: str, prefix: str,
        on_gap: Callable[[], None], on_available: Callable[[bool], None],
    ) -> None:  # fmt: skip
        self._settings = settings
        self._lane = lane
        self._connection_name = f"{prefix}.{lane}"
        self._keys = LaneKeys.of(prefix, lane)
        self._on_gap = on_gap
        self._on_available = on_available
        self._loop = asyncio.get_running_loop()
        self._phase = _Phase.FOLLOWING
        self._connection: RedisConnection | None = None  # only one whose chain was verified
        self._run_id = ""  # of the latest connection
        self._chain: CommitChain | None = None
        self._restoration: Restoration | None = None
        self._restoration_runs = 0
        self._trouble: str | None = "not connected yet"  # None once Redis does what it is asked
        self._announced = True
        self._backoff_s = _BACKOFF_S_MIN
        self._reconnecting: asyncio.Task[None] | None = None
        self._writing_back: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls, settings: RedisSettings, lane: str, prefix: str, *,
        on_gap: Callable[[], None], on_available: Callable[[bool], None] = lambda _: None,
    ) -> LaneStore:  # fmt: skip
        """Connect. Raises StoreUnavailable, or ConfigurationError when waiting doesn't help.

        `on_gap()`: Redis came back without commits that it had confirmed; call `restore` with a checkpoint.
        It comes once, until that restoration is done. `on_available(bool)`: `available` changed.
        """
        store = cls(settings, lane, prefix, on_gap, on_available)
        store._adopt(await store._connect())
        return store

    # --- state -----------------------------------------------------------------------------------------

    @property
    def problem(self) -> str | None:
        """Why commits are not being answered, in one line; None when they are."""
        if self._phase is _Phase.FENCED:
            return f"another dispatcher leads lane {self._lane}"
        if self._trouble is None and self._phase in (_Phase.BROKEN, _Phase.RESTORING):
            return f"Redis lost the last writes of lane {self._lane}; its state is being written back"
        return self._trouble

    @property
    def fenced(self) -> bool:
        """Another leader came: nothing will be committed here any more."""
        return self._phase is _Phase.FENCED

    @property
    def available(self) -> bool:
        return self.problem is None

    @property
    def pending(self) -> int:
        """Commits not answered yet, those that a restoration replaces among them."""
        unanswered = len(self._chain.pending) if self._chain else 0
        return unanswered + (len(self._restoration.futures) if self._restoration else 0)

    @property
    def last_commit(self) -> int:
        """The number of the commit that was ordered last; before a lead 0."""
        return self._chain.last if self._chain else 0

    # --- orders ----------------------------------------------------------------------------------------

    async def lead(self, now_ms: int, inbounds: Sequence[str], parking: Sequence[str] = ()) -> Snapshot:
        """Raise the lane epoch, which fences every leader before, then read everything.

        `inbounds` are the configured queues, `parking` the names of all parking queues that there may be;
        records come with positions in them. `broker_restarted` is False
        in the answer: the caller knows. Unanswered commits of an earlier lead of this store fail with
        Fenced. After an incomplete snapshot the next leader's is incomplete too, until `confirm_complete`.

        Raises ConfigurationError (also when queues that the lane no longer lists have open entries) and
        StoreUnavailable.
        """
        if self._phase is _Phase.CLOSED:
            raise InvalidTransition("the store is closed")
        self._step_down(_Phase.FOLLOWING, Fenced(f"lane {self._lane}: led anew by this dispatcher"))
        connection = self._connection or await self._connect_now()
        leadership = await take_lead(connection, self._keys, now_ms, inbounds, parking)
        snapshot = await read_snapshot(connection, self._keys, leadership)
        self._chain = CommitChain(self._keys, leadership)
        self._phase = _Phase.LEADING
        return snapshot

    async def fence(self, now_ms: int, inbounds: Sequence[str], parking: Sequence[str] = ()) -> None:
        """Raise the lane epoch and read nothing: a former leader that still lives hears that it is over.

        The caller holds the lane's lock; `lead` follows. Raises as `lead` does.
        """
        connection = self._connection or await self._connect_now()
        if self._phase is _Phase.CLOSED:  # meanwhile, perhaps
            connection.abort("closed")
            raise InvalidTransition("the store is closed")
        await take_lead(connection, self._keys, now_ms, inbounds, parking)

    async def is_fenced(self) -> bool:
        """Whether Redis names a later leader. Only reads. False if Redis can't be asked, or has forgotten."""
        chain, connection = self._chain, self._connection
        if chain is None or connection is None:
            return self._phase is _Phase.FENCED
        try:
            leader = await connection.call("HGET", self._keys.meta, "leader")
        except StoreUnavailable:
            return False
        return leader is not None and int(leader.split()[0]) > int(chain.leader.split()[0])

    def commit(self, effects: Effects) -> Future:
        """Write a step's records and tables in one round trip, atomically, after all commits before.

        The future is done once Redis has said so, in the order of the commits, however often that takes.
        It fails with Fenced when another leader came, with StoreUnavailable when the store is closed before
        the answer. Effects are encoded before this returns. Callers bound themselves by `pending`.
        """
        future: Future = self._loop.create_future()
        chain = self._chain
        if chain is None:
            return self._refused(future)
        commit = chain.add(effects, future)
        if self._phase is _Phase.LEADING and self._connection is not None:
            self._send(self._connection, commit)
        return future

    def confirm_complete(self) -> Future:
        """Say that Redis holds everything once this (empty) commit is applied.

        To be called after an incomplete snapshot, when the consumers have reported what they hold and that is
        committed. Before, a leader that dies must not leave Redis looking complete to the next one.
        """
        if self._chain is not None:
            self._chain.complete = True
        return self.commit(Effects())

    def restore(self, effects: Effects) -> Future:
        """Replace the lane's whole state in Redis by this checkpoint, which begins with Reset.

        Every unanswered commit is part of it, since the leader's memory is ahead of them: their futures are
        done with this one. Commits that come later follow it. Begins again by itself until it is done.
        """
        future: Future = self._loop.create_future()
        chain = self._chain
        if chain is None:
            return self._refused(future)
        if not effects.checkpoint:
            raise InvalidTransition("only a checkpoint can replace a lane's state")
        superseded = self._restoration.futures if self._restoration else []
        self._restoration = Restoration(chain, effects, future, superseded + chain.supersede())
        self._phase = _Phase.RESTORING
        self._announce()
        self._write_back_soon()
        return future

    async def close(self) -> None:
        """End the connection. Unanswered commits fail with StoreUnavailable; they may be applied or not."""
        self._step_down(_Phase.CLOSED, StoreUnavailable(f"lane {self._lane}: the store was closed"))
        self._trouble = "closed"
        for task in (self._reconnecting, self._writing_back):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort("closed")
            await connection.wait_closed()

    def _refused(self, future: Future) -> Future:
        if self._phase is _Phase.FOLLOWING:
            raise InvalidTransition("take the lead before a commit")
        closed = self._phase is _Phase.CLOSED
        fail([future], StoreUnavailable("the store is closed") if closed else self._fenced())
        return future

    # --- answers ---------------------------------------------------------------------------------------

    def _send(self, connection: RedisConnection, commit: Commit) -> None:
        assert self._chain is not None
        connection.send(self._chain.packed(commit, connection.run_id), self._answered)

    def _answered(self, reply: Any) -> None:
        # Answers come in the order of `chain.pending`. Those of commits that a restoration or a new lead
        # has superseded come before it is through, so none of them meets the phase LEADING.
        if self._phase is not _Phase.LEADING or self._chain is None:
            return
        if reply == APPLIED:
            self._applied(self._chain, None)
        elif type(reply) is list:
            self._applied(self._chain, reply[1])
        elif reply == CHAIN_BROKEN:
            self._break()
        elif reply == FENCED:
            self._fence()
        elif self._connection is not None:
            # Full, read-only, scripts flushed …: nothing was written, and nothing behind it fits the chain.
            assert isinstance(reply, hiredis.ReplyError)
            self._connection.abort(str(self._connection.error_of(reply)))

    def _applied(self, chain: CommitChain, known: bytes | None) -> None:
        chain.resolve_oldest(known)
        if self._trouble is not None:
            self._works()

    def _break(self) -> None:
        self._phase = _Phase.BROKEN
        self._announce()
        self._on_gap()

    def _fence(self) -> None:
        self._step_down(_Phase.FENCED, self._fenced())

    def _fenced(self) -> Fenced:
        return Fenced(f"lane {self._lane}: another dispatcher leads it now")

    def _step_down(self, phase: _Phase, error: DispatcherError) -> None:
        chain, restoration = self._chain, self._restoration
        self._chain = self._restoration = None
        self._phase = phase
        fail(restoration.futures if restoration else [], error)
        fail(chain.supersede() if chain else [], error)
        self._announce()

    def _works(self) -> None:
        self._trouble = None
        self._backoff_s = _BACKOFF_S_MIN
        self._announce()

    def _announce(self) -> None:
        if self._announced != self.available:
            self._announced = self.available
            self._on_available(self._announced)

    # --- connections -----------------------------------------------------------------------------------

    async def _connect(self) -> RedisConnection:
        connection = await RedisConnection.open(
            self._settings, self._connection_name, self._lost, self._keys.meta
        )
        try:
            await connection.call("SCRIPT", "LOAD", COMMIT)
        except BaseException:
            connection.abort("the greeting failed")
            raise
        return connection

    async def _connect_now(self) -> RedisConnection:
        if self._reconnecting is not None:
            self._reconnecting.cancel()
            self._reconnecting = None
        try:
            connection = await self._connect()
            self._adopt(connection)
        except DispatcherError as error:
            self._trouble = str(error)
            self._announce()
            self._reconnect_soon()
            raise
        return connection

    def _adopt(self, connection: RedisConnection) -> None:
        """Use it from now on, first for all that is unanswered."""
        if connection.lost is not None:
            raise StoreUnavailable(connection.lost)
        self._connection = connection
        self._run_id = connection.run_id
        if self._phase is _Phase.LEADING and self._chain is not None and self._chain.pending:
            for commit in self._chain.pending:  # the first answer tells whether Redis works
                self._send(connection, commit)
        elif self._phase is _Phase.RESTORING:
            self._write_back_soon()
        else:
            self._works()

    def _lost(self, connection: RedisConnection, reason: str) -> None:
        if connection is not self._connection:
            return
        self._connection = None
        if self._phase is not _Phase.CLOSED:
            self._trouble = reason
            self._announce()
            self._reconnect_soon()

    def _reconnect_soon(self) -> None:
        if self._reconnecting is None or self._reconnecting.done():
            self._reconnecting = self._loop.create_task(self._reconnect())

    async def _reconnect(self) -> None:
        while True:
            await asyncio.sleep(self._backoff_s * (1 - self.backoff_jitter * random.random()))
            self._backoff_s = min(2 * self._backoff_s, _BACKOFF_S_MAX)
            try:
                await self._resume(await self._connect())
                return
            except DispatcherError as error:
                self._trouble = str(error)

    async def _resume(self, connection: RedisConnection) -> None:
        """Compare the chain with Redis before this connection is used, so that a loss is noticed at once."""
        chain, outcome = self._chain, APPLIED
        try:
            if self._phase is _Phase.LEADING and chain is not None:
                outcome = await connection.call(*chain.verification(self._run_id, connection.run_id))
        except BaseException:
            connection.abort("the chain could not be verified")
            raise
        if self._phase is _Phase.LEADING and chain is self._chain:
            if outcome == CHAIN_BROKEN:
                self._break()
            elif outcome == FENCED:
                self._fence()
        self._adopt(connection)

    # --- restoration -----------------------------------------------------------------------------------

    def _write_back_soon(self) -> None:
        if self._writing_back is None or self._writing_back.done():
            self._writing_back = self._loop.create_task(self._write_back())

    async def _write_back(self) -> None:
        while (restoration := self._restoration) is not None and (connection := self._connection) is not None:
            self._restoration_runs += 1
            try:
                outcome = await restoration.write(connection, self._keys, self._restoration_runs)
            except DispatcherError as error:
                connection.abort(str(error))  # the next connection begins again
                return
            if restoration is not self._restoration:
                continue
            if outcome == APPLIED:
                self._restored(restoration)
            elif outcome == FENCED:
                self._fence()
            else:  # emptied again while it was written
                await asyncio.sleep(_BACKOFF_S_MIN)

    def _restored(self, restoration: Restoration) -> None:
        assert self._chain is not None
        self._restoration = None
        self._chain.applied = restoration.ordinal
        self._phase = _Phase.LEADING
        if self._connection is not None:
            for commit in self._chain.pending:  # before a listener can commit more
                self._send(self._connection, commit)
        resolve(restoration.futures)
        self._works()
