"""What `dispatcher check` says about Redis."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from importlib import resources
from typing import Final

from dispatcher.errors import ConfigurationError, DispatcherError
from dispatcher.redis_store.connection import RedisConnection, parse_server_facts
from dispatcher.redis_store.scripts import LaneKeys
from dispatcher.settings import RedisSettings

#: Begins a line about something that works but may cost data; every other line is a problem.
WARNING: Final = "warning: "

_NEARLY_FULL: Final = 0.9
_TRIAL: Final = (resources.files(__package__) / "probe.lua").read_bytes()


async def probe(settings: RedisSettings, lanes: Sequence[LaneKeys]) -> list[str]:
    """Everything that is wrong with this Redis as the memory of these lanes; warnings begin with WARNING.

    Of a Redis Cluster all the nodes are asked that have the lanes' keys. Connects, logs in, asks, and tries
    the rights out under a name of each lane's own; nothing is left there. Raises nothing for a Redis that
    can't be used.
    """
    found: dict[str, None] = {}
    for together in [[keys] for keys in lanes] if settings.address.nodes else [lanes]:
        found |= dict.fromkeys(await _probe_server(settings, together))
    return list(found)


async def _probe_server(settings: RedisSettings, lanes: Sequence[LaneKeys]) -> list[str]:
    key = lanes[0].meta if lanes else "dispatcher-check"
    try:
        connection = await RedisConnection.open(settings, "dispatcher-check", lambda *_: None, key)
    except DispatcherError as error:
        return [_with_key(settings, error)]
    found = []
    try:
        facts = parse_server_facts(await connection.call("INFO", "everything"))
        found += _facts_found(facts, settings.url_key)
    except DispatcherError as error:
        found.append(_with_key(settings, error))
    try:
        for keys in lanes:
            found += await _rights_found(connection, settings, keys)
    except DispatcherError as error:
        found.append(_with_key(settings, error))
    finally:
        connection.abort("checked")
        await connection.wait_closed()
    return found


async def _rights_found(connection: RedisConnection, settings: RedisSettings, keys: LaneKeys) -> list[str]:
    """What the user may not do with a lane's keys. Raises DispatcherError."""
    trial, pattern = keys.of_the_lane(f"check-{uuid.uuid4()}"), keys.of_the_lane("*")
    try:
        refused = await connection.call("EVAL", _TRIAL, 1, trial)
        digest = await connection.call("SCRIPT", "LOAD", "return 1")
        await connection.call("EVALSHA", digest, 1, trial)
    except ConfigurationError as error:
        return [f"{_with_key(settings, error)} ({pattern})"]
    if not refused:
        return []
    commands, user = ", ".join(command.decode() for command in refused), settings.address.user or "default"
    return [f"{settings.url_key}: user {user!r} may not call {commands} on {pattern}"]


def _with_key(settings: RedisSettings, error: DispatcherError) -> str:
    text = str(error)
    return text if text.startswith("redis.") else f"{settings.url_key}: {text}"


def _facts_found(facts: dict[str, str], key: str) -> list[str]:
    found = []
    if facts.get("aof_enabled") == "0":
        found.append(
            f"{WARNING}{key}: appendonly is off, so a restart of Redis forgets owners and journal "
            "and lanes wait for their consumers to report; set appendonly yes"
        )
    memory_max, used = int(facts.get("maxmemory", "0")), int(facts.get("used_memory", "0"))
    if memory_max and used >= memory_max * _NEARLY_FULL:
        found.append(
            f"{'' if used >= memory_max else WARNING}{key}: {used} of {memory_max} bytes (maxmemory) are "
            "used; a full Redis refuses writes, and dispatch pauses: raise maxmemory, or free memory"
        )
    policy = facts.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        found.append(
            f"{WARNING}{key}: maxmemory-policy is {policy}, so Redis may drop keys that lanes need; "
            "set maxmemory-policy noeviction"
        )
    return found
