"""Server-sent events: what resources of the API answer, pushed as it changes."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any, Final

from aiohttp import web

from dispatcher.http.api import Api, ApiAnswer, is_resource
from dispatcher.http.openapi import WATCHED_MAX

PERIOD_S: Final = 1.0
#: What has not changed is sent again after so many periods: so a client that hears nothing has lost us.
REPEATED_AFTER: Final = 5
STREAMS_MAX: Final = 32
#: A client that takes nothing for so long is given up.
WRITE_S: Final = 30.0
#: After a loss a browser tries again in so long.
_RETRY_MS: Final = 1_000


class EventStreams:
    """Serves the streams of the API until `stop`."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._open = 0
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """End all of them."""
        self._stopping.set()

    async def serve(self, request: web.Request) -> web.StreamResponse:
        watched = request.query.getall("watch", [])
        if refused := self._refusal(watched):
            return web.json_response(refused.body, status=refused.status)
        response = web.StreamResponse()
        response.content_type = "text/event-stream"
        self._open += 1
        try:
            with contextlib.suppress(ConnectionError, TimeoutError):  # it has gone, or takes nothing
                await response.prepare(request)
                await self._push_all(response, watched)
        finally:
            self._open -= 1
        return response

    def _refusal(self, watched: list[str]) -> ApiAnswer | None:
        if not 0 < len(watched) <= WATCHED_MAX:
            return ApiAnswer(400, {"error": f"watch: name 1 to {WATCHED_MAX} paths"})
        if strange := [path for path in watched if not is_resource(path)]:
            return ApiAnswer(400, {"error": f"watch: there is no {strange[0]}"})
        if self._open >= STREAMS_MAX:
            return ApiAnswer(503, {"error": f"{STREAMS_MAX} streams are open"})
        return None

    async def _push_all(self, response: web.StreamResponse, watched: list[str]) -> None:
        """A task for each: an answer that takes long holds up no other."""
        turn = asyncio.Lock()
        await _write(response, turn, f"retry: {_RETRY_MS}\n\n")
        pushes = [asyncio.ensure_future(self._push(response, turn, path)) for path in watched]
        try:
            await asyncio.gather(*pushes)
        finally:
            for push in pushes:
                push.cancel()

    async def _push(self, response: web.StreamResponse, turn: asyncio.Lock, path: str) -> None:
        sent, periods = None, 0
        while not self._stopping.is_set():
            answer = await self._api.answer(path)
            if answer != sent or periods >= REPEATED_AFTER:
                sent, periods = answer, 0
                await _write(response, turn, f"data: {_event(path, answer)}\n\n")
            periods += 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), PERIOD_S)


def _event(path: str, answer: ApiAnswer) -> str:
    data: dict[str, Any] = {"path": path, "status": answer.status, "body": answer.body}
    return json.dumps(data, separators=(",", ":"))  # in one line, whatever is in it


async def _write(response: web.StreamResponse, turn: asyncio.Lock, text: str) -> None:
    async with turn, asyncio.timeout(WRITE_S):
        await response.write(text.encode())
