"""What users meet is documented, and what is documented exists."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from pydantic import BaseModel

from dispatcher import errors
from dispatcher.cli import app
from dispatcher.errors import DispatcherError
from dispatcher.http.metrics import registry
from dispatcher.http.server import HttpServer
from dispatcher.redis_store.connection import VERSION_MIN
from dispatcher.settings import (
    GROUP_PROPERTIES,
    HttpSettings,
    InboundSettings,
    LaneSettings,
    RebalanceSettings,
    Reload,
    Settings,
    json_schema,
)

DOCS = Path(__file__).parents[1] / "docs"
PAGES = [*sorted(DOCS.glob("*.md")), DOCS.parent / "README.md", DOCS.parent / "CHANGELOG.md"]
OPERATIONS = (DOCS / "operations.md").read_text()


def rows(header: str) -> Iterator[list[str]]:
    """The cells of every table of operations.md whose first column has this header."""
    inside = False
    for line in OPERATIONS.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if cells and cells[0] == header:
            inside = True
        elif not cells:
            inside = False
        elif inside and not set(line) <= set("|- "):
            yield cells


def codes(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def commands(group: Any, path: str = "dispatcher") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def test_every_command_is_documented_with_its_arguments() -> None:
    existing = {}
    for path, command in commands(typer.main.get_command(app)):
        given = [p for p in command.params if p.param_type_name == "argument"]
        arguments = [p.metavar if p.required else f"[{p.metavar}]" for p in given]
        existing[" ".join([path, *arguments])] = command
    documented = {codes(cells[0])[0]: cells[1] for cells in rows("command")}
    assert documented.keys() == existing.keys()
    assert all(documented.values())


@pytest.mark.parametrize(("path", "command"), list(commands(typer.main.get_command(app))))
def test_every_option_is_documented(path: str, command: Any) -> None:
    section = OPERATIONS.partition("## Configuration")[0]
    for parameter in command.params:
        for option in parameter.opts if parameter.param_type_name == "option" else []:
            assert re.search(rf"`[^`]*{re.escape(option)}[^`]*`", section), f"{path} {option}"


def schema_keys() -> dict[str, Any]:
    """Every key with its default as the documentation has it."""
    schema = json_schema()
    found = {key: schema["properties"][key]["default"] for key in ("prefix", "spread_lanes", "workers")}
    places = (
        ("rabbitmq.", "RabbitSettings"), ("redis.", "RedisSettings"), ("http.", "HttpSettings"),
        ("http.tokens.", "TokenSettings"),
        ("ledger.", "LedgerSettings"), ("traces.", "TraceSettings"),
        ("", "LaneSettings"), ("inbound[].", "InboundSettings"), ("retry.", "RetrySettings"),
        ("start.", "StartSettings"), ("group_window.", "GroupWindowSettings"),
        ("rebalance.", "RebalanceSettings"), ("dedup.", "DedupSettings"),
    )  # fmt: skip
    for prefix, name in places:
        for key, value in schema["$defs"][name]["properties"].items():
            if "$ref" not in value:  # a mapping, whose keys are in the table
                found[prefix + key] = value.get("default", "required")
    return found


def shown(key: str, default: Any) -> str:
    match default:
        case "required":
            return "required"
        case None:
            return "none" if "." in key else "`null`"
        case bool():
            return f"`{str(default).lower()}`"
        case list():
            return f"`[{', '.join(default)}]`"
        case _:
            return f"`{default}`"


def test_every_configuration_key_is_documented_with_its_default() -> None:
    documented = {codes(cells[0])[0]: cells[1] for cells in rows("key")}
    assert documented == {key: shown(key, default) for key, default in schema_keys().items()}


def test_the_least_version_of_redis_is_named() -> None:
    least = ".".join(map(str, VERSION_MIN))
    assert f"| Redis | {least} to " in (DOCS.parent / "README.md").read_text()
    assert f"It must be {least} or newer" in OPERATIONS


def test_every_property_that_can_name_a_group_is_documented() -> None:
    sentence = OPERATIONS.partition("Properties that can name a group:")[2].partition("\n\n")[0]
    assert codes(sentence) == list(GROUP_PROPERTIES)


class _Lane:
    """A lane that has a number for everything."""

    name = "orders"

    def readiness(self) -> tuple[bool, str]:
        return True, "leading"

    def overview(self) -> dict[str, Any]:
        return {}

    def counters(self) -> dict[str, float]:
        return {}

    def durations(self) -> dict[str, Any]:
        return {}


def test_every_metric_is_documented() -> None:
    suffixes = {"counter": "_total", "info": "_info"}
    existing = {
        family.name + suffixes.get(family.type, "")
        for family in registry([_Lane()]).collect()
        if not family.name.startswith("process_")
    }
    documented = [codes(cells[0])[0] for cells in rows("metric")]
    assert sorted(documented) == sorted(existing)


def test_every_error_is_documented_and_in_the_tree_of_its_module() -> None:
    existing = {
        name
        for name, value in inspect.getmembers(errors, inspect.isclass)
        if issubclass(value, DispatcherError) and value.__module__ == errors.__name__
    }
    assert {codes(cells[0])[0] for cells in rows("error")} == existing
    assert errors.__doc__ is not None
    assert set(re.findall(r"\b[A-Z][a-z]+[A-Z]\w+|\bFenced\b", errors.__doc__)) >= existing


def test_http_paths_are_documented() -> None:
    served = {route.resource.canonical for route in HttpServer(HttpSettings(), []).app().router.routes()}
    assert {code for cells in rows("path") for code in codes(cells[0])} == served


@pytest.mark.parametrize("document", sorted(DOCS.glob("*.md")), ids=lambda path: path.name)
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text()):
        assert (document.parent / target).exists(), target


def test_the_glossary_is_sorted_and_has_each_word_once() -> None:
    words = [
        line.split("|")[1].strip().lower()
        for line in (DOCS / "glossary.md").read_text().splitlines()
        if line.startswith("|") and not line.startswith(("| word", "|---"))
    ]
    assert words == sorted(set(words))


def _prose_lines(page: Path) -> Iterator[tuple[int, str]]:
    """Lines that can be wrapped: not of code, not of tables."""
    is_code = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code and not line.lstrip().startswith("|"):
            yield number, line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lines_of_documents_fit_on_a_screen(page: Path) -> None:
    """Code spans and addresses are not wrapped, and may make a line longer."""
    long = [number for number, line in _prose_lines(page) if len(re.sub(r"`[^`]*`|\(\S+\)", "", line)) > 120]
    assert not long, f"{page}: wrap these lines at 120 characters"


def _marked(model: type[BaseModel], how: Reload) -> set[str]:
    return {
        field.alias or name for name, field in model.model_fields.items() if how in field.metadata
    }  # fmt: skip


def test_what_a_reload_changes_is_what_the_settings_say() -> None:
    """operations.md has the keys that change at once, and those that need a restart."""
    changing = OPERATIONS.partition("### Changing the configuration")[2].partition("\n### ")[0]
    (at_once,) = [line for line in changing.splitlines() if line.startswith("| `changed` |")]
    live = _marked(LaneSettings, Reload.AT_ONCE)
    live |= {f"rebalance.{key}" for key in _marked(RebalanceSettings, Reload.AT_ONCE)}
    live |= {f"inbound[].{key}" for key in _marked(InboundSettings, Reload.AT_ONCE)}
    assert set(codes(at_once)) - {"changed"} == live
    restart = changing[: changing.index("can't change in this way")].rpartition("\n\n")[2]
    assert set(codes(restart)) == _marked(Settings, Reload.RESTART) | _marked(LaneSettings, Reload.RESTART)
