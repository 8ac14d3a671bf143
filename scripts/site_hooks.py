"""What MkDocs needs besides mkdocs.yml: references made from the code, pictures of diagrams, and links that
leave docs/."""

from __future__ import annotations

import hashlib
import html
import inspect
import json
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mermaidx
import typer.main
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import dispatcher.client
from dispatcher.cli import app
from dispatcher.http.metrics import registry
from dispatcher.settings import json_schema

DOCS = Path(__file__).parents[1] / "docs"
LINK = re.compile(r"\[([^\]]+)\]\(([^)\s:#]+)(#[^)]*)?\)")
DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: In the order of the page, with the keys' prefixes.
SETTINGS = {
    "RabbitSettings": "rabbitmq.", "RedisSettings": "redis.", "HttpSettings": "http.",
    "LedgerSettings": "ledger.", "TraceSettings": "traces.",
    "LaneSettings": "lanes.*.", "InboundSettings": "lanes.*.inbound[].", "RetrySettings": "lanes.*.retry.",
    "StartSettings": "lanes.*.start.", "GroupWindowSettings": "lanes.*.group_window.",
    "RebalanceSettings": "lanes.*.rebalance.", "DedupSettings": "lanes.*.dedup.",
}  # fmt: skip


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the references."""
    made = {
        "configuration": configuration, "commands": commands, "metrics": metrics, "http-api": http_api,
        "python": python_interface,
    }  # fmt: skip
    for name, make in made.items():
        text = "\n".join(make())
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    for diagram in diagrams():
        path = diagram_path(diagram)
        if not (DOCS / path).exists():
            files.append(File.generated(config, path, content=drawn(diagram)))
    return files


def diagrams() -> list[str]:
    """Of all pages, each once. Their pictures are kept in docs/, because each takes seconds to draw."""
    return sorted({diagram for page in DOCS.rglob("*.md") for diagram in DIAGRAM.findall(page.read_text())})


def diagram_path(diagram: str) -> str:
    return f"assets/diagrams/{hashlib.sha256(diagram.encode()).hexdigest()[:16]}.svg"


def drawn(diagram: str) -> str:
    """As a picture that needs no script: on white, because it is dark on light, and without HTML in it, which
    pictures may not have everywhere."""
    svg: str = mermaidx.render(diagram, config={"htmlLabels": False}).svg()
    return svg.replace("background-color: transparent", "background-color: white", 1)


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """A link to a file of the repository that is no page is only its text here, and diagrams are pictures."""
    root = posixpath.relpath(".", posixpath.dirname(page.file.src_uri) or ".")

    def picture(match: re.Match[str]) -> str:
        words = "; ".join(line.strip() for line in match[1].splitlines())
        alt = html.escape(f"Diagram: {words}")
        return f'<img class="diagram" src="{root}/{diagram_path(match[1])}" alt="{alt}">'

    def local(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), match[2]))
        return match[1] if target.startswith("..") else match[0]

    return LINK.sub(local, DIAGRAM.sub(picture, markdown))


def cell(text: Any) -> str:
    return " ".join(str(text).split()).replace("|", r"\|")


def configuration() -> Iterator[str]:
    schema = json_schema()
    yield "# Configuration keys\n"
    yield "Made from the schema that `dispatcher config schema` prints."
    yield "[Operations](../operations.md#configuration) explains the file, and what each key does.\n"
    for name, prefix in SETTINGS.items():
        yield f"\n## `{prefix.rstrip('.')}`\n"
        yield "| key | default | |\n|---|---|---|"
        definition = schema["$defs"][name]
        required = definition.get("required", [])
        for key, value in definition["properties"].items():
            default = "required" if key in required else f"`{json.dumps(value.get('default'))}`"
            yield f"| `{prefix}{key}` | {default} | {cell(value.get('description', ''))} |"


def commands() -> Iterator[str]:
    yield "# Commands\n"
    yield "Made from `--help`. [Operations](../operations.md#commands) says what to know about them.\n"
    yield from _commands(typer.main.get_command(app), "dispatcher")


def _commands(group: Any, path: str) -> Iterator[str]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{path} {name}")
        else:
            yield from _command(command, f"{path} {name}")


def _command(command: Any, path: str) -> Iterator[str]:
    given = [p for p in command.params if p.param_type_name == "argument"]
    usage = " ".join(p.metavar or p.name.upper() for p in given)
    yield f"\n## {path}\n\n```console\n$ {path} {usage}".rstrip() + "\n```\n"
    yield inspect.cleandoc(command.help or "").replace("\n\n", "\n\n") + "\n"
    options = [p for p in command.params if p.param_type_name == "option"]
    if options:
        yield "| option | |\n|---|---|"
    for option in options:
        names = ", ".join(f"`{name}`" for name in option.opts)
        yield f"| {names} | {cell(option.help or '')} |"


class AnyLane:
    """Stands for a lane: the names of metrics don't depend on it."""

    name = "orders"

    def readiness(self) -> tuple[bool, str]:
        return True, "leading"

    def overview(self) -> dict[str, Any]:
        return {}

    def counters(self) -> dict[str, float]:
        return {}

    def durations(self) -> dict[str, Any]:
        return {}


def metrics() -> Iterator[str]:
    suffixes = {"counter": "_total", "info": "_info"}
    yield "# Metrics\n"
    yield "Made from what `/metrics` answers. [Operations](../operations.md#metrics) says what the labels are"
    yield "and when totals begin, and [has a runbook for each alert](../operations.md#alerts).\n"
    yield "| metric | type | |\n|---|---|---|"
    for family in registry([AnyLane()]).collect():  # type: ignore[list-item]
        if not family.name.startswith("process_"):
            name = family.name + suffixes.get(family.type, "")
            yield f"| `{name}` | {family.type} | {cell(family.documentation)} |"


def http_api() -> Iterator[str]:
    description = json.loads((DOCS / "openapi.json").read_text())
    yield "# HTTP API\n"
    yield "Made from [openapi.json](../openapi.json), which describes each field of each answer."
    yield "[Operations](../operations.md#the-json-api) has errors and examples.\n"
    for path, method, operation in [
        (path, method, operation)
        for path, methods in description["paths"].items()
        for method, operation in methods.items() if method in ("get", "post")
    ]:  # fmt: skip
        yield f"\n## `{method.upper()} {path}`\n\n{operation['summary']}.\n"
        parameters = operation.get("parameters", [])
        if parameters:
            yield "| parameter | in | |\n|---|---|---|"
        for parameter in parameters:
            about = cell(parameter.get("description", ""))
            yield f"| `{parameter['name']}` | {parameter['in']} | {about} |"


def python_interface() -> Iterator[str]:
    yield "# Python interface\n"
    yield "Made from the docstrings of `dispatcher.client`. [The Python client](../sdk.md) shows their use.\n"
    for name in dispatcher.client.__all__:
        kind = getattr(dispatcher.client, name)
        yield f"\n## {name}\n\n```python\n{name}{_signature(kind)}\n```\n"
        yield _text(kind)
        for method, value in inspect.getmembers(kind):
            if method.startswith("_") or not (inspect.isfunction(value) or isinstance(value, property)):
                continue
            signature = "" if isinstance(value, property) else _signature(value)
            yield f"\n### {name}.{method}\n\n```python\n{method}{signature}\n```\n"
            yield _text(value)


def _signature(value: Any) -> str:
    try:
        return str(inspect.signature(value)).replace("(self, ", "(").replace("(self)", "()")
    except (TypeError, ValueError):
        return ""


def _text(value: Any) -> str:
    return inspect.getdoc(value) or ""
