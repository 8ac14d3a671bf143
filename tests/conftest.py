"""Servers for the tests: real ones, shared by all workers, and a vhost of its own for each test."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import signal
import uuid
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from dispatcher.errors import BrokerUnavailable, DispatcherError
from dispatcher.nodes.installed import ensure_installed
from dispatcher.nodes.management import Management, with_vhost
from dispatcher.nodes.servers import PrivateServers, Servers, open_servers, servers_from_environment
from tests.waiting import wait_until

#: So many new objects make Python look for garbage among them: ten times as many as usual.
GARBAGE_MIN = 7_000
_SHARED = pytest.StashKey[contextlib.ExitStack]()


def pytest_configure() -> None:
    """What runs in the background of a shell ignores Ctrl-C, and so would programs that tests interrupt."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.disable()  # until all is collected


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Of several workers one goes ahead and keeps the bytecode of all tests. At the same time each would make
    the same."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return (yield)
    with Path(session.config.option.basetemp).with_name("collection.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(lock, fcntl.LOCK_SH)
        return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those of the pipeline come first, and others that need Spark; then those that may hurt their servers.
    Each kind stays with one worker, which has Spark or such servers, until others have nothing else to do.
    So no worker is left with a long one at the end, too."""

    def kind(item: pytest.Item) -> int:
        fixtures = getattr(item, "fixturenames", ())
        if item.nodeid.startswith("tests/pipeline/") or "spark" in fixtures:
            return 0
        return 1 if "private_servers" in fixtures else 2

    items.sort(key=kind)


def pytest_collection_finish() -> None:
    """What was imported and collected lives until the end: to look for garbage among it again and again takes
    a tenth of a worker's time."""
    gc.set_threshold(GARBAGE_MIN)
    gc.enable()


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


@pytest.fixture(scope="session")
def _private_pair() -> Iterator[PrivateServers]:
    ensure_installed(print)
    with PrivateServers() as pair:
        yield pair


@pytest.fixture
def private_servers(_private_pair: PrivateServers) -> Iterator[PrivateServers]:
    """A node pair that a test may kill, restart and squeeze: .rabbitmq, .redis and the URLs.

    The next test of the same worker gets it running, empty and with its usual limits: a start costs five
    seconds of a processor.
    """
    _private_pair.start()  # a test whose end failed may have left one that doesn't run
    _private_pair.rabbitmq.evaluate("persistent_term:put(as_begun, application:get_all_env(rabbit))")
    yield _private_pair
    both = _private_pair.rabbitmq, _private_pair.redis
    gone = [
        f"{node.name} has ended by itself:\n{node.log_tail()}" for node in both if node.has_ended_by_itself()
    ]
    _as_begun(_private_pair)
    assert not gone, "\n".join(gone)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What failed with servers of its own comes with what these logged: they are gone when somebody looks."""
    report = yield
    pair = getattr(item, "funcargs", {}).get("_private_pair")
    if report.failed and isinstance(pair, PrivateServers):
        report.sections += [
            (f"log of the private {node.name}", node.log_tail()) for node in (pair.rabbitmq, pair.redis)
        ]
    return report


def _as_begun(pair: PrivateServers) -> None:
    import redis

    pair.start()
    for act in (
        "[application:set_env(rabbit, Name, Value) || {Name, Value} <- persistent_term:get(as_begun, [])]",
        "vm_memory_monitor:set_vm_memory_high_watermark(0.4)",
        'rabbit_disk_monitor:set_disk_free_limit("50MB")',
    ):
        pair.rabbitmq.evaluate(act)
    api = Management(pair.management_url)
    for vhost in api.request("vhosts"):
        if vhost["name"] != "/":
            api.delete_vhost(vhost["name"])
    wait_until(lambda: _without(api, "queues"))
    wait_until(lambda: _without(api, "exchanges"))
    with redis.Redis.from_url(pair.redis_url) as client:
        client.flushall()


def _without(api: Management, kind: str) -> bool:
    """In the default vhost. Exclusive queues go with their connection; RabbitMQ has exchanges of its own."""
    found = [
        each["name"] for each in api.request(f"{kind}/%2F") if not (each["name"] or "amq.").startswith("amq.")
    ]
    for name in found:
        with contextlib.suppress(BrokerUnavailable):
            api.request(f"{kind}/%2F/{quote(name, safe='')}", "DELETE")
    return not found
