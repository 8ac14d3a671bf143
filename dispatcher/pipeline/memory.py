"""The results of former runs in a report that still hold: dates of the ledger, and the tables made from them.

A piece was computed from one date's files alone. It holds while these are the same. A part of a table
holds while everything that it was made from does. A run forgets a part before it writes that anew, so that a
killed run leaves nothing behind that looks complete.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock
from typing import Any, Final
from uuid import uuid4

from dispatcher import __version__
from dispatcher.pipeline.gaps import Window
from dispatcher.pipeline.ledger_files import Found, LedgerFile, Stamp
from dispatcher.pipeline.report_folder import LAYOUT, MEMORY

#: Of the kept results, and of how they are computed.
VERSION: Final = 7


@dataclass
class Piece:
    """The results for one date."""

    files: list[list[Any]]  # LedgerFiles
    stamps: dict[str, list[int]]  # by path: size, and when it was written (ns)
    id: str = field(default_factory=lambda: uuid4().hex)
    facts: list[dict[str, Any]] = field(default_factory=list)  # records of leaderships
    days: list[str] = field(default_factory=list)  # UTC days on which its hand-overs ended
    blocks: list[str] = field(default_factory=list)  # of messages (`lifecycle.block`)
    queues: list[list[Any]] = field(default_factory=list)  # lanes and inbound queues


@dataclass
class Memory:
    """Kept in the report's folder. `lanes`: those of which no hand-overs are in pieces. `made`: by table and
    part of it, a digest of what it was made of. `audit`: the folder of what the last audit has kept, and
    `audited` the pieces that it has judged, by date their ids. Several threads may change it: what must be
    saved together is changed under `lock`."""

    path: Path
    window: Window
    lanes: list[str] = field(default_factory=list)
    pieces: dict[str, Piece] = field(default_factory=dict)
    made: dict[str, dict[str, str]] = field(default_factory=dict)
    audit: str = ""
    audited: dict[str, str] = field(default_factory=dict)
    lock: RLock = field(default_factory=RLock)

    @classmethod
    def load(cls, report: Path, window: Window) -> Memory:
        """Empty, if it is of another window, another version, or nothing can be made of it."""
        found = cls(report / MEMORY, window)
        try:
            told = json.loads(found.path.read_text())
            if told["of"] == found._of():
                found.pieces = {date: Piece(**piece) for date, piece in told["pieces"].items()}
                found.made, found.lanes = told["made"], told["lanes"]
                found.audit, found.audited = told["audit"], told["audited"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass
        return found

    def _of(self) -> list[Any]:
        return [VERSION, __version__, list(self.window)]

    def save(self) -> None:
        pieces = {date: vars(piece) for date, piece in list(self.pieces.items())}
        unfinished = self.path.with_name(f".{MEMORY}")
        with self.lock:
            told = {
                "layout": LAYOUT, "of": self._of(), "lanes": self.lanes, "pieces": pieces, "made": self.made,
                "audit": self.audit, "audited": self.audited,
            }  # fmt: skip
            unfinished.write_text(json.dumps(told))
            unfinished.replace(self.path)

    def clear(self) -> None:
        self.pieces, self.made, self.audit, self.audited = {}, {}, "", {}
        self.save()

    def known_files(self) -> dict[str, tuple[Stamp, LedgerFile]]:
        """By path the files of all pieces, with their stamps: they need not be looked into again."""
        return {
            file[0]: ((piece.stamps[file[0]][0], piece.stamps[file[0]][1]), LedgerFile(*file))
            for piece in self.pieces.values() for file in piece.files
        }  # fmt: skip

    def forget_changed(self, found: Found) -> list[str]:
        """Forgets all dates whose files are others now; returns the dates to compute, in order."""
        now = pieces_of(found)
        for date in [date for date, piece in self.pieces.items() if not _same(piece, now.get(date))]:
            del self.pieces[date]
        self.save()
        return sorted(now.keys() - self.pieces.keys())

    def outdated(self, table: str, wanted: Mapping[str, str]) -> set[str]:
        """The parts of a table that must be made again. They are forgotten, like all that is not wanted."""
        with self.lock:
            made = self.made.get(table, {})
            kept = {part: of for part, of in made.items() if wanted.get(part) == of}
            self.made[table] = kept
            self.save()
        return set(wanted) - set(kept)

    def remember(self, table: str, parts: Mapping[str, str]) -> None:
        with self.lock:
            self.made.setdefault(table, {}).update(parts)
            self.save()


def pieces_of(found: Found) -> dict[str, Piece]:
    """By date what its files are now."""
    pieces: dict[str, Piece] = {}
    for file in found.files:
        piece = pieces.setdefault(file.date, Piece([], {}))
        piece.files.append(list(file))
        piece.stamps[file.path] = list(found.stamps[file.path])
    return pieces


def _same(former: Piece, now: Piece | None) -> bool:
    return now is not None and former.stamps == now.stamps


def digest(parts: Iterable[object]) -> str:
    return hashlib.sha256(json.dumps([str(part) for part in parts]).encode()).hexdigest()[:32]
