"""Where a stream keeps its tables: whole batches, each put in its place by one rename.

`batches/<number>` holds everything that is known after a batch; `current` names the last one. Alerts are
also under `alerts`, a file for each batch that raised any. They are written first of all, and told before the
batch is whole: a repetition of it begins with them. Nothing else is needed to go on after a kill.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dispatcher.errors import ConfigurationError
from dispatcher.pipeline.own_folder import locked, make_own, note_java, writable

#: Of the folder's form, and of its contents.
VERSION: Final = 1
IDENTITY: Final = "stream.json"
ALERTS: Final = "alerts.parquet"
STATE: Final = "state.json"
KEPT: Final = "kept"
CHECKPOINT: Final = "checkpoint"
_BATCHES, _CURRENT, _PUBLISHED, _LOCK = "batches", "current", "alerts", ".lock"
_OURS: Final = {_BATCHES, _CURRENT, f".{_CURRENT}", _PUBLISHED, _LOCK, IDENTITY, f".{IDENTITY}", CHECKPOINT}
#: Readers that opened a batch's tables may go on with them for this many more batches.
_BATCHES_KEPT: Final = 3


class LiveFolder:
    """A stream's folder on a disk that all of Spark's machines see, ours alone meanwhile."""

    def __init__(self, path: Path, checkpoint: Path, lock: IO[str]) -> None:
        self.path, self.checkpoint, self._lock = path, checkpoint, lock
        self.recover()

    @property
    def last(self) -> int | None:
        """The last batch that is whole."""
        return max((int(each.name) for each in self._batches()), default=None)

    def batch(self, number: int) -> Path:
        return self.path / _BATCHES / f"{number:012d}"

    def begin(self, number: int) -> Path:
        """An empty folder for that batch's tables, which readers don't see before `commit`."""
        unfinished = self.path / _BATCHES / f".{number:012d}"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        return unfinished

    def raise_alerts(self, number: int, alerts: pa.Table) -> pa.Table:
        """Alerts of the batch that is begun, which survive a kill from now on; returns them behind those that
        were raised by the same batch before it was killed."""
        early = self._early(number)
        former = pq.read_table(early) if early.exists() else alerts.slice(0, 0)
        is_new = pc.invert(pc.is_in(alerts["id"], former["id"]))
        found = pa.concat_tables([former, alerts.filter(is_new)])
        if len(found) > len(former):
            unfinished = early.with_suffix(".unfinished")
            pq.write_table(found, unfinished)
            unfinished.replace(early)
        return found

    def _early(self, number: int) -> Path:
        return self.path / _BATCHES / f".{number:012d}.alerts"

    def commit(self, number: int) -> None:
        """From now on the batch is there, with all its tables and alerts."""
        unfinished = self.path / _BATCHES / f".{number:012d}"
        if self._early(number).exists():
            os.link(self._early(number), unfinished / ALERTS)
        unfinished.rename(self.batch(number))
        self._publish(number)

    def recover(self) -> None:
        """Finish what a kill has left: a batch that is whole, but not shown."""
        last = self.last
        if last is not None:
            with writable(self.path):
                self._publish(last)

    def _publish(self, number: int) -> None:
        alerts = self.batch(number) / ALERTS
        if alerts.exists():
            shown = self.path / _PUBLISHED / f"{number:012d}.parquet"
            shown.parent.mkdir(exist_ok=True)
            if not shown.exists():
                os.link(alerts, shown)
        self._early(number).unlink(missing_ok=True)
        link = self.path / f".{_CURRENT}"
        link.unlink(missing_ok=True)
        link.symlink_to(f"{_BATCHES}/{number:012d}")
        link.replace(self.path / _CURRENT)
        for old in sorted(self._batches())[:-_BATCHES_KEPT]:
            shutil.rmtree(old, ignore_errors=True)

    def is_told(self, number: int) -> bool:
        """Whether `told` was called: all its alerts were printed."""
        return (self.batch(number) / ".told").exists()

    def told(self, number: int) -> None:
        (self.batch(number) / ".told").touch()

    def note_java(self, process: int | None) -> None:
        note_java(self._lock, process)

    def _batches(self) -> list[Path]:
        folder = self.path / _BATCHES
        return [each for each in folder.iterdir() if each.name.isdecimal()] if folder.is_dir() else []


@contextlib.contextmanager
def live_folder(path: Path, checkpoint: Path | None, ledger: str) -> Iterator[LiveFolder]:
    """The folder, made if need be. Raises ConfigurationError, also when it is another ledger's."""
    checkpoint = checkpoint or path / CHECKPOINT
    make_own(path, _OURS, "the stream")
    with locked(path, _LOCK, "another stream writes there: end it, or name another directory") as lock:
        _identify(path, checkpoint, ledger)
        yield LiveFolder(path, checkpoint, lock)


def _identify(path: Path, checkpoint: Path, ledger: str) -> None:
    """Make the two folders one stream's, or refuse folders that are not."""
    ours, theirs = _read(path / IDENTITY), _read(checkpoint / IDENTITY)
    found = ours or theirs
    if found is None:
        if (path / _BATCHES).exists() or (checkpoint.is_dir() and any(checkpoint.iterdir())):
            raise ConfigurationError(f"{checkpoint}: is no checkpoint of a stream: name an empty directory")
        found = {"version": VERSION, "ledger": ledger, "stream": uuid.uuid4().hex}
        try:
            checkpoint.mkdir(parents=True, exist_ok=True)
            _write(path / IDENTITY, found)
            _write(checkpoint / IDENTITY, found)
        except OSError as problem:
            raise ConfigurationError(f"{checkpoint}: can't be written to: {problem.strerror}") from None
        return
    if found.get("version") != VERSION:
        raise ConfigurationError(
            f"{path}: was made by version {found.get('version')} of the stream, and this is {VERSION}: name "
            "an empty directory, and the ledger is read again"
        )
    if found.get("ledger") != ledger:
        raise ConfigurationError(
            f"{path}: is the stream of {found.get('ledger')}, not of {ledger}: name another directory"
        )
    if ours is not None and theirs is None and not (path / _BATCHES).exists():
        checkpoint.mkdir(parents=True, exist_ok=True)
        _write(checkpoint / IDENTITY, ours)  # killed between the two
    elif ours is None or theirs is None or ours["stream"] != theirs["stream"]:
        raise ConfigurationError(
            f"{checkpoint}: is not the checkpoint of the tables in {path}: name that one, or an empty "
            "directory for both"
        )


def _read(path: Path) -> dict[str, Any] | None:
    """Raises ConfigurationError for text that is no JSON."""
    try:
        found = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise ConfigurationError(f"{path}: can't be read: name an empty directory")
    return found


def _write(path: Path, value: dict[str, Any]) -> None:
    unfinished = path.with_name(f".{path.name}")
    unfinished.write_text(json.dumps(value, indent=2) + "\n")
    unfinished.replace(path)
