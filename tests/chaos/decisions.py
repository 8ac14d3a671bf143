"""What the chaos's operator decided about messages, as its verdict needs it."""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

PURGE: Final = "groups.purge"
MOVE: Final = "groups.move"
REROUTE: Final = "groups.reroute"
RELEASE, SKIP, DROP = "dead.release", "dead.skip", "dead.drop"
#: Those that send messages to the target.
SENDING: Final = frozenset({MOVE, REROUTE})
TAKING: Final = SENDING | {PURGE}
#: Those after which a group that had stopped may go on.
DECIDING: Final = frozenset({RELEASE, SKIP, DROP, PURGE, MOVE, REROUTE})
_GONE: Final = re.compile(r"(\d+) of its messages (?:went|were purged)")
_DOUBTFUL: Final = re.compile(r"(\d+) of the rest may have gone")


class Decision(NamedTuple):
    """One command about what a group had waiting, and what came of it."""

    command: str
    group: str  # or its bucket
    since: float
    until: float
    messages: int | None  # that it took out, or let go on; None: nobody said
    doubtful: int = 0  # that it may have taken besides
    of_failed: bool = True  # drops: what was deleted had been begun by somebody

    why: str = ""  # it was refused, or failed

    def said(self) -> str:
        """What came of it, for people."""
        if self.messages is None:
            return "nobody says what came of it"
        return f"{self.messages} messages" + (f" ({self.why[:80]})" if self.why else "")

    @property
    def lets_go_on(self) -> bool:
        """What its group had stopped at may be tried again."""
        return self.command == RELEASE and self.messages != 0


def with_result(decision: Decision, result: dict[str, Any]) -> Decision:
    """What the dispatcher said when it was done."""
    if decision.command == DROP:
        return decision._replace(messages=1, of_failed=result["reason"] != "poison")
    return decision._replace(messages=result.get("messages", 1))


def with_error(decision: Decision, error: str) -> Decision:
    """What it said when it was refused, or failed on the way."""
    gone, doubtful = _GONE.search(error), _DOUBTFUL.search(error)
    return decision._replace(
        messages=int(gone[1]) if gone is not None else 0,
        doubtful=int(doubtful[1]) if doubtful is not None else 0,
        why=error,
    )
