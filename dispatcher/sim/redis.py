"""A modelled Redis: what the lane's scripts do to their keys, restarts, and writes that a restart loses.

The scripts themselves run on the real Redis only; `tests/sim/contract` holds these against them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from struct import Struct
from typing import Any, Final

import hiredis

from dispatcher.core.operators.commands import RESULTS_KEPT_MAX
from dispatcher.errors import StoreUnavailable
from dispatcher.redis_store.connection import RedisConnection
from dispatcher.redis_store.scripts import BEGIN_RESTORE, COMMIT_SHA, LEAD, VERIFY, pack
from dispatcher.redis_store.tables import TABLES
from dispatcher.sim.loop import Handle, ProcessLoop, Scheduler
from dispatcher.sim.pipes import Pipe

_read_length: Final = Struct(">I").unpack_from
_read_id_range: Final = Struct(">QI").unpack_from
_SILENCE_MS: Final = 2_000  # after which a connection is given up, as with the default settings


class Keys:
    """One lane's keys."""

    def __init__(self) -> None:
        self.meta: dict[bytes, bytes] = {}
        self.journal: list[tuple[int, bytes]] = []  # (ordinal, blob)
        self.owners: dict[bytes, bytes] = {}
        self.incarnations: dict[bytes, bytes] = {}
        self.commands: dict[bytes, bytes] = {}
        self.command_order: list[bytes] = []
        self.flags: dict[bytes, bytes] = {}
        self.ids: dict[bytes, int] = {}  # when they entered the window
        self.sequences: dict[bytes, bytes] = {}

    # -- the scripts; arguments and answers as Redis has them --

    def refusal(self, leader: bytes) -> bytes:
        held = self.meta.get(b"leader")
        if held is None or held == leader:
            return b"gap"
        theirs, ours = _epoch(held), _epoch(leader)
        return b"gap" if theirs is not None and ours is not None and theirs < ours else b"fenced"

    def lead(self, seconds: bytes, token: bytes, *names: bytes) -> list[bytes]:
        meta = self.meta
        epoch = max((_epoch(meta.get(b"leader", b"")) or 0) + 1, int(seconds))
        ordinal = _number(meta.get(b"ordinal"))
        known: list[str] = []
        if ordinal is not None and b"inbounds" in meta:
            known = json.loads(meta[b"inbounds"])
        known += [name.decode() for name in names if name.decode() not in known]
        inbounds = json.dumps(known, separators=(",", ":")).encode()
        meta[b"leader"] = b"%d %s" % (epoch, token)
        meta[b"inbounds"] = inbounds
        if ordinal is None:
            meta[b"ordinal"] = b"0"
            meta.pop(b"run_id", None)
            self.journal, self.ids, self.sequences = [], {}, {}
            return [b"%d" % epoch, b"0", b"", inbounds]
        return [b"%d" % epoch, b"%d" % ordinal, meta.get(b"run_id", b""), inbounds]

    def commit(
        self, leader: bytes, before: bytes, ordinal: bytes, run_id: bytes, blob: bytes, checkpoint: bytes,
        *tables: bytes,
    ) -> bytes | list[bytes]:  # fmt: skip
        meta, window = self.meta, tables[TABLES:]
        if meta.get(b"leader") != leader or meta.get(b"ordinal") != before:
            stored, own = _number(meta.get(b"ordinal")), _number(ordinal)
            same = meta.get(b"leader") == leader
            if same and stored is not None and own is not None and stored >= own:
                return self._applied(*window)
            return self.refusal(leader)
        own = _number(ordinal)
        if blob:
            assert own is not None
            self.journal.append((own, blob))
        if checkpoint:
            assert own is not None
            self.journal = [entry for entry in self.journal if entry[0] >= own]
        if tables:
            self._change(*tables[:TABLES])
        if window:
            self._enter(*window)
        meta[b"ordinal"] = ordinal
        if run_id:
            meta[b"run_id"] = run_id
        return self._applied(*window)

    def _enter(
        self, entered: bytes, doubted: bytes, asked: bytes, now: bytes, window: bytes, kept: bytes
    ) -> None:
        for ranges, prefix in ((entered, b""), (doubted, b"v")):
            at = 0
            while at < len(ranges):
                at_ms, length = _read_id_range(ranges, at)
                for first in range(at + 12, at + 12 + length, 16):
                    member = prefix + ranges[first : first + 16]
                    self.ids[member] = max(at_ms, self.ids.get(member, 0))
                at += 12 + length
        oldest = sorted(self.ids, key=self.ids.__getitem__)
        over = [member for member in oldest if self.ids[member] < int(now) - int(window)]
        for member in oldest[: max(len(over), len(oldest) - int(kept))]:
            del self.ids[member]

    def _applied(
        self, entered: bytes = b"", doubted: bytes = b"", asked: bytes = b"", now: bytes = b"0",
        window: bytes = b"0", kept: bytes = b"0",
    ) -> bytes | list[bytes]:  # fmt: skip
        if not asked:
            return b"applied"
        since = int(now) - int(window)
        questions = [(asked[at : at + 16], asked[at + 16 : at + 32]) for at in range(0, len(asked), 32)]
        within = {one for one, at_ms in self.ids.items() if at_ms >= since}
        known = [one in within and b"v" + copy not in self.ids for one, copy in questions]
        return [b"applied", b"".join(b"1" if is_known else b"0" for is_known in known)]

    def _change(
        self, owners: bytes, forgotten: bytes, rows: bytes, over: bytes, results: bytes, flags: bytes,
        unset: bytes, sequences: bytes, unknown: bytes,
    ) -> None:  # fmt: skip
        self.sequences.update(_pairs(sequences))
        for field in _unpacked(unknown):
            self.sequences.pop(field, None)
        self.flags.update(_pairs(flags))
        for field in _unpacked(unset):
            self.flags.pop(field, None)
        self.owners.update(_pairs(owners))
        for field in _unpacked(forgotten):
            self.owners.pop(field, None)
        self.incarnations.update(_pairs(rows))
        for field in _unpacked(over):
            self.incarnations.pop(field, None)
        for uuid, result in _pairs(results):
            if uuid not in self.commands:
                self.command_order.append(uuid)
            self.commands[uuid] = result
        while len(self.command_order) > RESULTS_KEPT_MAX:
            del self.commands[self.command_order.pop(0)]

    def verify(self, leader: bytes, ordinal: bytes, run_before: bytes, run_now: bytes) -> bytes:
        meta = self.meta
        stored = _number(meta.get(b"ordinal"))
        if meta.get(b"leader") != leader or stored is None or stored < int(ordinal):
            return self.refusal(leader)
        if meta.get(b"run_id") == run_before and run_before != run_now:
            meta[b"run_id"] = run_now
        return b"applied"

    def begin_restore(self, leader: bytes, ordinal: bytes, run: bytes, inbounds: bytes) -> bytes:
        meta = self.meta
        if meta.get(b"leader") != leader:
            if self.refusal(leader) == b"fenced":
                return b"fenced"
        else:
            stored = meta.get(b"ordinal", b"")
            if stored.startswith(b"restoring:") and int(stored[10:]) >= int(run):
                return b"gap"
            number = _number(stored)
            if number is not None and number >= int(ordinal):
                return b"applied"
        meta.update({b"leader": leader, b"ordinal": b"restoring:" + run, b"inbounds": inbounds})
        meta.pop(b"run_id", None)
        self.journal, self.owners, self.incarnations = [], {}, {}
        self.flags, self.sequences = {}, {}
        return b"begun"

    def table(self, key: bytes) -> dict[bytes, bytes]:
        word = key.rpartition(b":")[2].decode()
        found: dict[bytes, bytes] = getattr(self, word)
        return found


class Redis:
    """The server. Every command that was carried out is kept, so that a restart can lose the last ones."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.up = True
        self.restarts = 0
        self.keys = Keys()
        self.connections: list[SimRedisConnection] = []
        self.slow_ms = 0  # how much later every answer comes, for a while
        #: Called before and after a commit is carried out: where a fault may strike.
        self.around_commit: Callable[[SimRedisConnection, bool], None] | None = None
        #: Called with (leader, ordinal) when a commit is stored for the first time.
        self.on_commit: Callable[[bytes, int], None] | None = None
        #: Called with the lane epoch that a new leader got.
        self.on_lead: Callable[[int], None] | None = None
        self.answers: Counter[str] = Counter()  # to commits
        self._log: list[tuple[bytes, tuple[bytes, ...]]] = []

    @property
    def run_id(self) -> str:
        return f"run{self.restarts}"

    # -- commands --

    def execute(self, arguments: list[bytes]) -> Any:
        name = arguments[0]
        if name == b"EVALSHA" or name == b"EVAL":
            count = int(arguments[2])
            return self._script(arguments[1], tuple(arguments[3 + count :]))
        if name == b"HGET":
            return self.keys.meta.get(arguments[2])
        if name == b"XRANGE":
            return self._range(arguments)
        if name == b"LRANGE":
            return list(self.keys.command_order)
        if name == b"HSCAN":
            rows = self.keys.table(arguments[1])
            return [b"0", [part for pair in rows.items() for part in pair]]
        return b"OK"

    def _script(self, script: bytes, arguments: tuple[bytes, ...]) -> Any:
        self._log.append((script, arguments))
        if script == COMMIT_SHA.encode():
            before = self.keys.meta.get(b"ordinal")
            answer = self.keys.commit(*arguments)
            changed = self.keys.meta.get(b"ordinal") != before
            outcome = answer[0] if isinstance(answer, list) else answer
            self.answers[outcome.decode() if changed or outcome != b"applied" else "applied before"] += 1
            if outcome == b"applied" and changed and self.on_commit is not None:
                self.on_commit(arguments[0], int(arguments[2]))
            return answer
        answer = self._rare(script)(*arguments)
        if script == LEAD and self.on_lead is not None:
            self.on_lead(int(answer[0]))
        return answer

    def _rare(self, script: bytes) -> Callable[..., Any]:
        scripts: dict[bytes, Callable[..., Any]] = {
            LEAD: self.keys.lead, VERIFY: self.keys.verify, BEGIN_RESTORE: self.keys.begin_restore,
        }  # fmt: skip
        return scripts[script]

    def _range(self, arguments: list[bytes]) -> Any:
        start = arguments[2]
        after = int(start[1:].partition(b"-")[0]) if start != b"-" else -1
        count = int(arguments[5])
        found = [entry for entry in self.keys.journal if entry[0] > after][:count]
        return [[b"%d-0" % ordinal, [b"r", blob]] for ordinal, blob in found]

    # -- faults --

    def restart(self, lost_commands: int | None) -> None:
        """Redis starts again, without the last commands (None: without anything)."""
        self.restarts += 1
        self.up = True
        if lost_commands == 0:
            return
        log = [] if lost_commands is None else self._log[: max(0, len(self._log) - lost_commands)]
        self.keys = Keys()
        self._log = log
        for script, arguments in log:
            (self.keys.commit if script == COMMIT_SHA.encode() else self._rare(script))(*arguments)

    def stop(self) -> None:
        self.up = False
        for connection in list(self.connections):
            connection.cut("Redis closed the connection")


class SimRedisConnection:
    """The part of `RedisConnection` that the store needs, on the model."""

    def __init__(
        self, redis: Redis, process: ProcessLoop, on_lost: Callable[[Any, str], None], way_ms: int = 0
    ) -> None:
        self.lost: str | None = None
        self.run_id = redis.run_id
        self._redis = redis
        self.process = process
        self._on_lost = on_lost
        self._waiters: list[Callable[[Any], None]] = []
        self._calls: list[Any] = []
        self._reader = hiredis.Reader()
        self._up = Pipe(redis.scheduler, None, self._arrived)
        self._down = Pipe(redis.scheduler, process, self._answered)
        self.way_ms = way_ms  # how long a command or an answer takes, beside what every way takes
        redis.connections.append(self)

    # -- the store's side --

    def send(self, packed: bytes, on_reply: Callable[[Any], None]) -> None:
        if self.lost is not None or self.process.dead:
            return
        self._waiters.append(on_reply)
        self._reader.feed(packed)
        self._up.slow_ms = self.way_ms
        self._up.send(self._reader.gets())
        if self._redis.slow_ms:
            self._redis.scheduler.at(
                self._redis.scheduler.now_ms + _SILENCE_MS, Handle(self.process, self._overdue, (on_reply,))
            )

    def _overdue(self, waiter: Callable[[Any], None]) -> None:
        if any(waiting is waiter for waiting in self._waiters):
            self.abort("Redis did not answer in time")

    async def call(self, *arguments: Any) -> Any:
        if self.lost is not None:
            raise StoreUnavailable(self.lost)
        future = self.process.create_future()
        self._calls.append(future)
        self.send(pack(*arguments), lambda reply: None if future.done() else future.set_result(reply))
        try:
            return await future
        finally:
            self._calls.remove(future)

    error_of = RedisConnection.error_of

    def abort(self, reason: str) -> None:
        if self.lost is not None:
            return
        self.lost = reason
        self._up.cut(self._gone)
        self._down.cut(everything_lost=True)
        self._waiters.clear()
        for future in self._calls:
            if not future.done():
                future.set_exception(StoreUnavailable(reason))
        self._on_lost(self, reason)

    async def wait_closed(self) -> None:
        """There is no socket to wait for."""

    # -- the server's side --

    def _arrived(self, batch: list[list[bytes]]) -> None:
        redis = self._redis
        for arguments in batch:
            if not redis.up:
                return
            is_commit = arguments[0] == b"EVALSHA"
            if is_commit and redis.around_commit is not None:
                redis.around_commit(self, False)
            answer = redis.execute(arguments)
            if is_commit and redis.around_commit is not None:
                redis.around_commit(self, True)
            self._down.slow_ms = self.way_ms + redis.slow_ms
            self._down.send(answer)

    def _answered(self, batch: list[Any]) -> None:
        for reply in batch:
            if self.lost is not None or not self._waiters:
                return
            self._waiters.pop(0)(reply)

    def _gone(self) -> None:
        if self in self._redis.connections:
            self._redis.connections.remove(self)

    # -- faults --

    def cut(self, why: str, *, told: bool = True) -> None:
        """The connection breaks; a prefix of the commands is carried out, a prefix of the answers comes."""
        self._gone()
        self._up.cut()
        if told:
            self._down.cut(lambda: self.abort(why))
        else:
            self.lost = why
            self._down.cut(everything_lost=True)


def _epoch(leader: bytes) -> int | None:
    return _number(leader.partition(b" ")[0])


def _number(value: bytes | None) -> int | None:
    return int(value) if value and value.isdigit() else None


def _unpacked(packed: bytes) -> list[bytes]:
    fields, at = [], 0
    while at < len(packed):
        (length,) = _read_length(packed, at)
        fields.append(packed[at + 4 : at + 4 + length])
        at += 4 + length
    return fields


def _pairs(packed: bytes) -> list[tuple[bytes, bytes]]:
    fields = _unpacked(packed)
    return list(zip(fields[::2], fields[1::2], strict=True))
