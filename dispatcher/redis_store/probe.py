"""What `dispatcher check` says about Redis."""

from __future__ import annotations

from typing import Final

from dispatcher.errors import DispatcherError
from dispatcher.redis_store.connection import RedisConnection, parse_server_facts
from dispatcher.settings import RedisSettings

#: Begins a line about something that works but may cost data; every other line is a problem.
WARNING: Final = "warning: "

_NEARLY_FULL: Final = 0.9


async def probe(settings: RedisSettings) -> list[str]:
    """Everything that is wrong with this Redis as the dispatcher's memory; warnings begin with WARNING.

    Connects, logs in and asks; writes nothing. Raises nothing for a Redis that can't be used.
    """
    try:
        connection = await RedisConnection.open(settings, "dispatcher-check", lambda *_: None)
    except DispatcherError as error:
        return [_with_key(str(error))]
    found = []
    try:
        found += _facts_found(parse_server_facts(await connection.call("INFO", "everything")))
        await connection.call("EVAL", "return redis.call('EXISTS', KEYS[1])", 1, "dispatcher-check")
    except DispatcherError as error:
        found.append(_with_key(str(error)))
    finally:
        connection.abort("checked")
        await connection.wait_closed()
    return found


def _with_key(text: str) -> str:
    return text if text.startswith("redis.") else f"redis.url: {text}"


def _facts_found(facts: dict[str, str]) -> list[str]:
    found = []
    if facts.get("aof_enabled") == "0":
        found.append(
            f"{WARNING}redis.url: appendonly is off, so a restart of Redis forgets owners and journal "
            "and lanes wait for their consumers to report; set appendonly yes"
        )
    memory_max, used = int(facts.get("maxmemory", "0")), int(facts.get("used_memory", "0"))
    if memory_max and used >= memory_max * _NEARLY_FULL:
        found.append(
            f"{'' if used >= memory_max else WARNING}redis.url: {used} of {memory_max} bytes (maxmemory) are "
            "used; a full Redis refuses writes, and dispatch pauses: raise maxmemory, or free memory"
        )
    policy = facts.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        found.append(
            f"{WARNING}redis.url: maxmemory-policy is {policy}, so Redis may drop keys that lanes need; "
            "set maxmemory-policy noeviction"
        )
    return found
