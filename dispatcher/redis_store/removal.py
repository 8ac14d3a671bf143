"""A lane's keys, for its removal: what is there, and none of it afterwards."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from dispatcher.redis_store.connection import RedisConnection
from dispatcher.redis_store.scripts import LaneKeys
from dispatcher.redis_store.snapshot import read_table
from dispatcher.settings import RedisSettings


@dataclass(frozen=True, slots=True)
class LaneInRedis:
    """What Redis has of a lane."""

    keys: tuple[str, ...]  # those that exist
    inbound: tuple[str, ...]  # queues that it was led with
    consumer_queues: tuple[str, ...]  # of consumers that it knows


async def look_at_lane(settings: RedisSettings, prefix: str, lane: str) -> LaneInRedis:
    """Changes nothing. Raises StoreUnavailable or ConfigurationError."""
    keys = LaneKeys.of(prefix, lane)
    connection = await _open(settings)
    try:
        there = [key for key in (*keys.all(), keys.replicas) if await connection.call("EXISTS", key)]
        inbound = _json(await connection.call("HGET", keys.meta, "inbounds"), [])
        known = await read_table(connection, keys.incarnations)
        rows = [row for row in (_json(each, {}) for each in known.values()) if isinstance(row, dict)]
        return LaneInRedis(
            tuple(there),
            tuple(map(str, inbound)) if isinstance(inbound, list) else (),
            tuple(str(row["queue"]) for row in rows if "queue" in row),
        )
    finally:
        await _close(connection)


async def remove_keys(settings: RedisSettings, keys: tuple[str, ...]) -> None:
    """Remove them all at once. Raises StoreUnavailable or ConfigurationError."""
    if not keys:
        return
    connection = await _open(settings)
    try:
        await connection.call("UNLINK", *keys)
    finally:
        await _close(connection)


async def _open(settings: RedisSettings) -> RedisConnection:
    return await RedisConnection.open(settings, "dispatcher-lane-remove", lambda *_: None)


async def _close(connection: RedisConnection) -> None:
    connection.abort("done")
    await connection.wait_closed()


def _json(text: Any, otherwise: Any) -> Any:
    """The value in a field; of one that is not there, or not ours, `otherwise`."""
    if not isinstance(text, bytes | str):
        return otherwise
    try:
        return json.loads(text)
    except ValueError:
        return otherwise
