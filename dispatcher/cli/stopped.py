"""Groups that have stopped at a message that failed (`retry.on_exhausted: park`), as the dispatcher says."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from dispatcher.cli import options
from dispatcher.cli.asking import ask_lane
from dispatcher.cli.dead_queue import Selection
from dispatcher.cli.output import counted
from dispatcher.cli.progress import progress
from dispatcher.core.survey import GROUPS_PER_PAGE_MAX
from dispatcher.errors import CommandRefused, NoAnswer
from dispatcher.group_text import parse_group
from dispatcher.settings_parts import ExhaustedAct

KEYS: Final = ("group", "reason", "attempt", "calls", "consumer", "behind", "since_ms")
COLUMNS: Final = ("stopped group", "reason", "hand-overs", "calls", "by", "behind", "for")


class StoppedGroups:
    """Those of one lane. A lane that is not configured to stop any has none, and nobody is asked."""

    def __init__(self, file: Path, lane: str, timeout_ms: int) -> None:
        settings = options.load_settings(file)
        lane = options.lane_names(settings, lane).lane
        self.may_be = settings.lanes[lane].retry.on_exhausted is ExhaustedAct.PARK
        self._file, self._lane, self._timeout_ms = file, lane, timeout_ms

    def rows(self, selection: Selection) -> list[dict[str, Any]]:
        """The selected ones by their ids. Raises CommandRefused, NoAnswer, BrokerUnavailable."""
        found: list[dict[str, Any]] = []
        after: str | None = None
        while self.may_be:
            page = self._ask("dead.stopped", {"after": after}).get("groups", [])
            found += [row for row in page if _has(selection, row)]
            if len(page) < GROUPS_PER_PAGE_MAX:
                break
            after = page[-1]["group"]
        return found

    def decide(self, verdict: str, selection: Selection, limit: int | None, *, dry_run: bool) -> int:
        """Release, skip or drop the messages at which they stopped; returns how many groups go on.

        Raises what `rows` raises; a refusal, or no answer, says how far it came.
        """
        groups = [row["group"] for row in self.rows(selection)][:limit]
        if dry_run:
            return len(groups)
        done = 0
        with progress(verdict, len(groups)) as advance:
            for group in groups:
                try:
                    self._ask(f"dead.{verdict}", {"group": group})
                except (CommandRefused, NoAnswer) as problem:
                    if done:
                        raise type(problem)(f"{problem}; {counted(done, 'group')} before it") from None
                    raise
                done += 1
                advance()
        return done

    def _ask(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        return ask_lane(self._file, self._lane, name, arguments, self._timeout_ms)


def _has(selection: Selection, row: dict[str, Any]) -> bool:
    return (
        (selection.group is None or parse_group(row["group"]) == selection.group)
        and (selection.reason is None or selection.reason in row["reason"])
        and (selection.origin is None or selection.origin == row["origin"])
    )
