"""Who leads a lane, who stands by, how leaderships ended, who is to lead next: replicas tell it in Redis.

Nothing depends on it: a Redis that is away, or refuses, only makes it unknown. Clocks of hosts differ:
whether a replica still stands by is judged by whether its row changes, by the leader's own clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count
from typing import Any, Final

import structlog

from dispatcher.errors import DispatcherError
from dispatcher.redis_store.connection import RedisConnection
from dispatcher.redis_store.scripts import LaneKeys, pack
from dispatcher.redis_store.snapshot import read_table
from dispatcher.settings import RedisSettings

log = structlog.get_logger()

#: How often a standby says that it is there, and the leader looks.
BEAT_S: Final = 3.0
#: A standby that has said nothing for so long is gone.
GONE_S: Final = 10.0
LEADERSHIPS_KEPT: Final = 20
ON_PURPOSE: Final = "on purpose (stopped, or led anew)"
_LEADERSHIPS: Final = b"leaderships"
_STANDBY: Final = b"standby "
_ENDED: Final = b"ended "
_HEIR: Final = b"heir"
#: So long a replica that wants to lead waits for the answer whether another one is to.
HEIR_KNOWN_S: Final = 1.0
#: So long a replica that ends waits until Redis has why its leadership ended.
END_TOLD_S: Final = 1.0


def this_process() -> str:
    """How a dispatcher is named to people: host and process id."""
    return f"{socket.gethostname()}:{os.getpid()}"


@dataclass(slots=True)
class LedBy:
    """One dispatcher's time as the leader, by its own clock."""

    lane_epoch: int
    dispatcher: str
    began_ms: int
    ended_ms: int | None = None  # None: it lasts, or ended without a word
    why: str | None = None


@dataclass(slots=True)
class _Heard:
    """A standby's row as it was last seen to change."""

    row: bytes
    at_s: float
    since_ms: int
    leads: int | None  # how many lanes it leads; None: a version that does not say
    lives: bool  # this leadership has seen the row change


class Replicas:
    """One runner's part: it stands by or leads, and says so. The leader knows the others."""

    beat_s: float = BEAT_S
    gone_s: float = GONE_S

    def __init__(
        self, settings: RedisSettings, lane: str, prefix: str, now_ms: Callable[[], int],
        leads: Callable[[], int] = lambda: 0,
    ) -> None:  # fmt: skip
        """`leads`: how many lanes this process leads."""
        self._settings = settings
        self._name = f"{prefix}.{lane}.replicas"
        self._lane = lane
        self._key = LaneKeys.of(prefix, lane).replicas
        self._now_ms = now_ms
        self._leads = leads
        self._connection: RedisConnection | None = None
        self._leaderships: list[LedBy] = []  # the newest first
        self._heard: dict[str, _Heard] | None = None  # by name; None: not known
        self._made_way_for = b""  # the row that named another one
        self._end_told = asyncio.Event()  # Redis has the end of the latest leadership, or there was none
        self._end_told.set()

    @property
    def me(self) -> str:
        """This replica's name."""
        return this_process()

    async def stand_by(self) -> None:
        """Say so again and again, until cancelled."""
        since_ms = self._now_ms()
        for beat in count():
            row = json.dumps({"since_ms": since_ms, "beat": beat, "leads": self._leads()})
            await self._try(partial(self._call, "HSET", self._key, self._standby(), row))
            await asyncio.sleep(self.beat_s)

    async def lead(self, lane_epoch: int) -> None:
        """Say who leads, and look who stands by, until cancelled."""
        self._leaderships = [LedBy(lane_epoch, self.me, self._now_ms())]
        self._heard = None
        has_begun = False
        while True:
            has_begun = has_begun or await self._try(self._begin)
            if not (has_begun and await self._try(self._look)):
                self._heard = None
            await asyncio.sleep(self.beat_s)

    def ended(self, why: str | None) -> None:
        """The leadership is over. The next leader reads it, if Redis can be reached now; None: on purpose."""
        if not self._leaderships or self._connection is None:
            return
        field = _ENDED + str(self._leaderships[0].lane_epoch).encode()
        row = json.dumps({"ended_ms": self._now_ms(), "why": why or ON_PURPOSE})
        self._end_told.clear()
        self._connection.send(pack("HSET", self._key, field, row), lambda _: self._end_told.set())
        self._leaderships = []

    def others(self) -> dict[str, int]:
        """Of a leader: how many lanes each replica leads that stands by and says so.

        A row may be of a replica that has ended, so only those count whose row has changed since this
        leadership began. Else a lane would be given to a dead one, again by each next leadership.
        """
        heard = self._heard or {}
        return {name: each.leads for name, each in heard.items() if each.lives and each.leads is not None}

    async def name_heir(self, heir: str) -> bool:
        """This leadership is about to end, and that one is to lead next. False: Redis can't be told."""
        after = self._leaderships[0].lane_epoch if self._leaderships else 0  # so no two rows are the same
        row = json.dumps({"heir": heir, "after": after})
        return await self._try(partial(self._call, "HSET", self._key, _HEIR, row))

    async def makes_way(self) -> bool:
        """Whether this one, which could lead now, leaves that to another; once for each time that one was
        named, so that a lane whose heir is gone is led by somebody else."""
        row = b""

        async def look() -> None:
            nonlocal row
            async with asyncio.timeout(HEIR_KNOWN_S):
                row = await self._call("HGET", self._key, _HEIR) or b""

        with contextlib.suppress(TimeoutError):
            await self._try(look)
        heir = _read(row).get("heir")
        if not isinstance(heir, str) or heir == self.me or row == self._made_way_for:
            return False
        self._made_way_for = row
        return True

    async def end_told(self) -> None:
        """Until Redis has how the latest leadership ended, or END_TOLD_S. A connection that ends at once may
        take with it what Redis has not read yet."""
        if self._connection is not None and self._connection.lost is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(END_TOLD_S):
                    await self._end_told.wait()

    async def close(self) -> None:
        """Leave Redis."""
        try:
            await self.end_told()
        finally:  # whoever stops a lane may cancel this
            if self._connection is not None:
                self._connection.abort("left")

    def status(self) -> dict[str, Any]:
        """Of a leader: who stands by (None: not known yet), and the latest leaderships, this one first."""
        now_ms, heard = self._now_ms(), self._heard
        standbys = None if heard is None else [
            {"dispatcher": name, "since_ms": now_ms - each.since_ms, "leads": each.leads}
            for name, each in sorted(heard.items())
        ]  # fmt: skip
        leaderships = [
            {
                **asdict(each),
                "began_ms": now_ms - each.began_ms,
                "ended_ms": None if each.ended_ms is None else now_ms - each.ended_ms,
            }
            for each in self._leaderships
        ]
        return {"standbys": standbys, "leaderships": leaderships}

    def _standby(self) -> bytes:
        return _STANDBY + self.me.encode()

    async def _try(self, act: Callable[[], Any]) -> bool:
        try:
            await act()
        except DispatcherError as away:
            log.debug("replicas_unknown", lane=self._lane, problem=str(away))
            return False
        return True

    async def _call(self, *arguments: str | bytes | int) -> Any:
        return await (await self._connected()).call(*arguments)

    async def _connected(self) -> RedisConnection:
        if self._connection is None or self._connection.lost is not None:
            self._connection = await RedisConnection.open(
                self._settings, self._name, lambda *_: None, self._key
            )
        return self._connection

    async def _begin(self) -> None:
        """Put this leadership before the former ones. As a leader this process does not stand by."""
        await self._call("HDEL", self._key, self._standby(), _HEIR)
        stored = (await read_table(await self._connected(), self._key)).get(_LEADERSHIPS, b"")
        own = self._leaderships[0]
        former = [each for each in _read_leaderships(stored) if each.lane_epoch < own.lane_epoch]
        self._leaderships = [own, *former][:LEADERSHIPS_KEPT]

    async def _look(self) -> None:
        table = await read_table(await self._connected(), self._key)
        over = self._hear_ends(table)
        gone = self._hear_standbys(table)
        written = json.dumps([asdict(each) for each in self._leaderships]).encode()
        if written != table.get(_LEADERSHIPS):
            await self._call("HSET", self._key, _LEADERSHIPS, written)
        if over or gone:
            await self._call("HDEL", self._key, *over, *gone)

    def _hear_ends(self, table: dict[bytes, bytes]) -> list[bytes]:
        """How former leaderships ended. Returns the fields that said it."""
        fields = [field for field in table if field.startswith(_ENDED)]
        for each in self._leaderships[1:]:
            row = _read(table.get(_ENDED + str(each.lane_epoch).encode(), b""))
            if isinstance(ended_ms := row.get("ended_ms"), int):
                each.ended_ms, each.why = ended_ms, str(row.get("why"))
        return fields

    def _hear_standbys(self, table: dict[bytes, bytes]) -> list[bytes]:
        """Who stands by. Returns the fields of those that are gone."""
        now_s, before, heard, gone = time.monotonic(), self._heard or {}, {}, []
        for field, row in table.items():
            if not field.startswith(_STANDBY):
                continue
            name = field.removeprefix(_STANDBY).decode(errors="replace")
            known = before.get(name)
            if known is None or known.row != row:
                said = _read(row)
                since_ms, leads = said.get("since_ms"), said.get("leads")
                known = _Heard(
                    row, now_s, since_ms if isinstance(since_ms, int) else self._now_ms(),
                    leads if isinstance(leads, int) else None, known is not None,
                )  # fmt: skip
            if now_s - known.at_s < self.gone_s:
                heard[name] = known
            else:
                gone.append(field)
        self._heard = heard
        return gone


def _read(row: bytes) -> dict[str, Any]:
    """What a row says; nothing, if it is not ours."""
    try:
        said = json.loads(row)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _read_leaderships(stored: bytes) -> list[LedBy]:
    try:
        return [LedBy(**row) for row in json.loads(stored or b"[]")]
    except (ValueError, TypeError):  # of another version
        return []
