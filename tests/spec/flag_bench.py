"""Commands that set flags, and what operators see of them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from dispatcher.core.holds import HoldKind
from dispatcher.core.views.views import Views
from tests.spec.lane_bench import LaneBench

BOTH = pytest.mark.parametrize("name", ["exclusive", "sequenced"])


def said(bench: LaneBench, command: str, **arguments: Any) -> dict[str, Any]:
    """The result of a command that is done."""
    bench.command(command, **arguments)
    assert bench.replies[-1].error is None
    return bench.replies[-1].result


def refused(bench: LaneBench, command: str, **arguments: Any) -> str:
    """The error of a command that changes nothing."""
    before = dict(bench.flags)
    bench.command(command, **arguments)
    assert bench.flags == before
    return bench.replies[-1].error or "done"


def says(text: str, *facts: object) -> bool:
    """Whether a text for people has these names and numbers, none of them a part of a longer one."""
    return all(re.search(rf"(?<!\w){re.escape(str(fact))}(?!\w)", text) for fact in facts)


def why(bench: LaneBench, group: str) -> HoldKind | None:
    """The reason that `groups why` names; None: it names none."""
    reason = Views(bench.lane.state).why({"group": group})["reason"]
    return HoldKind(reason) if reason is not None else None


def facts(bench: LaneBench, group: str) -> dict[str, Any]:
    """What `groups why` says about that reason."""
    told: dict[str, Any] = Views(bench.lane.state).why({"group": group})["facts"]
    return told


def row(bench: LaneBench, group: str) -> dict[str, Any]:
    return Views(bench.lane.state).group({"group": group})


def owner(bench: LaneBench, group: str) -> str | None:
    return row(bench, group)["owner"]  # type: ignore[no-any-return]
