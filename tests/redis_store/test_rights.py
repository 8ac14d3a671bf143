"""The least rights on Redis and on a cluster, read from docs/security.md: a lane works with them, and `check`
says so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from dispatcher.errors import ConfigurationError
from dispatcher.nodes.local_redis import LocalRedis
from dispatcher.redis_store import LaneStore, probe
from dispatcher.redis_store.removal import look_at_lane, remove_keys
from dispatcher.redis_store.scripts import LaneKeys
from dispatcher.settings import RedisSettings
from tests.redis_store.cluster_nodes import LocalCluster, ask
from tests.redis_store.conftest import now_ms
from tests.redis_store.least_rights import (
    ONE_LANE,
    documented,
    documented_for_a_cluster,
    documented_for_a_removal,
    pattern_for,
)
from tests.redis_store.samples import dispatched, entry, step

KEYS = LaneKeys.of("dispatch", "orders")


@pytest.fixture(scope="module")
def server() -> Iterator[LocalRedis]:
    with LocalRedis() as started:
        yield started


def as_user(server: LocalRedis, rules: list[str]) -> RedisSettings:
    with redis.Redis.from_url(server.url) as admin:
        admin.flushall()
        admin.execute_command("ACL", "DELUSER", "dispatcher")
        admin.execute_command("ACL", "SETUSER", "dispatcher", *rules)
    return RedisSettings(url=server.url.replace("redis://", "redis://dispatcher:SECRET@"))


def size(server: LocalRedis) -> int:
    with redis.Redis.from_url(server.url) as admin:
        return int(admin.dbsize())


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as started:
        yield started


def as_user_of(cluster: LocalCluster, rules: list[str]) -> RedisSettings:
    for node in cluster.nodes:
        ask(node, "ACL", "DELUSER", "dispatcher")
        ask(node, "ACL", "SETUSER", "dispatcher", *rules)
    return RedisSettings(url=cluster.url().replace("://", "://dispatcher:SECRET@"))


async def opened(settings: RedisSettings, lane: str = "orders") -> LaneStore:
    return await LaneStore.open(settings, lane, "dispatch", on_gap=lambda: pytest.fail("a gap"))


async def assert_works(settings: RedisSettings) -> None:
    store = await opened(settings)
    await store.lead(now_ms(), ["in"])
    await store.commit(step(dispatched(1)))
    assert (await store.lead(now_ms(), ["in"])).records == [entry(dispatched(1))]
    await store.close()


async def test_a_lane_works_with_the_documented_rights(server: LocalRedis) -> None:
    settings = as_user(server, documented())
    assert await probe(settings, [KEYS]) == []
    assert size(server) == 0
    await assert_works(settings)


async def test_a_lane_works_on_a_cluster_with_the_documented_rights(cluster: LocalCluster) -> None:
    settings = as_user_of(cluster, [*documented(), *documented_for_a_cluster()])
    assert await probe(settings, [KEYS]) == []
    await assert_works(settings)


async def test_a_lane_is_removed_with_one_right_more(server: LocalRedis) -> None:
    await assert_works(as_user(server, documented()))
    with redis.Redis.from_url(server.url) as admin:
        there = {key.decode() for key in admin.scan_iter()}
        admin.execute_command("ACL", "SETUSER", "dispatcher", documented_for_a_removal())
    settings = RedisSettings(url=server.url.replace("redis://", "redis://dispatcher:SECRET@"))
    found = await look_at_lane(settings, "dispatch", "orders")
    assert set(found.keys) == there != set()
    await remove_keys(settings, found.keys)
    assert size(server) == 0


async def test_a_removal_names_the_right_that_is_missing(server: LocalRedis) -> None:
    settings = as_user(server, documented())
    with pytest.raises(ConfigurationError, match=documented_for_a_removal()[1:]):
        await look_at_lane(settings, "dispatch", "orders")


@pytest.mark.parametrize("rule", documented_for_a_cluster())
async def test_each_right_on_a_cluster_is_needed_and_named_when_it_is_missing(
    cluster: LocalCluster, rule: str
) -> None:
    rules = [*documented(), *documented_for_a_cluster()]
    (problem,) = await probe(as_user_of(cluster, [each for each in rules if each != rule]), [KEYS])
    assert rule[1:] in problem or names_command_alone(problem, rule)
    assert "SECRET" not in problem


def names_command_alone(problem: str, rule: str) -> bool:
    """What Redis 6.2 says instead of the right that is missing."""
    return f"'{rule[1:].partition('|')[0]}' command or its subcommand" in problem


async def test_one_user_may_have_all_lanes_of_a_prefix(server: LocalRedis) -> None:
    pattern = pattern_for("the prefix `dispatch`")
    settings = as_user(server, [pattern if word == ONE_LANE else word for word in documented()])
    assert await probe(settings, [KEYS, LaneKeys.of("dispatch", "bills")]) == []
    await assert_works(settings)
    assert await probe(settings, [LaneKeys.of("other", "orders")]) != []


async def test_another_lane_is_out_of_reach(server: LocalRedis) -> None:
    settings = as_user(server, documented())
    (problem,) = await probe(settings, [LaneKeys.of("dispatch", "bills")])
    assert "NOPERM" in problem
    assert "({dispatch:bills}:*)" in problem
    store = await opened(settings, "bills")
    with pytest.raises(ConfigurationError, match="NOPERM"):
        await store.lead(now_ms(), ["in"])
    await store.close()


@pytest.mark.parametrize(
    "rule", [rule for rule in documented() if rule.startswith("+") and rule not in ("+ping", "+select")]
)
async def test_each_right_is_needed_and_named_when_it_is_missing(server: LocalRedis, rule: str) -> None:
    settings = as_user(server, [each for each in documented() if each != rule])
    found = await probe(settings, [KEYS])
    assert size(server) == 0
    if rule == "+client|setname":  # it only helps people who read CLIENT LIST
        assert found == []
    else:
        (problem,) = found
        assert rule[1:].upper() in problem.upper() or names_command_alone(problem, rule)
        assert "SECRET" not in problem
