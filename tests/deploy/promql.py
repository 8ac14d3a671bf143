"""Reads which metrics and labels a PromQL expression names; what it means is left to Prometheus."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

_TOKEN: Final = re.compile(
    r"""\s+
    | (?P<string>"(?:\\.|[^"\\])*")
    | (?P<range>\[[\w:]+\])
    | (?P<number>\d[\w.]*)
    | (?P<name>[a-zA-Z_:][\w:]*)
    | (?P<sign>=~|!~|!=|==|<=|>=|[-+*/<>=(){},])
    """,
    re.VERBOSE,
)
_GROUPINGS: Final = {"by", "without", "on", "ignoring", "group_left", "group_right"}
_WORDS: Final = {"and", "or", "unless", "bool", "offset"}
#: Those that are in use: another one has to be added here, so a misspelt one is found without Prometheus.
_FUNCTIONS: Final = {
    "absent", "changes", "clamp_min", "count", "histogram_quantile", "increase", "label_values", "max",
    "max_over_time", "min", "rate", "sum",
}  # fmt: skip


@dataclass
class Named:
    """Metrics with the labels that they are selected by, and the labels of groupings."""

    selected: list[tuple[str, set[str]]] = field(default_factory=list)
    grouped: set[str] = field(default_factory=set)
    is_aggregated: bool = False  # only the labels of its groupings are left


def named(expression: str) -> Named:
    """Raises ValueError for what is no PromQL at first sight."""
    found, tokens = Named(), _tokens(expression)
    for index, (kind, text) in enumerate(tokens):
        after = tokens[index + 1][1] if index + 1 < len(tokens) else ""
        if kind != "name" or text in _WORDS or _is_inside(tokens, index):
            continue
        if text in _GROUPINGS:
            found.grouped |= _names_until(tokens, index + 2, ")")
            found.is_aggregated |= text == "by"
        elif after == "(" or after in {"by", "without"}:
            if text not in _FUNCTIONS:
                raise ValueError(f"{text} is no known function: {expression}")
        else:
            labels = _names_until(tokens, index + 2, "}") if after == "{" else set()
            found.selected.append((text, labels))
    return found


def _tokens(expression: str) -> list[tuple[str, str]]:
    tokens, at = [], 0
    while at < len(expression):
        match = _TOKEN.match(expression, at)
        if match is None:
            raise ValueError(f"not PromQL at {expression[at:]!r}")
        if match.lastgroup is not None:
            tokens.append((match.lastgroup, match[0]))
        at = match.end()
    for opened, closed in ("()", "{}"):
        if sum(t == ("sign", opened) for t in tokens) != sum(t == ("sign", closed) for t in tokens):
            raise ValueError(f"{opened} and {closed} don't match: {expression}")
    return tokens


def _names_until(tokens: list[tuple[str, str]], start: int, end: str) -> set[str]:
    names = set()
    for kind, text in tokens[start:]:
        if text == end:
            return names
        if kind == "name":
            names.add(text)
    return names


def _is_inside(tokens: list[tuple[str, str]], index: int) -> bool:
    """Whether it is a label: within braces, or in the list of a grouping."""
    for back in range(index - 1, -1, -1):
        match tokens[back][1]:
            case "{":
                return True
            case "(":
                return back > 0 and tokens[back - 1][1] in _GROUPINGS
            case "," | "=" | "!=" | "=~" | "!~":
                continue
            case _ if tokens[back][0] in {"name", "string"}:
                continue
        return False
    return False
