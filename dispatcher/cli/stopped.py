"""Groups that have stopped at a message that failed (`retry.on_exhausted: stop`), as the dispatcher says."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from dispatcher.cli import options
from dispatcher.cli.command_client import ask
from dispatcher.cli.dead_queue import Selection
from dispatcher.cli.output import counted
from dispatcher.cli.progress import progress
from dispatcher.cli.rabbitmq import OperatorConnection, connected
from dispatcher.core.bounds import GROUPS_PER_PAGE_MAX
from dispatcher.errors import CommandRefused, NoAnswer
from dispatcher.settings import ExhaustedAct
from dispatcher.wire.group_text import parse_group

KEYS: Final = ("group", "reason", "attempt", "calls", "consumer", "behind", "since_ms")
COLUMNS: Final = ("stopped group", "reason", "hand-overs", "calls", "by", "behind", "for")


class StoppedGroups:
    """Those of one lane. A lane that is not configured to stop groups has none, and its dispatcher is not
    asked."""

    def __init__(self, file: Path, lane: str, timeout_ms: int) -> None:
        settings = options.load_settings(file)
        self._names = options.lane_names(settings, lane)
        self.may_be = settings.lanes[lane].retry.on_exhausted is ExhaustedAct.STOP
        self._rabbitmq, self._timeout_ms = settings.rabbitmq, timeout_ms

    def rows(self, selection: Selection) -> list[dict[str, Any]]:
        """The selected ones by their ids. Raises CommandRefused, NoAnswer, BrokerUnavailable."""
        if not self.may_be:
            return []
        with connected(self._rabbitmq, "dead") as connection:
            return self._rows(connection, selection)

    def _rows(self, connection: OperatorConnection, selection: Selection) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        after: str | None = None
        while True:
            page = self._ask(connection, "dead.stopped", {"after": after}).get("groups", [])
            found += [row for row in page if _has(selection, row)]
            if len(page) < GROUPS_PER_PAGE_MAX:
                break
            after = page[-1]["group"]
        return found

    def decide(self, verdict: str, selection: Selection, limit: int | None, *, dry_run: bool) -> int:
        """Release, skip or drop the messages at which they stopped; returns how many groups go on.

        Raises what `rows` raises; a refusal, or no answer, says how far it came.
        """
        if not self.may_be:
            return 0
        with connected(self._rabbitmq, "dead") as connection:
            groups = [row["group"] for row in self._rows(connection, selection)][:limit]
            if not dry_run:
                self._decide(connection, verdict, groups)
        return len(groups)

    def _decide(self, connection: OperatorConnection, verdict: str, groups: list[str]) -> None:
        done = 0
        with progress(verdict, len(groups)) as advance:
            for group in groups:
                try:
                    self._ask(connection, f"dead.{verdict}", {"group": group})
                except (CommandRefused, NoAnswer) as problem:
                    if done:
                        raise type(problem)(f"{problem}; {counted(done, 'group')} before it") from None
                    raise
                done += 1
                advance()

    def _ask(self, connection: OperatorConnection, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        return ask(connection, self._names, name, arguments, timeout_ms=self._timeout_ms)


def _has(selection: Selection, row: dict[str, Any]) -> bool:
    return (
        (selection.group is None or parse_group(row["group"]) == selection.group)
        and (selection.reason is None or selection.reason in row["reason"])
        and (selection.origin is None or selection.origin == row["origin"])
    )
