"""One connection to Redis: commands out, replies back in order, each handed to its caller.

A protocol on asyncio's transport with hiredis' parser. A client library's per-command machinery would cost
the commit path more than twice as much, and none of it is needed for a pipeline that one task owns.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, Self, TypeVar, cast

import hiredis

from dispatcher.addresses import connect_to_any
from dispatcher.certificates import client_context
from dispatcher.errors import ConfigurationError, DispatcherError, StoreUnavailable
from dispatcher.redis_store.cluster import SLOTS, first_answer, primary_in, slot_of
from dispatcher.redis_store.scripts import Argument, pack
from dispatcher.redis_store.sentinel import master_of
from dispatcher.redis_store.tls import connect_problem, greeting_problem, silence_problem
from dispatcher.settings import RedisSettings

#: XTRIM MINID, ZADD GT and an exclusive start of XRANGE came with it.
VERSION_MIN: Final = (6, 2)
#: How often, within the timeout, the connection looks whether an answer is overdue.
_LOOKS_PER_TIMEOUT: Final = 4
#: hiredis' word for "no whole reply yet": None and False are replies.
_NOTHING: Final = object()
#: Error replies that somebody has to do something about; waiting doesn't help.
_SETTINGS_ERRORS: Final = ("NOAUTH", "WRONGPASS", "NOPERM", "ERR AUTH", "ERR DB index", "ERR invalid DB")
#: Why Redis may refuse every write for a while, and what operators can do.
_WRITE_REFUSALS: Final = {
    "OOM": "is full: raise its maxmemory, or free memory",
    "READONLY": "is a read-only replica: {key} must name its master",
    "MISCONF": "refuses writes because it can't save its data: look at its disk and log",
    "NOREPLICAS": "refuses writes because too few replicas follow it",
}
#: A node of a Redis Cluster does not have the keys, or not all of them while they move to another node.
_ELSEWHERE: Final = ("MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN")
_NO_CLUSTER: Final = "ERR This instance has cluster support disabled"
#: The word stands first, or before Redis 7 behind the text of a script's error.
_WRITE_REFUSED: Final = re.compile(rf"(?:^|-)({'|'.join(_WRITE_REFUSALS)})\b")

T = TypeVar("T")


class RedisConnection(asyncio.Protocol):
    """A greeted connection. Not usable any more once `lost` has a text."""

    def __init__(self, settings: RedisSettings, on_lost: Callable[[RedisConnection, str], None]) -> None:
        self.lost: str | None = None
        self.server: dict[str, str] = {}  # sections "server" and "replication" of INFO
        address = settings.address
        self._where = f"{address.host}:{address.port}"
        self._is_named = False  # a Sentinel, or a node of its cluster, has named this server
        self._settings = settings
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)
        self._waiters: deque[Callable[[Any], None]] = deque()
        self._calls: set[asyncio.Future[Any]] = set()
        self._transport: asyncio.WriteTransport | None = None
        self._closed = asyncio.Event()
        self._timeout_s = settings.timeout_ms / 1000
        self._waiting_since = 0.0  # loop time of the last byte read, or of the first unanswered command
        self._looked_at = 0.0
        self._look: asyncio.TimerHandle | None = None

    @classmethod
    async def open(
        cls, settings: RedisSettings, name: str, on_lost: Callable[[RedisConnection, str], None],
        key: str = "",
    ) -> Self:  # fmt: skip
        """Connect, log in, select the database and read what server it is. Sentinels that the URL names are
        asked for the server first, nodes of a Redis Cluster for the one that has `key`, and several servers
        whether they are the master.

        `on_lost(connection, reason)` is called once, when a greeted connection ends by itself or by `abort`.
        Raises StoreUnavailable if it may work later, ConfigurationError if the configuration or the server
        must change.
        """
        asked = settings.address
        if asked.sentinels:
            settings = await master_of(settings)
        elif asked.nodes:
            settings = await cls._primary_of(settings, key)
        elif asked.servers:
            settings = await cls._master_among(settings)
        connection = cls(settings, lambda *_: None)
        connection._is_named = bool(asked.sentinels or asked.nodes)
        await connection._open(lambda: connection._greet(name))
        connection._on_lost = on_lost
        connection._look_after()
        return connection

    @classmethod
    async def _primary_of(cls, settings: RedisSettings, key: str) -> RedisSettings:
        """The same settings for the node alone that has the key: the first of the cluster's nodes says so
        that answers and sees a cluster that works."""
        address, slot = settings.address, slot_of(key)

        async def ask(host: str, port: int) -> RedisSettings:
            looking = cls(settings.at(host, port), lambda *_: None)
            found = primary_in(await looking._ask(looking._cluster_slots), slot)
            if found is None:
                raise StoreUnavailable(f"Redis at {host}:{port}: no node of its cluster has slot {slot}")
            return settings.at(found[0] or host, found[1])

        nodes = random.sample(address.nodes, len(address.nodes))
        return await first_answer([partial(ask, host, port) for host, port in nodes])

    @classmethod
    async def _master_among(cls, settings: RedisSettings) -> RedisSettings:
        """The same settings for the one server that is a master. All are asked: of two masters nobody knows
        which one has the latest commits."""
        masters: dict[str, RedisSettings] = {}  # by what names a server's process: one may have two names
        problems: list[DispatcherError] = []

        async def ask(host: str, port: int) -> None:
            looking = cls(settings.at(host, port), lambda *_: None)
            try:
                facts = await looking._ask(looking._facts)
            except DispatcherError as problem:
                problems.append(problem)
                return
            if facts.get("role") == "master":
                masters[facts.get("run_id") or looking._where] = looking._settings
            else:
                problems.append(StoreUnavailable(f"Redis at {looking._where} is a replica"))

        async with asyncio.TaskGroup() as group:
            for host, port in settings.address.servers:
                group.create_task(ask(host, port))
        if len(masters) > 1:
            places = ", ".join(sorted(f"{at.address.host}:{at.address.port}" for at in masters.values()))
            raise StoreUnavailable(
                f"{settings.url_key}: more than one server is a master ({places}): let the others be "
                "replicas of one, or use Redis Sentinel; a Redis Cluster is named as redis+cluster://"
            )
        if masters:
            return next(iter(masters.values()))
        if all(isinstance(problem, ConfigurationError) for problem in problems):
            raise problems[0]
        raise StoreUnavailable("; ".join(sorted({str(problem) for problem in problems})))

    async def _ask(self, question: Callable[[], Awaitable[T]]) -> T:
        """Connect, log in, ask, and leave."""
        answers: list[T] = []

        async def ask() -> None:
            await self._log_in()
            answers.append(await question())

        await self._open(ask)
        self.abort("answered")
        return answers[0]

    async def _cluster_slots(self) -> list[Any]:
        """Which nodes of a cluster have which slots."""
        facts = parse_server_facts(await self.call("CLUSTER", "INFO"))
        if facts.get("cluster_state") != "ok":
            raise StoreUnavailable(f"Redis at {self._where}: its cluster is {facts.get('cluster_state')}")
        return list(await self.call("CLUSTER", "SLOTS"))

    async def _facts(self) -> dict[str, str]:
        """What the server says about itself and its role."""
        facts = parse_server_facts(await self.call("INFO", "server"))
        return facts | parse_server_facts(await self.call("INFO", "replication"))

    async def _open(self, greet: Callable[[], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._connect()
                await greet()
        except TimeoutError:
            is_connected = self._transport is not None
            self.abort("no answer")
            raise silence_problem(self._settings, is_connected=is_connected) from None
        except BaseException:
            self.abort("the greeting failed")
            raise

    @property
    def run_id(self) -> str:
        """Names the server process, and its place in the history of fail-overs: a master that was a replica
        meanwhile may have missed writes. '' if the server does not say."""
        run_id = self.server.get("run_id", "")
        return f"{run_id} {self.server.get('master_replid', '')}" if run_id else ""

    async def _connect(self) -> None:
        address = self._settings.address
        context = client_context("redis", self._settings) if address.tls else None
        server_name = (self._settings.server_name or address.host) if address.tls else None
        try:
            await connect_to_any(
                lambda: self, address.host, address.port, context=context, server_name=server_name
            )
        except (OSError, UnicodeError) as error:
            raise connect_problem(self._settings, error) from None

    async def _log_in(self) -> None:
        address = self._settings.address
        if address.password is not None:
            user = () if address.user is None else (address.user,)
            await self.call("AUTH", *user, address.password)
        if address.database:
            await self.call("SELECT", address.database)

    async def _greet(self, name: str) -> None:
        await self._log_in()
        self.server = parse_server_facts(await self.call("INFO", "server"))
        with contextlib.suppress(DispatcherError):  # it only helps people who read CLIENT LIST
            await self.call("CLIENT", "SETNAME", name)
        problem = version_problem(self.server) or await self._kind_problem()
        if problem is not None:
            raise ConfigurationError(f"{self._settings.url_key}: {problem}")

    async def _kind_problem(self) -> str | None:
        """Why no server of this kind can work, or None. Raises StoreUnavailable for a replica: it may become
        a master."""
        self.server |= parse_server_facts(await self.call("INFO", "replication"))
        if self.server.get("role") == "slave":
            if self._is_named:
                raise StoreUnavailable(f"Redis at {self._where} is a replica still; a fail-over is under way")
            raise self._refusal("READONLY")
        mode = self.server.get("redis_mode") or self.server.get("server_mode")  # of Valkey
        if mode != "cluster" or self._is_named:
            return None
        facts = parse_server_facts(await self.call("CLUSTER", "INFO"))
        if facts.get("cluster_size") == "1" and facts.get("cluster_slots_ok") == str(SLOTS):
            return None
        return (
            "this is a node of a Redis Cluster that does not have all slots; name the cluster instead: "
            "redis+cluster://host1:port,host2:port"
        )

    # --- commands ------------------------------------------------------------------------------------

    def send(self, packed: bytes, on_reply: Callable[[Any], None]) -> None:
        """Write a packed command. `on_reply` gets its reply, which may be a hiredis.ReplyError.

        Replies come in the order of the commands; none comes any more once the connection is lost.
        """
        if self._transport is None or self.lost is not None:
            return
        if not self._waiters:
            self._waiting_since = self._loop.time()
        self._waiters.append(on_reply)
        self._transport.write(packed)

    async def call(self, *arguments: Argument) -> Any:
        """Send one command and wait for its reply.

        Raises ConfigurationError or StoreUnavailable for an error reply, StoreUnavailable when the connection
        ends before the reply.
        """
        if self.lost is not None:
            raise StoreUnavailable(self.lost)
        future: asyncio.Future[Any] = self._loop.create_future()
        self._calls.add(future)
        self.send(pack(*arguments), partial(_resolve, future))
        try:
            reply = await future
        finally:
            self._calls.discard(future)
        if isinstance(reply, hiredis.ReplyError):
            raise self.error_of(reply)
        return reply

    def error_of(self, reply: hiredis.ReplyError) -> DispatcherError:
        """The product's error for an error reply of Redis."""
        text, key = str(reply), self._settings.url_key
        if text.startswith(_SETTINGS_ERRORS):
            return ConfigurationError(f"{key}: Redis at {self._where} refuses us: {text}")
        if text.startswith(_NO_CLUSTER):
            return ConfigurationError(
                f"{key}: Redis at {self._where} is not in cluster mode: the URL must begin with redis://"
            )
        if text.startswith(_ELSEWHERE):
            return StoreUnavailable(
                f"Redis at {self._where} does not have all keys of the lane now ({text.split()[0]}): "
                "another node of the cluster has them, or gets them"
            )
        if text.startswith("ERR unknown command"):
            return ConfigurationError(f"{key}: Redis at {self._where} lacks what lanes need: {text}")
        code = _WRITE_REFUSED.search(text)
        if code is not None:
            return self._refusal(code[1])
        return StoreUnavailable(f"Redis at {self._where} answers {text}")

    def _refusal(self, code: str) -> StoreUnavailable:
        why = _WRITE_REFUSALS[code].format(key=self._settings.url_key)
        return StoreUnavailable(f"Redis at {self._where} {why} ({code})")

    def abort(self, reason: str) -> None:
        """End the connection now, for this reason. A second call does nothing."""
        if self.lost is not None:
            return
        self.lost = reason
        if self._look is not None:
            self._look.cancel()
        if self._transport is not None:
            self._transport.abort()
        self._waiters.clear()
        for future in self._calls:
            if not future.done():
                future.set_exception(StoreUnavailable(reason))
        self._on_lost(self, reason)

    # --- asyncio's side ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's is none by class

    def data_received(self, data: bytes) -> None:
        if self.lost is not None:
            return
        self._waiting_since = self._loop.time()
        reader, waiters = self._reader, self._waiters
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not _NOTHING:
                if not waiters:  # unless a waiter has just ended the connection: then this does nothing
                    self.abort(f"{self._where} does not speak like Redis (an answer to nothing)")
                    return
                waiters.popleft()(reply)
        except hiredis.ProtocolError as error:
            self.abort(f"{self._where} does not speak like Redis ({error})")

    def connection_lost(self, error: Exception | None) -> None:
        if not self.server and self.lost is None:
            self._fail_greeting(greeting_problem(self._settings, error))
        why = f": {error}" if error else ""
        self.abort(f"Redis at {self._where} closed the connection{why}")
        self._closed.set()

    async def wait_closed(self) -> None:
        """After `abort`: until the socket is gone."""
        await self._closed.wait()

    def _fail_greeting(self, problem: DispatcherError) -> None:
        for future in self._calls:
            if not future.done():
                future.set_exception(problem)

    def _look_after(self) -> None:
        """End the connection when an answer is overdue; while it is idle ask for one."""
        now = self._loop.time()
        period_s = self._timeout_s / _LOOKS_PER_TIMEOUT
        if self._looked_at and now - self._looked_at > 2 * period_s:
            self._waiting_since = now  # we stood still ourselves: what arrived meanwhile is not read yet
        self._looked_at = now
        if not self._waiters:
            if now - self._waiting_since >= self._timeout_s:
                self.send(b"*1\r\n$4\r\nPING\r\n", _ignore)
        elif now - self._waiting_since >= self._timeout_s:
            self.abort(f"Redis at {self._where} did not answer within {self._settings.timeout_ms} ms")
            return
        self._look = self._loop.call_later(period_s, self._look_after)


def parse_server_facts(text: bytes) -> dict[str, str]:
    """The fields of an INFO reply."""
    pairs = (line.partition(":") for line in text.decode(errors="replace").splitlines())
    return {name: value for name, colon, value in pairs if colon}


def version_problem(server: dict[str, str]) -> str | None:
    """The problem with the server's version, or None."""
    version = server.get("redis_version", "")
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers and numbers < VERSION_MIN:
        least = ".".join(map(str, VERSION_MIN))
        return f"this is Redis {version}; the dispatcher needs {least} or later"
    return None


def _resolve(future: asyncio.Future[Any], reply: Any) -> None:
    if not future.done():
        future.set_result(reply)


def _ignore(_: Any) -> None:
    pass
