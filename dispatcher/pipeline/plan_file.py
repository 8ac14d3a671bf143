"""The file that `pipeline plan` writes and `rebalance --plan` applies (docs/pipeline.md). Needs no Spark."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from dispatcher.errors import ConfigurationError

KIND: Final = "dispatcher plan"
#: Raised when a program that knows the former version would apply a plan wrongly.
VERSION: Final = 1


class PlannedMove(NamedTuple):
    """One group, and its owner when it was planned; None: it had none."""

    group: str
    owner: str | None
    target: str


class PlanFile(NamedTuple):
    """The plan to apply. `buckets`: the group map that it was made for; `until`: the last instant of which
    its ledger tells."""

    lane: str
    buckets: int | None
    until: datetime
    moves: list[PlannedMove]


def write_plan(path: Path, facts: dict[str, Any], plan: PlanFile) -> None:
    """Write the file as a whole; `facts` are for its readers. Raises ConfigurationError."""
    document = {
        "kind": KIND, "version": VERSION, "lane": plan.lane, "buckets": plan.buckets,
        "until": plan.until.astimezone(UTC).isoformat(), **facts,
        "moves": [{"group": move.group, "from": move.owner, "to": move.target} for move in plan.moves],
    }  # fmt: skip
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        unfinished.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        unfinished.replace(path)
    except OSError as problem:
        raise ConfigurationError(f"{path}: can't be written: {problem.strerror}") from None


def read_plan(path: Path) -> PlanFile:
    """Raises ConfigurationError for a file that is no plan, or one of a newer version."""
    try:
        document = json.loads(path.read_bytes())
    except OSError as problem:
        raise ConfigurationError(f"{path}: can't be read: {problem.strerror}") from None
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise ConfigurationError(f"{path}: is not a plan: `dispatcher pipeline plan` writes one")
    version = document.get("version")
    if version != VERSION:
        raise ConfigurationError(
            f"{path}: is a plan of version {version!r}, and this dispatcher knows version {VERSION}: "
            "make it with the `dispatcher pipeline plan` of the same version"
        )
    try:
        return _plan(document)
    except (KeyError, TypeError, ValueError):
        raise ConfigurationError(f"{path}: is a damaged plan: make it again") from None


def _plan(document: dict[str, Any]) -> PlanFile:
    moves = [PlannedMove(move["group"], move["from"], move["to"]) for move in document["moves"]]
    texts = [document["lane"], *(text for m in moves for text in (m.group, m.target, m.owner or ""))]
    until, buckets = datetime.fromisoformat(document["until"]), document["buckets"]
    if not all(isinstance(text, str) for text in texts) or type(buckets) not in (int, type(None)):
        raise TypeError
    if until.tzinfo is None or len({move.group for move in moves}) < len(moves):
        raise ValueError
    return PlanFile(document["lane"], buckets, until, moves)
