"""Connections of consumers, by RabbitMQ's management API: finds the connection that has a queue, and closes
it."""

from __future__ import annotations

import time
from typing import Any, Final
from urllib.parse import quote

from dispatcher.cli.management import management_of, where_else
from dispatcher.errors import BrokerUnavailable, CommandRefused
from dispatcher.settings import Settings

#: The API learns of a new queue's owner with its next statistics, every 5 s by default.
OWNER_WAIT_S: Final = 8.0
_ASK_AGAIN_S: Final = 0.5
_ADMINISTRATOR: Final = "administrator"


class ConsumerConnections:
    """Looks up and closes connections; everything that could refuse the closing is asked for before."""

    def __init__(self, settings: Settings, url: str | None) -> None:
        self._management = management_of(settings.rabbitmq, url)
        self._where_else = where_else(settings.rabbitmq, url)
        self._vhost = quote(settings.rabbitmq.address.vhost, safe="")

    def of_queue(self, queue: str) -> str | None:
        """The connection that has this exclusive queue, and that we may close; None: the queue is gone.

        Raises CommandRefused.
        """
        deadline = time.monotonic() + OWNER_WAIT_S
        try:
            while (found := self._get(f"queues/{self._vhost}/{quote(queue, safe='')}")) is not None:
                owner = (found.get("owner_pid_details") or {}).get("name")
                if isinstance(owner, str):
                    return self._checked(owner)
                if time.monotonic() > deadline:
                    raise CommandRefused(
                        f"the management API does not know the connection of the queue {queue!r}; try again"
                    )
                time.sleep(_ASK_AGAIN_S)
        except BrokerUnavailable as problem:
            raise CommandRefused(
                f"its connection can't be closed, so nothing was done: {problem} ({self._where_else})"
            ) from None
        return None

    def _get(self, path: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = self._management.request(path)
        except BrokerUnavailable as problem:
            if ": 404 " in str(problem):
                return None
            raise
        return found

    def _checked(self, connection: str) -> str | None:
        """Its name, if it is there and may be closed."""
        found = self._get(f"connections/{quote(connection, safe='')}")
        if found is None:
            return None
        myself = self._management.request("whoami")
        tags = myself.get("tags") or []
        tags = tags.split(",") if isinstance(tags, str) else tags
        if _ADMINISTRATOR not in tags and myself.get("name") != found.get("user"):
            raise CommandRefused(
                f"user {myself.get('name')!r} may not close connections of user {found.get('user')!r}, so "
                "nothing was done: it needs the tag administrator (--management URL)"
            )
        return connection

    def close(self, connection: str, reason: str) -> None:
        """Close it; no harm if it is gone. Raises BrokerUnavailable."""
        try:
            self._management.request(
                f"connections/{quote(connection, safe='')}", "DELETE", headers={"X-Reason": reason}
            )
        except BrokerUnavailable as problem:
            if ": 404 " not in str(problem):
                raise
