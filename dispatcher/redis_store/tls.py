"""TLS to Redis, and plain words for everything that can go wrong before the first answer."""

from __future__ import annotations

import os
import socket
import ssl
from typing import Final

from dispatcher.errors import ConfigurationError, DispatcherError, StoreUnavailable
from dispatcher.settings import RedisSettings

_PLAIN_HINT: Final = " (does it expect none? then the URL must begin with redis://)"


def connect_problem(settings: RedisSettings, error: OSError | UnicodeError) -> DispatcherError:
    """The error to raise when a connection could not be made."""
    where = _where(settings)
    if isinstance(error, ssl.SSLCertVerificationError):
        return ConfigurationError(
            f"{settings.url_key}: the certificate of {where} is not trusted ({error.verify_message}); "
            "set redis.ca_file, and redis.server_name if it is for another name"
        )
    if isinstance(error, ssl.SSLError):
        return StoreUnavailable(
            f"Redis at {where} does not answer in TLS: {error.reason or error}{_PLAIN_HINT}"
        )
    return StoreUnavailable(f"Redis at {where} can't be reached: {_reason(error)}")


def _reason(error: OSError | UnicodeError) -> str:
    # asyncio's own text names the address again and not what went wrong.
    known = isinstance(error, OSError) and not isinstance(error, socket.gaierror) and error.errno
    return os.strerror(known) if known else str(error)


def greeting_problem(settings: RedisSettings, error: Exception | None) -> DispatcherError:
    """The error to raise when Redis closed the connection before it answered anything."""
    where = _where(settings)
    if isinstance(
        error, ssl.SSLError
    ):  # the server looks at our certificate only after our handshake is done
        return ConfigurationError(
            f"redis.cert_file: Redis at {where} refuses us in TLS ({error.reason or error}); "
            "cert_file and key_file must be a pair that it trusts"
        )
    if not settings.address.tls:
        hint = " (does it expect TLS? then the URL must begin with rediss://)"
    elif settings.cert_file is None:  # its alert may be lost when it closes
        hint = " (does it ask for a certificate? then set redis.cert_file and redis.key_file)"
    else:
        hint = ""
    return StoreUnavailable(f"Redis at {where} closed the connection at once{hint}")


def silence_problem(settings: RedisSettings, *, is_connected: bool) -> StoreUnavailable:
    """The error to raise when Redis did not answer in time. `is_connected`: a connection was made, in TLS if
    that is asked for. A Redis without TLS takes our handshake for a command and waits for the rest of it."""
    text = f"Redis at {_where(settings)} did not answer within {settings.timeout_ms} ms"
    if settings.address.tls and not is_connected:
        text += f" in TLS{_PLAIN_HINT}"
    return StoreUnavailable(text)


def _where(settings: RedisSettings) -> str:
    return f"{settings.address.host}:{settings.address.port}"
