"""mypyc (2.4.1) reads a property of a class that is derived from one of Python's errors at the wrong place,
and the program ends with a segmentation fault."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]


def properties_of_errors(module: ModuleType) -> list[str]:
    """Those that this module defines."""
    classes = [each for each in vars(module).values() if isinstance(each, type)]
    return [
        f"{each.__name__}.{name}"
        for each in classes
        if issubclass(each, BaseException) and each.__module__ == module.__name__
        for name, value in vars(each).items()
        if isinstance(value, property)
    ]


def test_no_error_of_a_compiled_module_has_a_property(compiling: ModuleType) -> None:
    names = [path.removesuffix(".py").replace("/", ".") for path in compiling.hot_modules(ROOT)]
    assert len(names) > 100
    assert [found for name in names for found in properties_of_errors(import_module(name))] == []


def test_a_property_of_an_error_is_found() -> None:
    module = ModuleType("sample")

    class Wrong(OSError):
        @property
        def kind(self) -> int:
            return 1

    class Right:
        @property
        def kind(self) -> int:
            return 1

    for each in (Wrong, Right):
        each.__module__ = module.__name__
        setattr(module, each.__name__, each)
    assert properties_of_errors(module) == ["Wrong.kind"]
