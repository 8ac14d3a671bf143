"""RabbitMQ and Redis in containers, where a Docker engine answers."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from dispatcher.errors import BrokerUnavailable, StoreUnavailable
from dispatcher.nodes.process import POLL_S
from dispatcher.nodes.readiness import rabbitmq_answers, redis_answers

if TYPE_CHECKING:
    from testcontainers.core.container import DockerContainer

RABBITMQ_IMAGE: Final = "rabbitmq:4.0-management"
REDIS_IMAGE: Final = "redis:7-alpine"
_PLUGINS: Final = (
    "rabbitmq_event_exchange rabbitmq_shovel rabbitmq_shovel_management rabbitmq_consistent_hash_exchange"
)
_RABBITMQ_COMMAND: Final = [
    "sh",
    "-c",
    f"rabbitmq-plugins enable --offline {_PLUGINS} && exec docker-entrypoint.sh rabbitmq-server",
]
_REDIS_COMMAND: Final = [
    "redis-server",
    "--appendonly",
    "yes",
    "--maxmemory-policy",
    "noeviction",
    "--save",
    "",
]
_ENGINE_TIMEOUT_S: Final = 3
#: A first start on a slow disk; pulling the images comes before.
_START_TIMEOUT_S: Final = 120.0
_DEFAULT_SOCKET: Final = "unix:///var/run/docker.sock"


def engine_answers() -> bool:
    """Whether a Docker engine can be used from here (and testcontainers is installed)."""
    try:
        from testcontainers.core.docker_client import DockerClient, get_docker_host
    except ImportError:
        return False
    host = get_docker_host() or _DEFAULT_SOCKET
    # The usual case, no engine at all, is found out without Docker's client, which leaks its socket then.
    if host.startswith("unix://") and not _is_listening(host.removeprefix("unix://")):
        return False
    try:
        return bool(DockerClient(timeout=_ENGINE_TIMEOUT_S).client.ping())
    except Exception:  # whatever the engine's trouble is, there is another way to get servers
        return False


@contextmanager
def open_containers() -> Iterator[tuple[str, str, str]]:
    """AMQP, management and Redis URL of two containers, removed at the end of the block.

    testcontainers' reaper removes them when this process is killed. Raises what the engine says, or
    BrokerUnavailable or StoreUnavailable when a server does not come up.
    """
    from testcontainers.core.container import DockerContainer

    with ExitStack() as running:
        rabbitmq = DockerContainer(RABBITMQ_IMAGE).with_command(_RABBITMQ_COMMAND)
        running.enter_context(rabbitmq.with_exposed_ports(5672, 15672))
        redis = DockerContainer(REDIS_IMAGE).with_command(_REDIS_COMMAND)
        running.enter_context(redis.with_exposed_ports(6379))
        redis_url = f"redis://{_address(redis, 6379)}/0"
        amqp_url = f"amqp://guest:guest@{_address(rabbitmq, 5672)}/"
        management_url = f"http://guest:guest@{_address(rabbitmq, 15672)}"
        if not _within_timeout(lambda: redis_answers(redis_url)):
            raise StoreUnavailable(f"container {REDIS_IMAGE} did not answer within {_START_TIMEOUT_S:.0f} s")
        if not _within_timeout(lambda: rabbitmq_answers(amqp_url, management_url)):
            raise BrokerUnavailable(
                f"container {RABBITMQ_IMAGE} did not answer within {_START_TIMEOUT_S:.0f} s"
            )
        yield amqp_url, management_url, redis_url


def _address(container: DockerContainer, port: int) -> str:
    return f"{container.get_container_host_ip()}:{container.get_exposed_port(port)}"


def _is_listening(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(_ENGINE_TIMEOUT_S)
        try:
            client.connect(path)
        except OSError:
            return False
    return True


def _within_timeout(answers: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while not answers():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    return True
