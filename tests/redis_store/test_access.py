"""Who may speak to Redis, and in plain words why not."""

from __future__ import annotations

import asyncio
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import hiredis
import pytest
import redis.asyncio

from dispatcher.core.effects import IdRange, WindowChange
from dispatcher.core.orders import LookUp
from dispatcher.errors import ConfigurationError, StoreUnavailable
from dispatcher.nodes.local_redis import LocalRedis
from dispatcher.nodes.ports import free_ports
from dispatcher.redis_store import LaneStore, probe
from dispatcher.redis_store.connection import RedisConnection, version_problem
from dispatcher.redis_store.removal import look_at_lane, remove_keys
from dispatcher.redis_store.scripts import LaneKeys
from dispatcher.settings import RedisSettings
from tests.redis_store.certificates import SERVER_NAME, Certificates
from tests.redis_store.conftest import Lane, now_ms
from tests.redis_store.least_rights import documented
from tests.redis_store.samples import dispatched, entry, step
from tests.redis_store.sentinel_node import SERVICE, LocalSentinel
from tests.redis_store.test_lost_writes import answer_gaps_with, whole_state, write_state
from tests.waiting import eventually

KEYS = [LaneKeys.of("dispatch", "orders")]


async def store_at(**settings: Any) -> LaneStore:
    return await LaneStore.open(
        RedisSettings(timeout_ms=1000, **settings),
        "orders",
        uuid.uuid4().hex,
        on_gap=lambda: pytest.fail("a gap"),
    )


async def assert_works(**settings: Any) -> None:
    store = await store_at(**settings)
    await store.lead(now_ms(), ["in"])
    await store.commit(step(dispatched(1)))
    assert (await store.lead(now_ms(), ["in"])).records == [entry(dispatched(1))]
    await store.close()


def with_credentials(url: str, credentials: str, database: int = 0) -> str:
    return f"redis://{credentials}@127.0.0.1:{urlsplit(url).port}/{database}"


@pytest.fixture
def guarded_redis() -> Iterator[LocalRedis]:
    users = ["requirepass s3cret", "user reader on >r3ad ~* +info", "user writer on >wr%te ~* +@all"]
    with LocalRedis(config=users) as server:
        yield server


async def test_password_user_and_database_of_the_url_are_used(guarded_redis: LocalRedis) -> None:
    await assert_works(url=with_credentials(guarded_redis.url, ":s3cret"))
    await assert_works(url=with_credentials(guarded_redis.url, "writer:wr%25te", 3))
    async with redis.asyncio.Redis.from_url(with_credentials(guarded_redis.url, ":s3cret", 3)) as client:
        assert [key async for key in client.scan_iter("*:meta")]


@pytest.mark.parametrize(
    ("credentials", "problem"),
    [
        (":wrong", "WRONGPASS"),
        ("writer:s3cret", "WRONGPASS"),
        ("nobody:s3cret", "WRONGPASS"),
        ("", "NOAUTH"),
        ("reader:r3ad", "NOPERM"),
    ],
)
async def test_refused_credentials_are_a_configuration_error(
    guarded_redis: LocalRedis, credentials: str, problem: str
) -> None:
    url = with_credentials(guarded_redis.url, credentials).replace("//@", "//")
    with pytest.raises(ConfigurationError) as raised:
        await store_at(url=url)
    [line] = raised.value.problems
    assert line.startswith("redis.url: Redis at 127.0.0.1:")
    assert f"refuses us: {problem}" in line
    assert "s3cret" not in line
    assert f"refuses us: {problem}" in (await probe(RedisSettings(url=url), KEYS))[-1]


async def test_a_password_where_none_is_wanted_is_a_configuration_error(own_redis: LocalRedis) -> None:
    with pytest.raises(ConfigurationError, match=r"AUTH .* without any password configured"):
        await store_at(url=with_credentials(own_redis.url, ":s3cret"))


async def test_a_database_that_does_not_exist_is_a_configuration_error(own_redis: LocalRedis) -> None:
    with pytest.raises(ConfigurationError, match="DB index is out of range"):
        await store_at(url=own_redis.url.replace("/0", "/99"))


async def test_a_password_that_changes_makes_the_store_unavailable(guarded_redis: LocalRedis) -> None:
    url = with_credentials(guarded_redis.url, ":s3cret")
    store = await store_at(url=url)
    async with redis.asyncio.Redis.from_url(url) as client:
        await client.config_set("requirepass", "other")
        await client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await eventually(lambda: "WRONGPASS" in (store.problem or ""))
        await client.config_set("requirepass", "s3cret")
    await eventually(lambda: store.available)
    await store.close()


async def test_nobody_listens() -> None:
    [port] = free_ports(1)
    with pytest.raises(
        StoreUnavailable, match=rf"Redis at 127\.0\.0\.1:{port} can't be reached: Connection refused"
    ):
        await store_at(url=f"redis://127.0.0.1:{port}/0")


async def test_a_host_that_has_no_address() -> None:
    with pytest.raises(StoreUnavailable, match=r"Redis at nowhere\.invalid:6379 can't be reached: "):
        await store_at(url="redis://nowhere.invalid/0")
    with pytest.raises(StoreUnavailable, match="can't be reached: "):
        await store_at(url=f"redis://{'x' * 64}.example/0")


async def test_somebody_listens_and_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        with pytest.raises(StoreUnavailable, match="did not answer within 1000 ms"):
            await store_at(url=url)


@pytest.mark.parametrize(
    ("version", "fit"), [("5.0.14", False), ("6.0.16", False), ("6.2.0", True), ("7.2.4", True), ("", True)]
)
def test_a_redis_that_is_too_old_says_what_is_needed(version: str, fit: bool) -> None:
    problem = version_problem({"redis_version": version})
    assert problem == (None if fit else f"this is Redis {version}; the dispatcher needs 6.2 or later")


# --- TLS ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(params=["no", "yes"], ids=["server certificate", "both certificates"])
def tls_redis(request: pytest.FixtureRequest, certificates: Certificates) -> Iterator[LocalRedis]:
    [port] = free_ports(1)
    config = [
        f"tls-port {port}",
        f"tls-ca-cert-file {certificates.path('ca.pem')}",
        f"tls-cert-file {certificates.path('server.pem')}",
        f"tls-key-file {certificates.path('server.key')}",
        f"tls-auth-clients {request.param}",
    ]
    with LocalRedis(config=config) as server:
        server.tls_url = f"rediss://127.0.0.1:{port}/0"  # type: ignore[attr-defined]
        server.wants_certificate = request.param == "yes"  # type: ignore[attr-defined]
        yield server


async def test_tls(tls_redis: Any, certificates: Certificates) -> None:
    trusting = {"url": tls_redis.tls_url, "ca_file": certificates.path("ca.pem"), "server_name": SERVER_NAME}
    identity = {"cert_file": certificates.path("client.pem"), "key_file": certificates.path("client.key")}
    await assert_works(**trusting, **identity)
    settings = RedisSettings(**trusting, **identity)
    assert await probe(settings, KEYS) == []
    store = await LaneStore.open(settings, "orders", "dispatch", on_gap=lambda: pytest.fail("a gap"))
    await store.lead(now_ms(), ["in"])
    await store.close()
    there = (await look_at_lane(settings, "dispatch", "orders")).keys
    assert there
    await remove_keys(settings, there)
    assert not (await look_at_lane(settings, "dispatch", "orders")).keys
    if tls_redis.wants_certificate:
        # Redis closes right behind its alert, which may be overtaken by the reset.
        with pytest.raises((ConfigurationError, StoreUnavailable), match=r"redis\.cert_file"):
            await store_at(**trusting)
    else:
        await assert_works(**trusting)
    with pytest.raises(ConfigurationError, match=r"^redis\.url: the certificate of .* redis\.ca_file"):
        await store_at(url=tls_redis.tls_url)
    with pytest.raises(ConfigurationError, match=r"is not trusted .* redis\.server_name"):
        await store_at(url=tls_redis.tls_url, ca_file=certificates.path("ca.pem"))
    with pytest.raises(ConfigurationError, match="is not trusted"):
        await store_at(**{**trusting, "ca_file": certificates.path("stranger.pem")})
    with pytest.raises(StoreUnavailable, match="does it expect TLS"):
        await store_at(url=tls_redis.tls_url.replace("rediss", "redis"))


#: Who may ask a Sentinel, and whom it then knows; docs/security.md has the rights.
ASKERS = {
    "password": (["requirepass s3cret"], None),
    "user": (["user default off", "user lanes on >s3cret resetchannels -@all +sentinel|masters"], "lanes"),
}


@pytest.mark.parametrize(("config", "user"), ASKERS.values(), ids=ASKERS)
async def test_sentinels_that_want_a_password(
    own_redis: LocalRedis, tmp_path: Path, config: list[str], user: str | None
) -> None:
    file = tmp_path / "secret"
    with LocalSentinel(own_redis.url, config) as sentinel:
        url = f"redis+sentinel://127.0.0.1:{sentinel.port}/{SERVICE}"
        known = {"url": url, "sentinel_user": user, "sentinel_password": f"file:{file}"}
        file.write_text("s3cret\n")
        await assert_works(**known)
        assert await probe(RedisSettings(**known), KEYS) == []
        with pytest.raises(StoreUnavailable, match=r"\(see redis\.sentinel_password and sentinel_user\)$"):
            await store_at(url=url)
        file.write_text("hunter2\n")
        with pytest.raises(StoreUnavailable, match=r"see redis\.sentinel_password") as refused:
            await store_at(**known)
        assert "hunter2" not in str(refused.value)
        file.unlink()
        with pytest.raises(ConfigurationError, match=r"^redis\.sentinel_password: .* can't be read"):
            await store_at(**known)
        (problem,) = await probe(RedisSettings(**known), KEYS)
        assert problem.startswith("redis.sentinel_password: ")


async def test_tls_through_sentinel(tls_redis: Any, certificates: Certificates) -> None:
    config = [
        "tls-replication yes",
        f"tls-ca-cert-file {certificates.path('ca.pem')}",
        f"tls-cert-file {certificates.path('sentinel.pem')}",
        f"tls-key-file {certificates.path('sentinel.key')}",
        f"tls-auth-clients {'yes' if tls_redis.wants_certificate else 'no'}",
    ]
    with LocalSentinel(tls_redis.tls_url, config, tls=True) as sentinel:
        url = f"rediss+sentinel://127.0.0.1:{sentinel.port}/{SERVICE}/2"
        identity = {"cert_file": certificates.path("client.pem"), "key_file": certificates.path("client.key")}
        trusting = {"ca_file": certificates.path("ca.pem"), "server_name": SERVER_NAME}
        await assert_works(url=url, **trusting, **identity)
        with pytest.raises(StoreUnavailable, match="no Redis Sentinel of"):
            await store_at(url=url, **identity, server_name=SERVER_NAME)
        elsewhere = url.replace("127.0.0.1", "localhost")
        with pytest.raises(StoreUnavailable, match="no Redis Sentinel of"):
            await store_at(url=elsewhere, **trusting, **identity)


async def test_tls_to_a_cluster(certificates: Certificates) -> None:
    port, bus = free_ports(2)
    config = [
        f"tls-port {port}",
        f"tls-ca-cert-file {certificates.path('ca.pem')}",
        f"tls-cert-file {certificates.path('server.pem')}",
        f"tls-key-file {certificates.path('server.key')}",
        "cluster-enabled yes",
        "tls-cluster yes",
        f"cluster-port {bus}",
    ]
    with LocalRedis(config=config) as server:
        await _with_all_slots(server)
        identity = {"cert_file": certificates.path("client.pem"), "key_file": certificates.path("client.key")}
        trusting = {"url": f"rediss+cluster://127.0.0.1:{port}", "ca_file": certificates.path("ca.pem")}
        await assert_works(**trusting, **identity, server_name=SERVER_NAME)
        with pytest.raises(ConfigurationError, match=r"is not trusted .* redis\.server_name"):
            await store_at(**trusting, **identity)


async def test_tls_to_a_plain_port(own_redis: LocalRedis) -> None:
    with pytest.raises(StoreUnavailable, match=r"URL must begin with redis://"):
        await store_at(url=own_redis.url.replace("redis:", "rediss:"))


async def test_unreadable_certificate_files_are_named(certificates: Certificates, tmp_path: Path) -> None:
    url = "rediss://127.0.0.1:1/0"
    for ca_file in (str(tmp_path / "missing.pem"), certificates.path("request")):
        with pytest.raises(ConfigurationError, match=rf"^redis\.ca_file: {ca_file}: "):
            await store_at(url=url, ca_file=ca_file)
    with pytest.raises(ConfigurationError, match=r"^redis\.cert_file: .*client.pem and "):
        await store_at(
            url=url, cert_file=certificates.path("client.pem"), key_file=certificates.path("server.key")
        )


# --- probe -------------------------------------------------------------------------------------------------


async def test_a_fit_redis_has_no_problems(own_redis: LocalRedis) -> None:
    assert await probe(RedisSettings(url=own_redis.url), KEYS) == []


async def test_what_may_cost_data_is_a_warning() -> None:
    with LocalRedis(append_only=False, config=["maxmemory-policy allkeys-lru"]) as server:
        found = await probe(RedisSettings(url=server.url), KEYS)
    assert [line.partition(":")[0] for line in found] == ["warning", "warning"]
    assert "appendonly is off" in found[0]
    assert "maxmemory-policy is allkeys-lru" in found[1]


async def test_a_replica_is_a_problem(own_redis: LocalRedis) -> None:
    async with redis.asyncio.Redis.from_url(own_redis.url) as client:
        await client.execute_command("REPLICAOF", "127.0.0.1", "1")
    (problem,) = await probe(RedisSettings(url=own_redis.url), KEYS)
    assert problem.startswith("redis.url: Redis at")
    assert "is a read-only replica" in problem


async def test_an_unreachable_redis_is_a_problem() -> None:
    [port] = free_ports(1)
    [line] = await probe(RedisSettings(url=f"redis://127.0.0.1:{port}/0"), KEYS)
    assert line.startswith(f"redis.url: Redis at 127.0.0.1:{port} can't be reached")


async def test_probe_says_when_redis_is_full_or_nearly(own_redis: LocalRedis) -> None:
    async with redis.asyncio.Redis.from_url(own_redis.url) as client:
        # Much, against which what Redis needs meanwhile is little; made there, for what is sent takes room as
        # well, until Redis gives the buffer back.
        await client.setrange("much", 20_000_000, b"x")
        used = (await client.info("memory"))["used_memory"]
        await client.config_set("maxmemory", int(used * 1.05))
        [warning] = await probe(RedisSettings(url=own_redis.url), KEYS)
        assert warning.startswith("warning: redis.url: ")
        await client.config_set("maxmemory", 1)
        [problem] = await probe(RedisSettings(url=own_redis.url), KEYS)
        assert problem.startswith("redis.url: ")
        assert "of 1 bytes (maxmemory) are used" in problem


@pytest.mark.parametrize(
    "reply",
    [
        "OOM command not allowed when used memory > 'maxmemory'. script: 81de, on @user_script:25.",
        "ERR Error running script (call to f_81de): @user_script:25: -OOM command not allowed",
    ],
)
async def test_a_full_redis_is_said_to_be_full_in_every_version(own_redis: LocalRedis, reply: str) -> None:
    connection = await RedisConnection.open(RedisSettings(url=own_redis.url), "test", lambda *_: None)
    problem = connection.error_of(hiredis.ReplyError(reply))
    connection.abort("tested")
    assert isinstance(problem, StoreUnavailable)
    assert str(problem).endswith("is full: raise its maxmemory, or free memory (OOM)")


async def test_a_lane_waits_for_a_replica_to_be_a_master(own_redis: LocalRedis) -> None:
    async with redis.asyncio.Redis.from_url(own_redis.url) as client:
        await client.replicaof("127.0.0.1", str(free_ports(1)[0]))
        with pytest.raises(StoreUnavailable, match="is a read-only replica"):
            await store_at(url=own_redis.url)
        await client.replicaof("NO", "ONE")
    await assert_works(url=own_redis.url)


async def test_a_redis_without_scripts_is_refused() -> None:
    commands = ["EVAL", "EVALSHA", "SCRIPT"]
    with LocalRedis(config=[f'rename-command {name} ""' for name in commands]) as server:
        (problem,) = [line for line in await probe(RedisSettings(url=server.url), KEYS) if "EVAL" in line]
        assert problem.startswith("redis.url: Redis at")
        with pytest.raises(ConfigurationError, match=r"lacks what lanes need: ERR unknown command .SCRIPT"):
            await store_at(url=server.url)


async def test_a_managed_redis_that_grants_little_is_enough() -> None:
    """CONFIG and whatever else a hosted Redis keeps for itself is not asked for."""
    rights = " ".join(word for word in documented() if word.startswith("+"))
    with LocalRedis(config=[f"user lanes on >p4ss ~{{test-* resetchannels -@all {rights}"]) as server:
        lane = Lane(with_credentials(server.url, "lanes:p4ss"))
        assert await probe(RedisSettings(url=lane.url), [lane.keys]) == []
        store = await lane.lead()
        await write_state(store, state := whole_state())
        window = WindowChange(
            now_ms(), 9_999, 1, [IdRange(now_ms(), b"i" * 32)], lookup=LookUp([(b"j" * 16, b"k" * 16)])
        )
        await store.commit(step(window=window))
        answer_gaps_with(lane, state)
        async with redis.asyncio.Redis.from_url(server.url) as client:
            await client.flushall()
        await store.commit(step())
        assert len(lane.gaps) == 1
        assert (await lane.read()).owners == state.owners
        await lane._running.aclose()


async def test_a_name_with_several_addresses(own_redis: LocalRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are tried in any order, until one answers."""
    loop, asked = asyncio.get_running_loop(), list[str]()
    port = urlsplit(own_redis.url).port

    async def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{last}", port)) for last in (2, 1)]

    for first in (0, 1):
        with monkeypatch.context() as patched:
            patched.setattr(loop, "getaddrinfo", getaddrinfo, raising=False)
            patched.setattr("random.sample", lambda found, count, first=first: found[first:] + found[:first])
            await assert_works(url=f"redis://several.internal:{port}/0")
    assert asked
    assert set(asked) <= {"several.internal", "127.0.0.1", "127.0.0.2"}


async def test_a_cluster_works_only_while_one_node_has_all_slots() -> None:
    with LocalRedis(config=["cluster-enabled yes"]) as server:
        (problem,) = await probe(RedisSettings(url=server.url), KEYS)
        assert "a node of a Redis Cluster that does not have all slots" in problem
        with pytest.raises(ConfigurationError, match="that does not have all slots"):
            await store_at(url=server.url)
        await _with_all_slots(server)
        await assert_works(url=server.url)


async def _with_all_slots(server: LocalRedis) -> None:
    async with redis.asyncio.Redis.from_url(server.url) as client:
        await client.execute_command("CLUSTER", "ADDSLOTS", *range(16_384))

        async def is_up() -> bool:
            facts = await client.execute_command("CLUSTER", "INFO")
            return b"cluster_state:ok" in facts

        await eventually(is_up, what="the cluster")
