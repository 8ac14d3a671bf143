"""Folders that are one command's alone while it writes there, and hold only files of ours.

A command that is killed lets its lock go, but Spark's Java process lives for a moment more, and may write. So
its id stands in the lock's file until the command lets go itself; the next command waits for its end.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, Final

from dispatcher.errors import ConfigurationError

#: Java ends by itself when its Python process is gone.
_JAVA_ENDS_WITHIN_S: Final = 30.0
_LOOKS_EVERY_S: Final = 0.1


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
def locked(path: Path, name: str, refusal: str, patience_s: float = 0) -> Iterator[IO[str]]:
    """Hold the folder's lock file of this name while this is open, once Spark of a command that was killed
    there has ended. Raises ConfigurationError, with `refusal` where another process holds it for longer than
    `patience_s`, or writes there with Spark."""
    with writable(path):
        lock = (path / name).open("a+")
    with lock:
        if not _await_others(lock, patience_s):
            raise ConfigurationError(f"{path}: {refusal}")
        _await_java(path, lock)
        try:
            yield lock
        finally:
            note_java(lock, None)


def _await_others(lock: IO[str], patience_s: float) -> bool:
    """Whether the lock is ours now."""
    deadline_s = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() >= deadline_s or _writer(lock) is not None:
                return False
            time.sleep(_LOOKS_EVERY_S)
        else:
            return True


def note_java(lock: IO[str], process: int | None) -> None:
    """Remember the Java process that writes there, by its id, should this process be killed."""
    os.ftruncate(lock.fileno(), 0)
    if process is not None:  # past the buffer, which would try again later where there is no room
        os.write(lock.fileno(), b"%d\n" % process)


def _await_java(path: Path, lock: IO[str]) -> None:
    deadline_s = time.monotonic() + _JAVA_ENDS_WITHIN_S
    while (process := _writer(lock)) is not None:
        if time.monotonic() > deadline_s:
            raise ConfigurationError(
                f"{path}: Spark of a command that was killed still runs there: end process {process}"
            )
        time.sleep(_LOOKS_EVERY_S)


def _writer(lock: IO[str]) -> int | None:
    """The Java process that writes there, and lives."""
    lock.seek(0)
    text = lock.read().strip()
    return int(text) if text.isdecimal() and _is_spark(int(text)) else None


def _is_spark(process: int) -> bool:
    with contextlib.suppress(OSError):
        return b"org.apache.spark" in Path(f"/proc/{process}/cmdline").read_bytes()
    return False


@contextlib.contextmanager
def writable(path: Path) -> Iterator[None]:
    """Raises ConfigurationError where something in it can't be written."""
    try:
        yield
    except OSError as problem:
        raise ConfigurationError(f"{path}: can't be written to: {problem.strerror}") from None
