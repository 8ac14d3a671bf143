"""The tables of docs/simulation.md, made from the faults and the planted bugs: `python -m tests.sim.page`."""

from __future__ import annotations

import re
from pathlib import Path

from dispatcher.sim.faults import KINDS
from tests.sim.plants import PLANTS

PAGE = Path(__file__).parents[2] / "docs" / "simulation.md"


def faults() -> str:
    """One row for each kind of fault, by module."""
    rows = ["| fault | what happens |", "|---|---|"]
    for name, kind in sorted(KINDS.items(), key=lambda item: item[1].strike.__module__):
        rows.append(f"| `{name}` | {_sentence(kind.strike.__doc__)} |")
    return "\n".join(rows)


def plants() -> str:
    """One row for each planted bug."""
    rows = ["| bug | planted as | found by |", "|---|---|---|"]
    for name, planted in PLANTS.items():
        checkers = ", ".join(f"`{checker}`" for checker in planted.checkers)
        rows.append(f"| {planted.bug} | `{name}` | {checkers} |")
    return "\n".join(rows)


def _sentence(docstring: str | None) -> str:
    return " ".join((docstring or "").split())


def page(text: str) -> str:
    """The page with both tables as they should be."""
    for name, table in (("faults", faults()), ("plants", plants())):
        text = re.sub(
            rf"(<!-- {name}: [^\n]*-->\n).*?(<!-- end -->)",
            lambda found, table=table: f"{found[1]}\n{table}\n\n{found[2]}",  # type: ignore[misc]
            text,
            flags=re.S,
        )
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
