"""The files of the page, in `static/`: read once, served as they are."""

from __future__ import annotations

from importlib.resources import files
from typing import Final, NamedTuple

PAGE: Final = "index.html"
_TYPES: Final = {
    "css": "text/css", "html": "text/html", "js": "text/javascript", "svg": "image/svg+xml"
}  # fmt: skip


class StaticFile(NamedTuple):
    """What a browser gets."""

    body: bytes
    content_type: str


def read_files() -> dict[str, StaticFile]:
    """All of them, by their names."""
    found = (each for each in files("dispatcher.http").joinpath("static").iterdir() if each.is_file())
    return {
        each.name: StaticFile(each.read_bytes(), _TYPES[each.name.rpartition(".")[2]])
        for each in found if each.name.rpartition(".")[2] in _TYPES
    }  # fmt: skip
