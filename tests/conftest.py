"""Servers for the tests: real ones, shared by all workers, and a vhost of its own for each test."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from dispatcher.errors import BrokerUnavailable, DispatcherError
from dispatcher.nodes.installed import ensure_installed
from dispatcher.nodes.management import Management, with_vhost
from dispatcher.nodes.servers import PrivateServers, Servers, open_servers, servers_from_environment

_SHARED = pytest.StashKey[contextlib.ExitStack]()


@dataclass(frozen=True)
class Vhost:
    """A vhost of the test's own, and the Redis key prefix that goes with it."""

    name: str
    amqp_url: str
    redis_url: str
    redis_prefix: str
    api: Management

    def management(self, path: str, method: str = "GET", body: Any = None) -> Any:
        """A request to the management API: `vhost.management(f"queues/{vhost.name}")`."""
        return self.api.request(path, method, body)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """xdist: the controller starts one pair of servers and tells every worker where they are."""
    stash = node.config.stash
    if _SHARED not in stash:
        stash[_SHARED] = contextlib.ExitStack()
        try:
            node.config.shared_servers = stash[_SHARED].enter_context(open_servers())
        except DispatcherError as error:
            pytest.exit(str(error), returncode=1)
    shared: Servers = node.config.shared_servers
    node.workerinput["servers"] = shared.as_environment()


def pytest_unconfigure(config: pytest.Config) -> None:
    if stack := config.stash.get(_SHARED, None):
        stack.close()


@pytest.fixture(scope="session")
def servers(request: pytest.FixtureRequest) -> Iterator[Servers]:
    """RabbitMQ and Redis for all tests: .amqp_url, .management_url, .redis_url."""
    given = getattr(request.config, "workerinput", {}).get("servers")
    if given is not None:
        shared = servers_from_environment(given)
        assert shared is not None
        yield shared
    else:
        with open_servers() as own:
            yield own


@pytest.fixture
def redis_url(servers: Servers) -> str:
    return servers.redis_url


@pytest.fixture
def vhost(servers: Servers) -> Iterator[Vhost]:
    """A fresh vhost, deleted with all that is in it after the test; Redis keys of its prefix too."""
    with fresh_vhost(servers) as made:
        yield made


@contextlib.contextmanager
def fresh_vhost(servers: Servers) -> Iterator[Vhost]:
    api = Management(servers.management_url)
    name = f"test-{uuid.uuid4().hex[:12]}"
    api.create_vhost(name)
    try:
        yield Vhost(name, with_vhost(servers.amqp_url, name), servers.redis_url, name, api)
    finally:
        with contextlib.suppress(BrokerUnavailable):  # the test's own failure is the one to report
            api.delete_vhost(name)
        _delete_keys(servers.redis_url, name)


def _delete_keys(redis_url: str, prefix: str) -> None:
    import redis

    with contextlib.suppress(redis.RedisError), redis.Redis.from_url(redis_url) as client:
        keys = list(client.scan_iter(match=f"*{prefix}*", count=1000))
        if keys:
            client.delete(*keys)


@pytest.fixture
def private_servers() -> Iterator[PrivateServers]:
    """A node pair of this test's own that it may kill and restart: .rabbitmq, .redis and the URLs."""
    ensure_installed(print)
    with PrivateServers() as pair:
        yield pair
