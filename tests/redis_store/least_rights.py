"""The least rights on Redis, read from docs/security.md."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/security.md"
#: The page's example: the keys of one lane.
ONE_LANE = "~{dispatch:orders}:*"


def documented() -> list[str]:
    """The words of the rule behind `ACL SETUSER dispatcher`."""
    found = re.search(r"```text\nACL SETUSER dispatcher (.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    rule = found[1].split()
    assert ONE_LANE in rule
    return rule


def pattern_for(whom: str) -> str:
    """The pattern that another user gets instead of ONE_LANE."""
    found = re.search(rf"{whom}\s+(?:gets the pattern )?`(~\S+)`", " ".join(PAGE.read_text().split()))
    assert found is not None
    return found[1]


def documented_for_a_removal() -> str:
    """What `lane remove` needs besides."""
    found = re.search(r"^- `dispatcher lane remove` needs `([^`]+)` too", PAGE.read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def documented_for_a_cluster() -> list[str]:
    """What comes to that on a Redis Cluster."""
    found = re.search(r"^- A \[Redis Cluster\]\S+ needs `([^`]+)` too", PAGE.read_text(), re.MULTILINE)
    assert found is not None
    return found[1].split()
