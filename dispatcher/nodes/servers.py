"""Which RabbitMQ and Redis to use: given ones, else containers, else private local nodes.

A folder with servers (`DISPATCHER_SERVERS_ROOT`) goes before containers.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlsplit

from dispatcher.errors import ConfigurationError
from dispatcher.nodes.containers import engine_answers, open_containers
from dispatcher.nodes.installed import ensure_installed, servers_root
from dispatcher.nodes.local_rabbitmq import LocalRabbitMQ
from dispatcher.nodes.local_redis import LocalRedis

RABBITMQ_VARIABLE: Final = "DISPATCHER_RABBITMQ_URL"
MANAGEMENT_VARIABLE: Final = "DISPATCHER_RABBITMQ_MANAGEMENT_URL"
REDIS_VARIABLE: Final = "DISPATCHER_REDIS_URL"
MANAGEMENT_PORT: Final = 15672


@dataclass(frozen=True, slots=True)
class Servers:
    """Where RabbitMQ and Redis are; every URL carries its credentials."""

    amqp_url: str
    management_url: str
    redis_url: str

    def as_environment(self) -> dict[str, str]:
        """The variables that make any command of this product use these servers."""
        return {
            RABBITMQ_VARIABLE: self.amqp_url,
            MANAGEMENT_VARIABLE: self.management_url,
            REDIS_VARIABLE: self.redis_url,
        }


def servers_from_environment(environment: Mapping[str, str]) -> Servers | None:
    """The servers that the environment names, None when it names none.

    Without a management URL the usual port on the broker's host is meant, with the broker's user.
    Raises ConfigurationError when only one of RabbitMQ and Redis is named.
    """
    amqp_url, redis_url = environment.get(RABBITMQ_VARIABLE, ""), environment.get(REDIS_VARIABLE, "")
    if not amqp_url and not redis_url:
        return None
    if not amqp_url or not redis_url:
        missing = REDIS_VARIABLE if amqp_url else RABBITMQ_VARIABLE
        raise ConfigurationError(f"{missing}: must be set as well (or neither, to have servers started)")
    return Servers(amqp_url, environment.get(MANAGEMENT_VARIABLE) or _usual_management(amqp_url), redis_url)


def _usual_management(amqp_url: str) -> str:
    parts = urlsplit(amqp_url)
    credentials, at, _ = parts.netloc.rpartition("@")
    return f"http://{credentials}{at}{parts.hostname or 'localhost'}:{MANAGEMENT_PORT}"


def _say_on_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def start_together(starts: Sequence[Callable[[], None]], close: Callable[[], None]) -> None:
    """Call all at the same time. If one raises, `close` is called, and it is raised."""
    with ThreadPoolExecutor(len(starts)) as pool:
        running = [pool.submit(start) for start in starts]
        try:
            for start in running:
                start.result()
        except BaseException:
            close()
            raise


class PrivateServers:
    """A local RabbitMQ and a local Redis that belong to the caller, who may kill and restart them."""

    def __init__(self, rabbitmq_config: Iterable[str] = (), append_only: bool = True) -> None:
        self.rabbitmq = LocalRabbitMQ(rabbitmq_config)
        self.redis = LocalRedis(append_only)

    @property
    def amqp_url(self) -> str:
        return self.rabbitmq.amqp_url

    @property
    def management_url(self) -> str:
        return self.rabbitmq.management_url

    @property
    def redis_url(self) -> str:
        return self.redis.url

    def start(self) -> None:
        """Start both at the same time. Raises what `LocalNode.start` raises; then neither runs."""
        start_together((self.rabbitmq.start, self.redis.start), self.close)

    def close(self) -> None:
        """End both and remove their data."""
        self.rabbitmq.close()
        self.redis.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextmanager
def open_servers(say: Callable[[str], None] = _say_on_stderr) -> Iterator[Servers]:
    """Servers for the length of the block; servers that were started for it are ended with it.

    `say` gets one line about anything that takes long or changes the machine. Raises ConfigurationError,
    which says what to install, when there is no way to get servers.
    """
    given = servers_from_environment(os.environ)
    if given is not None:
        yield given
        return
    with ExitStack() as running:
        is_root_named = servers_root() != Path("/")
        servers = None if is_root_named or not engine_answers() else _in_containers(running, say)
        yield servers or _on_this_machine(running, say)


def _in_containers(running: ExitStack, say: Callable[[str], None]) -> Servers | None:
    say("Starting RabbitMQ and Redis in containers.")
    try:
        return Servers(*running.enter_context(open_containers()))
    except Exception as error:  # an engine without the images and without a network, for one
        say(f"Containers can't be used ({str(error).partition(chr(10))[0]}): trying local servers.")
        return None


def _on_this_machine(running: ExitStack, say: Callable[[str], None]) -> Servers:
    ensure_installed(say)
    pair = running.enter_context(PrivateServers())
    return Servers(pair.amqp_url, pair.management_url, pair.redis_url)
