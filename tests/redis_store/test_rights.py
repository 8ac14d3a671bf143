"""The least rights on Redis, read from docs/security.md: a lane works with them, and `check` says so."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from dispatcher.errors import ConfigurationError
from dispatcher.nodes.local_redis import LocalRedis
from dispatcher.redis_store import LaneStore, probe
from dispatcher.redis_store.scripts import LaneKeys
from dispatcher.settings import RedisSettings
from tests.redis_store.conftest import now_ms
from tests.redis_store.samples import dispatched, entry, step

PAGE = Path(__file__).parents[2] / "docs/security.md"
KEYS = LaneKeys.of("dispatch", "orders")


def documented() -> list[str]:
    """The words of the rule behind `ACL SETUSER dispatcher`."""
    found = re.search(r"```text\nACL SETUSER dispatcher (.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    return found[1].split()


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


async def opened(settings: RedisSettings, lane: str = "orders") -> LaneStore:
    return await LaneStore.open(settings, lane, "dispatch", on_gap=lambda: pytest.fail("a gap"))


async def test_a_lane_works_with_the_documented_rights(server: LocalRedis) -> None:
    settings = as_user(server, documented())
    assert await probe(settings, [KEYS]) == []
    assert size(server) == 0
    store = await opened(settings)
    await store.lead(now_ms(), ["in"])
    await store.commit(step(dispatched(1)))
    assert (await store.lead(now_ms(), ["in"])).records == [entry(dispatched(1))]
    await store.close()


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
        assert rule[1:].upper() in problem.upper()
        assert "SECRET" not in problem
