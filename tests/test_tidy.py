"""House rules that a program can check. A rule is changed here, with its reason, or it holds."""

from __future__ import annotations

import ast
import re
import statistics
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("dispatcher", "tests", "bench", "deploy")
MODULE_LINES_MEDIAN_MAX = 150
FUNCTION_LINES_MAX = 60
SHORT_FUNCTION_LINES = 25
SHORT_FUNCTIONS_SHARE_MIN = 0.9
BANNED_NAMES = {"util", "utils", "helper", "helpers", "manager", "info", "misc", "common"}
EDGES = {
    "amqp",
    "bench",
    "cli",
    "client",
    "conformance",
    "demo",
    "http",
    "ledger",
    "nodes",
    "pipeline",
    "redis_store",
    "service",
}
CORE_MUST_NOT_IMPORT = {"asyncio", "logging", "random", "secrets", "socket", "threading", "time"}
#: In these no module imports itself by way of others, not even for type checking only.
WITHOUT_CIRCLES = (
    "dispatcher.amqp",
    "dispatcher.cli",
    "dispatcher.client",
    "dispatcher.conformance",
    "dispatcher.core",
    "dispatcher.demo",
    "dispatcher.http",
    "dispatcher.ledger",
    "dispatcher.nodes",
    "dispatcher.pipeline",
    "dispatcher.redis_store",
    "dispatcher.service",
    "dispatcher.settings",
    "dispatcher.sim",
    "dispatcher.wire",
)
#: Where a function may import a part of the product: other commands begin without it (tests/test_imports.py).
IMPORTS_LATE = ("dispatcher.cli", "dispatcher.demo")
#: A test waits for a condition (tests/waiting.py). These sleep for another reason.
SLEEPING_TESTS = {
    "tests/waiting.py": "it is what the others wait with",
}
#: A line that says so is no wait for an outcome, but part of what is being tested (a slow handler, load).
SLEEP_IS_MEANT = "# sleeps:"


def _files(*folders: str, suffix: str = ".py") -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob(f"*{suffix}"))


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if (
        isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and isinstance(first.value.value, str)
    ):
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


def _imports(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{_name(path)}:{node.lineno}: imports are absolute"
            yield node.module or "", node.lineno


def _called(call: ast.Call) -> str:
    """The dotted name of what is called; empty where that has none."""
    names, node = [], call.func
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(names)]) if isinstance(node, ast.Name) else ""


def test_half_of_the_modules_are_no_longer_than_150_lines() -> None:
    lengths = [len(path.read_text().splitlines()) for path in _files("dispatcher")]
    assert statistics.median(lengths) <= MODULE_LINES_MEDIAN_MAX


def test_no_function_is_longer_than_60_lines() -> None:
    long = {
        f"{_name(path)}:{function.name}": _length(function)
        for path in _files("dispatcher")
        for function in _functions(path)
        if _length(function) > FUNCTION_LINES_MAX
    }
    assert not long


def test_nine_of_ten_functions_are_shorter_than_25_lines() -> None:
    lengths = [_length(function) for path in _files("dispatcher") for function in _functions(path)]
    short = sum(length < SHORT_FUNCTION_LINES for length in lengths)
    assert short / len(lengths) >= SHORT_FUNCTIONS_SHARE_MIN


def test_no_module_has_a_name_that_says_nothing() -> None:
    vague = [
        _name(path)
        for path in _files(*FOLDERS)
        if BANNED_NAMES & set(re.split(r"_|/|\.", _name(path).lower()))
    ]
    assert not vague


def test_no_two_public_classes_have_the_same_name() -> None:
    modules: dict[str, list[str]] = {}
    for path in _files("dispatcher"):
        for node in ast.walk(_tree(path)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules.setdefault(node.name, []).append(f"{_name(path)}:{node.lineno}")
    twice = {name: found for name, found in modules.items() if len(found) > 1}
    assert not twice, "one word, one meaning: who reads the name should know which one it is"


def test_tests_do_not_sleep_to_wait_for_an_outcome() -> None:
    found = []
    for path in _files("tests"):
        if _name(path) in SLEEPING_TESTS:
            continue
        lines = path.read_text().splitlines()
        for node in ast.walk(_tree(path)):
            if isinstance(node, ast.Call) and _called(node) in {"time.sleep", "asyncio.sleep", "sleep"}:
                # sleep(0) only lets other tasks run.
                yields = [ast.unparse(argument) for argument in node.args] == ["0"]
                if not yields and SLEEP_IS_MEANT not in lines[node.lineno - 1]:
                    found.append(f"{_name(path)}:{node.lineno}")
    assert not found, f"wait with tests/waiting.py, or say why it sleeps ({SLEEP_IS_MEANT} a slow handler)"


def test_tests_use_the_real_thing() -> None:
    found = []
    for path in _files("tests"):
        found += [
            f"{_name(path)}:{line}"
            for module, line in _imports(path)
            if module.split(".")[0] in {"mock", "pytest_mock"} or module.startswith("unittest")
        ]
        found += [
            f"{_name(path)}:{node.lineno}"
            for node in ast.walk(_tree(path))
            if isinstance(node, ast.Call) and _called(node) in {"monkeypatch.setattr", "monkeypatch.setitem"}
        ]
    assert not found, "no mocks and no patched code: RabbitMQ and Redis run for real"


@pytest.mark.parametrize("path", _files("dispatcher/core"), ids=_name)
def test_core_imports_no_clock_no_io_and_no_edge(path: Path) -> None:
    found = [
        f"{_name(path)}:{line} imports {module}"
        for module, line in _imports(path)
        if module.split(".")[0] in CORE_MUST_NOT_IMPORT
        or (module.startswith("dispatcher.") and module.split(".")[1] in EDGES)
    ]
    assert not found


def _module(path: Path) -> str:
    return _name(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _belongs(module: str, folders: tuple[str, ...]) -> bool:
    return any(f"{module}.".startswith(f"{folder}.") for folder in folders)


@cache
def _imports_of_modules() -> dict[str, set[str]]:
    """Which modules of the product each one imports: at its top, in functions, for type checking."""
    modules = {_module(path): path for path in _files("dispatcher")}
    graph: dict[str, set[str]] = {}
    for module, path in modules.items():
        imported = {name for name, _ in _imports(path)}
        for node in ast.walk(_tree(path)):
            if isinstance(node, ast.ImportFrom):  # what is imported may be a module itself
                imported |= {f"{node.module}.{alias.name}" for alias in node.names}
                if all(f"{node.module}.{alias.name}" in modules for alias in node.names):
                    imported.discard(node.module or "")
        graph[module] = (imported & modules.keys()) - {module}
    return graph


def _way_back(module: str) -> list[str]:
    """The shortest way by which it imports itself; empty: there is none."""
    graph = _imports_of_modules()
    ways, seen = [[module]], set[str]()
    for way in ways:
        for following in sorted(graph[way[-1]]):
            if following == module:
                return [*way, module]
            if following not in seen:
                seen.add(following)
                ways.append([*way, following])
    return []


@pytest.mark.parametrize("folder", WITHOUT_CIRCLES)
def test_no_module_imports_itself_by_way_of_others(folder: str) -> None:
    modules = [module for module in _imports_of_modules() if _belongs(module, (folder,))]
    assert modules, f"{folder} is not there any more"
    circles = {module: " -> ".join(way) for module in modules if (way := _way_back(module))}
    assert not circles


def test_no_function_imports_what_its_module_could() -> None:
    """A function's import hides who needs whom, and lets a circle live on."""
    found = [
        f"{_name(path)}:{node.lineno}"
        for path in _files("dispatcher")
        if _belongs(_module(path), WITHOUT_CIRCLES) and not _belongs(_module(path), IMPORTS_LATE)
        for function in _functions(path)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
        and re.match(r"(from|import) dispatcher\b", ast.unparse(node))
    ]
    assert not found


def test_readme_begins_with_the_two_commands() -> None:
    blocks = re.findall(r"^```\w*\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert blocks[0].split() == ["scripts/demo", "scripts/test"]
