"""Folders that are one command's alone while it writes there, and hold nothing of anybody else."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO

from dispatcher.errors import ConfigurationError


def make_own(path: Path, ours: Collection[str], purpose: str) -> None:
    """Make the folder if need be. Raises ConfigurationError where it has other things in it than `ours`, or
    can't be made."""
    with writable(path):
        path.mkdir(parents=True, exist_ok=True)
        strange = sorted(each.name for each in path.iterdir() if each.name not in ours)
    if strange:
        raise ConfigurationError(
            f"{path}: has other things in it ({strange[0]}): name a directory of its own for {purpose}"
        )


@contextlib.contextmanager
def locked(path: Path, name: str, refusal: str) -> Iterator[IO[str]]:
    """Hold the folder's lock file of this name, whose text is kept, while this is open. Raises
    ConfigurationError, with `refusal` where another process holds it."""
    with writable(path):
        lock = (path / name).open("a+")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigurationError(f"{path}: {refusal}") from None
        yield lock


@contextlib.contextmanager
def writable(path: Path) -> Iterator[None]:
    """Raises ConfigurationError where something in it can't be written."""
    try:
        yield
    except OSError as problem:
        raise ConfigurationError(f"{path}: can't be written to: {problem.strerror}") from None
