"""RabbitMQ's management API, as far as demo, tests and bench need it: vhosts, permissions, questions."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import urllib.error
import urllib.request
from functools import partial
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from dispatcher.errors import BrokerUnavailable

#: The API answers in milliseconds; a node that is starting may keep a request for seconds.
TIMEOUT_S = 10.0


class Management:
    """Blocking client of one node's management API.

    `url` carries user and password: `http://guest:guest@127.0.0.1:15672`. For an https URL `context` says
    whom to trust and who we are, by default the system's authorities and nobody; `server_name` is the name to
    expect in the certificate, when it is not the URL's host.
    """

    def __init__(
        self, url: str, context: ssl.SSLContext | None = None, server_name: str | None = None
    ) -> None:
        parts = urlsplit(url)
        self.user = unquote(parts.username or "guest")
        password = unquote(parts.password or "guest")
        token = base64.b64encode(f"{self.user}:{password}".encode()).decode()
        self._headers = {"Authorization": f"Basic {token}", "Content-Type": "application/json"}
        host = parts.netloc.rpartition("@")[2]
        self._base = urlunsplit((parts.scheme or "http", host, parts.path.rstrip("/"), "", ""))
        # Loopback and private networks: never through the proxy that the environment may name.
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({}), _StaysHere()]
        if context is not None:
            handlers.append(_Https(context, server_name))
        self._opener = urllib.request.build_opener(*handlers)

    def request(
        self, path: str, method: str = "GET", body: Any = None, headers: dict[str, str] | None = None
    ) -> Any:
        """Do one request below `/api/`; the decoded JSON answer, None when it is empty.

        Names inside `path` must be quoted already. Raises BrokerUnavailable with the API's own reason.
        """
        url = f"{self._base}/api/{path.removeprefix('/').removeprefix('api/')}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, {**self._headers, **(headers or {})}, method=method)
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as answer:
                content = answer.read()
        except urllib.error.HTTPError as error:
            with error:
                reason = error.read().decode(errors="replace")
            raise BrokerUnavailable(f"{method} {url}: {error.code} {reason}") from None
        except (OSError, http.client.HTTPException) as error:
            raise BrokerUnavailable(f"{method} {url}: {_plainly(error)}") from None
        try:
            return json.loads(content) if content else None
        except ValueError:
            raise BrokerUnavailable(f"{method} {url}: it is no management API, it answers no JSON") from None

    def create_vhost(self, name: str) -> None:
        """Create a vhost in which this user may do everything."""
        self.request(f"vhosts/{quote(name, safe='')}", "PUT", {})
        rights = {"configure": ".*", "write": ".*", "read": ".*"}
        self.request(f"permissions/{quote(name, safe='')}/{quote(self.user, safe='')}", "PUT", rights)

    def delete_vhost(self, name: str) -> None:
        """Delete a vhost with everything in it; its connections are closed by the broker."""
        self.request(f"vhosts/{quote(name, safe='')}", "DELETE")


class _StaysHere(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the password would go along."""

    def redirect_request(self, *_: Any) -> None:
        return None


class _Https(urllib.request.HTTPSHandler):
    """Opens URLs with this context and expects this name."""

    def __init__(self, context: ssl.SSLContext, server_name: str | None) -> None:
        super().__init__(context=context)
        self._connection = partial(_Connection, context=context, server_name=server_name)

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._connection, request)


class _Connection(http.client.HTTPSConnection):
    """Python's own expects the name of the URL."""

    def __init__(
        self, host: str, *, timeout: float, context: ssl.SSLContext, server_name: str | None
    ) -> None:
        super().__init__(host, timeout=timeout, context=context)
        self._trusting, self._server_name = context, server_name

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        self.sock = self._trusting.wrap_socket(self.sock, server_hostname=self._server_name or self.host)


def _plainly(error: OSError | http.client.HTTPException) -> str:
    """What the system says, without the names that Python has for it."""
    reason = error.reason if isinstance(error, urllib.error.URLError) else error  # urllib wraps what it met
    if isinstance(reason, http.client.HTTPException):
        return "it does not speak HTTP"
    if isinstance(reason, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not trusted ({reason.verify_message}); see rabbitmq.ca_file and server_name"
        )
    if isinstance(reason, ssl.SSLError):
        return f"it does not answer in TLS ({reason.reason or reason})"
    return str(getattr(reason, "strerror", None) or reason)


def with_vhost(amqp_url: str, vhost: str) -> str:
    """The same AMQP URL with another vhost."""
    return urlunsplit(urlsplit(amqp_url)._replace(path=f"/{quote(vhost, safe='')}"))
