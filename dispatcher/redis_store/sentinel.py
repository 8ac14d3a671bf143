"""Asks Redis Sentinel which server is the master of a service now."""

from __future__ import annotations

import asyncio
import os
import random
from typing import TYPE_CHECKING, Any

from dispatcher.errors import ConfigurationError, StoreUnavailable
from dispatcher.settings.secret import read_secret

if TYPE_CHECKING:
    from dispatcher.settings import RedisSettings


async def master_of(settings: RedisSettings) -> RedisSettings:
    """The same settings for that server alone. Raises StoreUnavailable when no Sentinel names one,
    ConfigurationError when their password is not where it should be."""
    from redis import RedisError
    from redis.asyncio.retry import Retry
    from redis.asyncio.sentinel import Sentinel
    from redis.backoff import NoBackoff

    address = settings.address
    timeout_s = settings.timeout_ms / 1000
    options: dict[str, Any] = {
        "socket_timeout": timeout_s, "socket_connect_timeout": timeout_s, "retry": Retry(NoBackoff(), 0),
        "username": settings.sentinel_user, "password": _password(settings),
    }  # fmt: skip
    if address.tls:
        options |= {
            "ssl": True, "ssl_ca_certs": settings.ca_file, "ssl_certfile": settings.cert_file,
            "ssl_keyfile": settings.key_file or settings.cert_file,
        }  # fmt: skip
    in_any_order = random.sample(address.sentinels, len(address.sentinels))
    sentinel = Sentinel(in_any_order, sentinel_kwargs=options)  # type: ignore[no-untyped-call]
    try:
        host, port = await sentinel.discover_master(address.service)
    except (RedisError, OSError) as problem:
        where = ", ".join(f"{host}:{port}" for host, port in address.sentinels)
        text = f"no Redis Sentinel of {where} names a master for {address.service!r}: {problem}"
        if "AuthenticationError" in text:
            text += " (see redis.sentinel_password and sentinel_user)"
        raise StoreUnavailable(text) from None
    finally:
        # Also if this task is cancelled meanwhile: one left open stays until the process ends.
        await asyncio.shield(asyncio.gather(*(client.aclose() for client in sentinel.sentinels)))
    return settings.at(str(host), int(port))


def _password(settings: RedisSettings) -> str | None:
    """Of the Sentinels. It is read each time, so a new one needs no restart. Raises ConfigurationError."""
    if settings.sentinel_password is None:
        return None
    try:
        return read_secret(settings.sentinel_password, os.environ)
    except ValueError as problem:
        raise ConfigurationError(f"redis.sentinel_password: {problem}") from None
