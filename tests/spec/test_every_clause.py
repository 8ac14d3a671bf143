"""Every clause of docs/semantics.md is quoted by a test, and no test quotes one that is not there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.spec.lane_bench import SEMANTICS

TESTS = Path(__file__).parents[1]


def _quoted_in(path: Path) -> Iterator[str]:
    """The clauses that the test functions of this file name."""
    for test in ast.walk(ast.parse(path.read_bytes())):
        if not isinstance(test, ast.FunctionDef | ast.AsyncFunctionDef) or not test.name.startswith("test_"):
            continue
        for node in ast.walk(test):
            match node:
                case ast.Call(func=ast.Name(id="clause"), args=[ast.Constant(value=str(name)), _]):
                    yield name


def test_every_clause_is_quoted_by_a_test() -> None:
    clauses = re.findall(r"\*\*([A-Z]-\d+[a-z]?)\b", SEMANTICS)
    assert len(clauses) == len(set(clauses)) > 100, "each stands there once"
    quoted = {name for path in TESTS.rglob("test_*.py") for name in _quoted_in(path)}
    assert set(clauses) - quoted == set(), "no test quotes these"
    assert quoted - set(clauses) == set(), "the page does not have these"
