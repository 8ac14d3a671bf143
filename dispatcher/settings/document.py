"""The configuration file as plain values: YAML read node by node, so that every complaint has its path.

Stricter than YAML itself where that catches mistakes: a key may stand only once, merge keys and private
tags are refused, keys are text exactly as written (`on:` is a lane named "on"), and dates stay text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import yaml

from dispatcher.errors import ConfigurationError
from dispatcher.settings.kinds import FromVariable

Path = tuple[str | int, ...]

#: A value that could not be read; the problem that says why has its path.
BROKEN: Final = object()
#: A file of aliases to aliases can describe billions of values in a few lines.
_VALUES_MAX: Final = 100_000
#: Below these a value may have a password in it, or be one that stands in the wrong place.
_SECRET_KEYS: Final = frozenset({"url", "urls", "tokens", "sentinel_password"})
#: A longer value is cut where a problem shows it.
_SHOWN_MAX: Final = 60
_TAG: Final = "tag:yaml.org,2002:"
_VARIABLE = re.compile(r"\$\$\{|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}|\$\{")


def path_text(path: Path) -> str:
    """`lanes.orders.inbound[1].weight`"""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


class Problems:
    """The problems of a document, with paths, in the order in which they were found."""

    def __init__(self) -> None:
        self._found: dict[tuple[Path, str], bool] = {}  # whether to show the value
        self._nodes: dict[Path, yaml.Node] = {}

    def add(self, path: Path, text: str, *, shows_value: bool = True) -> None:
        self._found.setdefault((path, text), shows_value)

    def place(self, path: Path, node: yaml.Node) -> None:
        """The file has the value at this path there."""
        self._nodes[path] = node

    def lines(self) -> list[str]:
        """One for each problem: its path, the text, and the line and the value that the file has there."""
        return [
            f"{path_text(path)}: {text}{self._where(path, shows_value)}" if path else text
            for (path, text), shows_value in self._found.items()
        ]

    def _where(self, path: Path, shows_value: bool) -> str:
        """A value is shown as it is in the file, so `${VAR}` stays. What may be a secret is not shown."""
        node = self._nodes.get(path)
        if node is None:
            return ""
        line = f"line {node.start_mark.line + 1}"
        if not shows_value or not isinstance(node, yaml.ScalarNode) or not _SECRET_KEYS.isdisjoint(path):
            return f" ({line})"
        value = repr(node.value) if node.style else node.value
        return f" ({line}: {value if len(value) <= _SHOWN_MAX else value[:_SHOWN_MAX] + '…'})"

    def __bool__(self) -> bool:
        return bool(self._found)


def read_document(text: str, environ: Mapping[str, str], problems: Problems) -> Any:
    """The file's value, with `${VAR}` and `${VAR:-default}` replaced; a part that can't be read is BROKEN.

    A value from a variable is FromVariable: text that its key may read as a number or a flag. Only an empty
    value without quotes (`ca_file: ${CA:-}`) is null. Raises ConfigurationError when the text is not YAML at
    all.
    """
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        return None if node is None else _Reader(loader, environ, problems).value(node, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ConfigurationError(f"{place}not YAML: {error.problem or error.context}") from None
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        line, column = before.count("\n") + 1, error.position - before.rfind("\n")
        problem = f"not YAML: #x{error.character:04x}: {error.reason}"
        raise ConfigurationError(f"line {line}, column {column}: {problem}") from None
    except RecursionError:
        raise ConfigurationError("not a configuration: nested too deeply") from None


class _Reader:
    """Turns nodes into values."""

    def __init__(self, loader: yaml.SafeLoader, environ: Mapping[str, str], problems: Problems) -> None:
        self._loader, self._environ, self._problems = loader, environ, problems
        self._values_left = _VALUES_MAX
        self._open: set[int] = set()  # nodes that we are inside of: an alias to one would never end

    def value(self, node: yaml.Node, path: Path) -> Any:
        self._values_left -= 1
        if self._values_left < 0:
            raise ConfigurationError(f"not a configuration: more than {_VALUES_MAX} values")
        self._problems.place(path, node)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if id(node) in self._open:
            return self._broken(path, "contains itself by an alias")
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode) and node.tag == f"{_TAG}map":
                return self._mapping(node, path)
            if isinstance(node, yaml.SequenceNode) and node.tag == f"{_TAG}seq":
                return [self.value(child, (*path, index)) for index, child in enumerate(node.value)]
            return self._broken(path, f"the YAML tag {node.tag!r} is not known here")
        finally:
            self._open.discard(id(node))

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        values: dict[str, Any] = {}
        line_of: dict[str, int] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self._problems.add(path, f"the key in line {line} must be text")
                continue
            key = key_node.value
            if key_node.tag == f"{_TAG}merge":
                self._problems.add(
                    path, f"the merge key in line {line} is not known here; use defaults or match"
                )
            elif key in line_of:
                twice = path_text((*path, key))
                self._problems.add((), f"{twice}: is there twice (lines {line_of[key]} and {line})")
            else:
                line_of[key] = line
                values[key] = self.value(value_node, (*path, key))
        return values

    def _scalar(self, node: yaml.ScalarNode, path: Path) -> Any:
        text, tag = self._substitute(node.value, path), node.tag
        if text is None:
            return BROKEN
        if text != node.value:
            return FromVariable(text) if text or node.style else None
        if tag in (f"{_TAG}str", f"{_TAG}timestamp"):
            return text
        if tag not in (f"{_TAG}null", f"{_TAG}bool", f"{_TAG}int", f"{_TAG}float"):
            return self._broken(path, f"the YAML tag {tag!r} is not known here")
        try:
            return self._loader.construct_object(yaml.ScalarNode(tag, text))
        except (ValueError, KeyError):
            return self._broken(
                path, "can't be read as the number or word that it looks like; put it in quotes"
            )

    def _substitute(self, text: str, path: Path) -> str | None:
        missing: list[str] = []

        def replace(found: re.Match[str]) -> str:
            name, default = found["name"], found["default"]
            if name is None:
                if found[0] != "$${":
                    missing.append(
                        "has a ${ that is neither ${VAR} nor ${VAR:-default} (write $${ for a plain ${)"
                    )
                return "${"
            value = self._environ.get(name)
            if default is not None:
                return value or default
            if value is None:
                missing.append(f"the environment variable {name} is not set")
            return value or ""

        replaced = _VARIABLE.sub(replace, text)
        for problem in missing:
            self._problems.add(path, problem)
        return None if missing else replaced

    def _broken(self, path: Path, problem: str) -> Any:
        self._problems.add(path, problem)
        return BROKEN
