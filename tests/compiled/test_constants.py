"""What mypyc compiles and then cannot read."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Final

import pytest

ROOT = Path(__file__).parents[2]


def _constants(body: list[ast.stmt], owner: object) -> Iterator[tuple[ast.AnnAssign, object]]:
    """Each `Final` of a module or a class and of the classes in it, with its value."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _constants(node.body, getattr(owner, node.name))
        elif (
            isinstance(node, ast.AnnAssign)
            and isinstance(node.target, ast.Name)
            and "Final" in ast.unparse(node.annotation)
        ):
            yield node, getattr(owner, node.target.id)


def _is_of_floats(value: object) -> bool:
    """Whether it is a tuple of nothing else; one with names is a class, and can be read."""
    if type(value) is not tuple:
        return False
    return bool(value) and all(isinstance(each, float) or _is_of_floats(each) for each in value)


def unreadable(source: str, module: object) -> list[str]:
    """Constants of a module that cannot be read compiled: each read ends in a NameError ("value for final
    name was not set"). These are tuples of nothing but floats, also of tuples of them, if their type has
    their length: `Final` alone and `Final[tuple[float, float]]`. Of any length is read: `tuple[float, ...]`.
    So are tuples of other types, and those that hold one thing that is no float."""
    return [
        f"{node.lineno}: {ast.unparse(node.target)}"
        for node, value in _constants(ast.parse(source).body, module)
        if _is_of_floats(value) and "..." not in ast.unparse(node.annotation)
    ]


def test_every_constant_can_be_read(compiling: ModuleType) -> None:
    paths = compiling.hot_modules(ROOT)
    found = {
        path: unreadable((ROOT / path).read_text(), import_module(path.removesuffix(".py").replace("/", ".")))
        for path in paths
    }
    assert {path: names for path, names in found.items() if names} == {}


#: Each was compiled with mypyc 2.4.1: these could not be read, the others could.
UNREADABLE: Final = (
    "X: Final = (0.5,)",
    "X: Final = (0.5, 1.0)",
    "X: Final[tuple[float, float]] = (0.5, 1.0)",
    "X: Final = (float(1), float(2))",
    "X: Final = ((0.5, 1.0), (2.0, 3.0))",
    "class C:\n    X: Final = (0.5, 1.0)",
)
READABLE: Final = (
    "X: Final[tuple[float, ...]] = (0.5, 1.0)",
    "X: Final = [0.5, 1.0]",
    "X: Final = 0.5",
    "X: Final = (1, 2)",
    "X: Final = (0.5, 1)",
    "X: Final = ('a', 0.5)",
    "X: Final = ()",
    "X = (0.5, 1.0)",
    "class C:\n    X: ClassVar[tuple[float, float]] = (0.5, 1.0)",
)


@pytest.mark.parametrize("source", [*UNREADABLE, *READABLE])
def test_the_form_that_cannot_be_read_is_refused(source: str) -> None:
    names: dict[str, object] = {}
    exec(f"from typing import ClassVar, Final\n{source}", names)
    assert bool(unreadable(source, SimpleNamespace(**names))) == (source in UNREADABLE)
