"""docs/features.md, made from the rows and from the marks of the tests: `python -m tests.features.page`."""

from __future__ import annotations

import ast
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "features.md"
ROWS = Path(__file__).with_name("rows.toml")
FAMILIES = {
    "Q": "Apache Qpid: the proposal for message groups",
    "A": "Apache ActiveMQ Artemis: message grouping",
    "C": "Apache ActiveMQ Classic: message groups",
    "R": "RocketMQ: ordered messages",
    "D": "Fair consuming with deficit weighted round robin",
}
_INTRODUCTION = """\
# Features, row by row

<!-- Made by `python -m tests.features.page`; edit tests/features/rows.toml and the marks of the tests. -->

What other systems have for message groups and fair consuming, what it is called here, and the tests that
prove it, most of them against real RabbitMQ and Redis. A row without a test is not there yet.
"""


@dataclass(frozen=True)
class Row:
    """One behaviour of a system that had groups before; `because` says why it has no test."""

    what: str
    ours: str
    because: str = ""


def rows() -> dict[str, Row]:
    return {key: Row(**values) for key, values in tomllib.loads(ROWS.read_text()).items()}


def proofs() -> dict[str, list[str]]:
    """The tests (`tests/cli/test_commands.py: test_name`) that are marked with a row's id, by id."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for name, identity in _marks(ast.parse(path.read_text())):
            found[identity].append(f"{path.relative_to(ROOT).as_posix()}: {name}")
    return found


def _marks(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(test's name, row's id) for every `@pytest.mark.seed("Q6", …)`."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for mark in node.decorator_list:
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.seed":
                yield from ((node.name, str(ast.literal_eval(argument))) for argument in mark.args)


def page(proven: dict[str, list[str]]) -> str:
    """The whole page."""
    parts = [_INTRODUCTION]
    for letter, title in FAMILIES.items():
        parts.append(f"\n## {title}\n\n| row | there | here | tests |\n|---|---|---|---|\n")
        for identity, row in rows().items():
            if identity.startswith(letter):
                parts.append(f"| {identity} | {row.what} | {_here(row, proven[identity])} |\n")
    return "".join(parts)


def _here(row: Row, tests: list[str]) -> str:
    """The last two cells of a row."""
    if tests or row.because:
        return f"{row.ours} | {'<br>'.join(f'`{test}`' for test in tests) or row.because}"
    return "— | not yet"


if __name__ == "__main__":
    proven = proofs()
    PAGE.write_text(page(proven))
    unproven = [identity for identity, row in rows().items() if not (proven[identity] or row.because)]
    print("without a test:", " ".join(unproven) or "none")
