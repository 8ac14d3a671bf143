"""The HTTP server: probes, metrics, the JSON API and the page; by default on loopback only.

Who has no token reads; who has the operators' token also acts (`access`, `actions`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client.exposition import choose_encoder

from dispatcher.certificates import server_context
from dispatcher.errors import ConfigurationError
from dispatcher.http.access import Access, Refused, Role
from dispatcher.http.actions import ACTIONS, BODY_BYTES_MAX, act
from dispatcher.http.actions import PATH as ACTIONS_PATH
from dispatcher.http.api import RESOURCES, Api
from dispatcher.http.events import EventStreams
from dispatcher.http.metrics import registry
from dispatcher.http.openapi import DOCUMENT_PATH, EVENTS_PATH, ROLE_PATH, document
from dispatcher.http.samples import Samples
from dispatcher.http.static_files import PAGE, read_files
from dispatcher.http.views import LaneView
from dispatcher.settings import HttpSettings
from dispatcher.wire.plain_text import printable

log = structlog.get_logger()

#: The page needs files of this server and nothing else. No text becomes markup or a script. Nothing here may
#: be cached, framed, or read by pages of others.
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
#: A request that is under way when the service stops gets this long.
_SHUTDOWN_S: Final = 0.5


class HttpServer:
    """Serves these lanes from `start` to `stop`."""

    def __init__(self, settings: HttpSettings, lanes: Sequence[LaneView]) -> None:
        """Raises ConfigurationError for a token or a certificate that can't be read."""
        self._settings = settings
        self._access = Access.of(settings.tokens)
        self._tls = None if settings.cert_file is None else server_context("http", settings)
        self._lanes = lanes
        self._registry = registry(lanes)
        self._files = read_files()
        self._samples = Samples(lanes)
        self._api = Api(lanes, self._samples)
        self._streams = EventStreams(self._api)
        self._runner: web.AppRunner | None = None
        self.port = settings.port  # the real one once it is started

    def app(self) -> web.Application:
        """All that it serves."""
        app = web.Application(client_max_size=BODY_BYTES_MAX, middlewares=[self._let_in])
        app.router.add_get("/", self._page)
        app.router.add_get("/static/{name}", self._file)
        app.router.add_get("/healthz", self._health)
        app.router.add_get("/readyz", self._ready)
        app.router.add_get("/metrics", self._metrics)
        for resource in RESOURCES:
            app.router.add_get(resource.path, self._resource)
        app.router.add_post(ACTIONS_PATH, self._act)
        app.router.add_get(EVENTS_PATH, self._streams.serve)
        app.router.add_get(ROLE_PATH, self._role)
        app.router.add_get(DOCUMENT_PATH, self._document)
        app.on_response_prepare.append(_add_headers)
        return app

    async def start(self) -> None:
        """Listen. Raises ConfigurationError when the address can't be used."""
        runner = web.AppRunner(self.app(), access_log=None, shutdown_timeout=_SHUTDOWN_S)
        await runner.setup()
        host = self._settings.host
        try:
            await web.TCPSite(runner, host, self.port, ssl_context=self._tls).start()
        except OSError as error:
            await runner.cleanup()
            # asyncio puts its own sentence into strerror; a host that can't be resolved has a negative errno.
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
            raise ConfigurationError(
                f"http.listen: can't listen on {self._settings.listen} ({reason}); "
                "choose another address, or port 0 for a free one"
            ) from None
        self._runner = runner
        self._samples.start()
        self.port = int(runner.addresses[0][1])
        scheme = "http" if self._tls is None else "https"
        log.info("http_listening", url=f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}/")

    async def stop(self) -> None:
        """Stop listening; nothing happens if it never did."""
        if self._runner is not None:
            self._samples.stop()
            self._streams.stop()
            await self._runner.cleanup()
            self._runner = None

    @web.middleware
    async def _let_in(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.match_info.http_exception is not None:  # there is no such path or method
            return await handler(request)
        try:
            self._access.check(request)
        except Refused as refused:
            if request.method not in ("GET", "HEAD"):
                log.warning(
                    "http_refused", path=request.path, remote=request.remote, status=refused.status,
                    problem=str(refused),
                )  # fmt: skip
            headers = {"WWW-Authenticate": "Bearer"} if refused.status == 401 else None
            return web.json_response({"error": str(refused)}, status=refused.status, headers=headers)
        return await handler(request)

    async def _act(self, request: web.Request) -> web.Response:
        lane = next((each for each in self._lanes if each.name == request.match_info["lane"]), None)
        action = ACTIONS.get(request.match_info["action"])
        if lane is None or action is None:
            return web.json_response({"error": "there is no such lane or action"}, status=404)
        status, body = await act(lane, action, await request.read(), f"http operator from {request.remote}")
        log.info(
            "http_action", lane=lane.name, action=request.match_info["action"], remote=request.remote,
            status=status, uuid=body.get("uuid"),
        )  # fmt: skip
        return web.json_response(body, status=status)

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _ready(self, _request: web.Request) -> web.Response:
        answers = [(lane.name, *lane.readiness()) for lane in self._lanes]
        text = "".join(f"{name}: {printable(why)}\n" for name, _, why in answers)
        return web.Response(text=text, status=200 if all(ready for _, ready, _ in answers) else 503)

    async def _metrics(self, request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(self._registry), headers={"Content-Type": content_type})

    async def _resource(self, request: web.Request) -> web.Response:
        status, body = await self._api.answer(request.path_qs)
        return web.json_response(body, status=status)

    async def _role(self, request: web.Request) -> web.Response:
        """What the page offers to whoever looks at it."""
        role = "operator" if self._access.check(request) is Role.OPERATOR else "viewer"
        return web.json_response({"role": role, "acts": self._access.has_operator})

    async def _document(self, _request: web.Request) -> web.Response:
        return web.json_response(document())

    async def _page(self, _request: web.Request) -> web.Response:
        return self._response(PAGE)

    async def _file(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in self._files:
            raise web.HTTPNotFound
        return self._response(name)

    def _response(self, name: str) -> web.Response:
        body, content_type = self._files[name]
        return web.Response(body=body, content_type=content_type, charset="utf-8")


async def _add_headers(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)
