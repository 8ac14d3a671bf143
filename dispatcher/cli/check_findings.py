"""What a check found: each one line that begins with the path of a key or the name of a thing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad it is. Only a problem makes the check fail."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    text: str


class Findings:
    """Collects findings in their order, each once."""

    def __init__(self) -> None:
        self._found: dict[Finding, None] = {}

    def ok(self, text: str) -> None:
        self._add(Level.OK, text)

    def note(self, text: str) -> None:
        self._add(Level.NOTE, text)

    def warning(self, text: str) -> None:
        self._add(Level.WARNING, text)

    def problem(self, text: str) -> None:
        self._add(Level.PROBLEM, text)

    def _add(self, level: Level, text: str) -> None:
        self._found.setdefault(Finding(level, text))

    def all(self) -> list[Finding]:
        return list(self._found)

    def count(self, level: Level) -> int:
        return sum(finding.level is level for finding in self._found)
