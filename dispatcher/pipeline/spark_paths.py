"""Files and folders by the names that Spark wants: URLs in which nothing is percent-encoded, and to be read
from patterns."""

from __future__ import annotations

from pathlib import Path
from typing import Final

LOCAL: Final = "file://"


def escaped(path: str) -> str:
    """To be read from: Spark takes such paths for patterns."""
    return "".join(f"\\{letter}" if letter in "{}[]*?\\" else letter for letter in path)


def written_to(folder: Path) -> str:
    """A folder on a disk, to be written to."""
    return f"{LOCAL}{folder.absolute()}"


def read_from(folder: Path) -> str:
    """The same, to be read from."""
    return escaped(written_to(folder))
