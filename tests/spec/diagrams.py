"""Draws the state diagrams of docs/semantics.md from the tables: `python -m tests.spec.diagrams`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from enum import Enum
from pathlib import Path
from typing import Final

from dispatcher.core.consumer_life import CONSUMER_TRANSITIONS
from dispatcher.core.model import GROUP_TRANSITIONS

PAGE: Final = Path(__file__).parents[2] / "docs" / "semantics.md"


def diagram(title: str, transitions: Mapping[Enum, Set[Enum]]) -> str:
    """A Mermaid state diagram, transitions in the order of the enum."""
    order = list(type(next(iter(transitions))))
    lines = [f"    {a.value} --> {b.value}" for a in order for b in order if b in transitions[a]]
    return "\n".join([f"{title}\n", "```mermaid", "stateDiagram-v2", *lines, "```"])


DIAGRAMS: Final = {
    "groups": diagram("Groups:", GROUP_TRANSITIONS),
    "consumers": diagram("Consumers:", CONSUMER_TRANSITIONS),
}


def with_diagrams(page: str) -> str:
    """The page with every diagram drawn anew."""
    for name, drawn in DIAGRAMS.items():
        block = re.compile(rf"(<!-- diagram: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        page = block.sub(lambda found, drawn=drawn: f"{found[1]}{drawn}\n{found[2]}", page)  # type: ignore[misc]
    return page


if __name__ == "__main__":
    PAGE.write_text(with_diagrams(PAGE.read_text()))
