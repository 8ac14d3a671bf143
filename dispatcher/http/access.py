"""Who may read and who may act: bearer tokens, and what keeps pages of others from using a browser's."""

from __future__ import annotations

import hmac
import os
from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from aiohttp import web

from dispatcher.errors import ConfigurationError
from dispatcher.settings import TokenSettings
from dispatcher.settings.secret import read_secret

#: A token that can be guessed is none.
TOKEN_LENGTH_MIN: Final = 16
#: Without a token: probes, and the page itself, which has nothing to hide until it asks for something.
_OPEN: Final = ("/", "/healthz", "/readyz")
_OPEN_FOLDER: Final = "/static/"
_FROM_HERE: Final = ("same-origin", "none")


class Role(IntEnum):
    """What a request may do; a larger one includes the smaller ones."""

    NOBODY = 0
    VIEWER = 1
    OPERATOR = 2


class Refused(Exception):
    """A request that is not let in: a status of HTTP, and why."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Access:
    """The tokens of one server; without one for viewers everybody may read, without one for operators nobody
    may act."""

    def __init__(self, viewer: str | None = None, operator: str | None = None) -> None:
        self._viewer = viewer
        self._operator = operator

    @classmethod
    def of(cls, tokens: TokenSettings, environ: Mapping[str, str] = os.environ) -> Access:
        """Reads the tokens. Raises ConfigurationError, which shows none."""
        problems: list[str] = []
        found = {
            role: _read(f"http.tokens.{role}", source, environ, problems)
            for role, source in (("viewer", tokens.viewer), ("operator", tokens.operator))
        }
        if None not in found.values() and found["viewer"] == found["operator"]:
            problems.append("http.tokens.operator: is the viewer's too; choose another one")
        if problems:
            raise ConfigurationError(problems)
        return cls(found["viewer"], found["operator"])

    @property
    def has_operator(self) -> bool:
        """Whether there is a token with which one may act."""
        return self._operator is not None

    def check(self, request: web.Request) -> Role:
        """The role of a request that may go on. Raises Refused."""
        role = self._role(request)
        if request.method not in ("GET", "HEAD"):
            self._check_action(request, role)
        elif role < self._needed(request.path):
            raise Refused(401, "a token for viewers is needed: Authorization: Bearer …")
        return role

    def _role(self, request: web.Request) -> Role:
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        if kind.lower() != "bearer":
            return Role.NOBODY
        if _equal(token, self._operator):
            return Role.OPERATOR
        return Role.VIEWER if _equal(token, self._viewer) else Role.NOBODY

    def _needed(self, path: str) -> Role:
        if self._viewer is None or path in _OPEN or path.startswith(_OPEN_FOLDER):
            return Role.NOBODY
        return Role.VIEWER

    def _check_action(self, request: web.Request, role: Role) -> None:
        if self._operator is None:
            raise Refused(403, "nobody may act here: http.tokens.operator is not set")
        if not _is_from_here(request):
            raise Refused(403, "a page of another origin may not act here")
        if role is Role.NOBODY:
            raise Refused(401, "a token for operators is needed: Authorization: Bearer …")
        if role is not Role.OPERATOR:
            raise Refused(403, "this token may only read")
        if request.content_type != "application/json":
            raise Refused(415, "the body must be application/json")


def _is_from_here(request: web.Request) -> bool:
    """A browser says where a request comes from; other programs say nothing."""
    if request.headers.get("Sec-Fetch-Site", "none") not in _FROM_HERE:
        return False
    origin = request.headers.get("Origin")
    return origin is None or origin.partition("://")[2] == request.headers.get("Host")


def _equal(given: str, token: str | None) -> bool:
    return token is not None and hmac.compare_digest(given.encode(errors="replace"), token.encode())


def _read(path: str, source: str | None, environ: Mapping[str, str], problems: list[str]) -> str | None:
    """`env:NAME` or `file:PATH`; None: there is none, or it has a problem."""
    if source is None:
        return None
    try:
        token = read_secret(source, environ)
    except ValueError as problem:
        problems.append(f"{path}: {problem}")
        return None
    if len(token) < TOKEN_LENGTH_MIN or not (token.isascii() and token.isprintable()) or " " in token:
        problems.append(f"{path}: must be {TOKEN_LENGTH_MIN} or more characters of ASCII without spaces")
    else:
        return token
    return None
