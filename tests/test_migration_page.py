"""docs/migration.md: what it names exists, and every option of another system has its line."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import typer.main
import yaml

from dispatcher.cli import app
from dispatcher.client import GroupConsumer, GroupProducer
from dispatcher.settings import file as config
from dispatcher.settings import json_schema
from tests.features.page import rows as feature_rows
from tests.test_docs import DOCS, codes, commands

CLIENTS = {"GroupProducer": GroupProducer, "GroupConsumer": GroupConsumer}
_FILE_KEYS = {"match", "defaults"}


class Line(NamedTuple):
    """One row of one table."""

    section: str
    there: str
    here: str
    rows: list[str]
    differences: str


def lines() -> Iterator[Line]:
    section = ""
    for text in (DOCS / "migration.md").read_text().splitlines():
        if text.startswith("## "):
            section = text[3:]
        elif text.startswith("|") and not text.startswith(("| there |", "|---")):
            there, here, cited, differences = (cell.strip() for cell in text.split("|")[1:-1])
            yield Line(section, there, here, re.findall(r"[A-Z]\d+", cited), differences)


LINES = list(lines())
EXISTING = dict(commands(typer.main.get_command(app)))
LANE_KEYS = set(json_schema()["$defs"]["LaneSettings"]["properties"])


def check_command(code: str) -> None:
    words = code.split()
    known = [path for path in EXISTING if words[: len(path.split())] == path.split()]
    assert known, code
    options = {option for parameter in EXISTING[known[0]].params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= options, code


def check_python(code: str) -> None:
    name, _, rest = code.partition("(") if "(" in code else (*code.partition("."),)
    client = CLIENTS[name]
    if "(" in code:
        assert set(re.findall(r"(\w+)=", rest)) <= set(inspect.signature(client).parameters), code
    elif rest:
        assert hasattr(client, rest), code


def check_consumer_argument(code: str) -> None:
    assert code.partition("=")[0] in inspect.signature(GroupConsumer).parameters, code


def check_keys(said: list[str]) -> None:
    """All of them together are a lane's configuration."""
    lane: dict[str, Any] = {"inbound": [{"queue": "in"}]}
    for code in said:
        lane |= yaml.safe_load(code)
    config.parse(yaml.safe_dump({"lanes": {"orders": lane}}), {})


@pytest.mark.parametrize("line", LINES, ids=lambda line: f"{line.section}: {line.there}")
def test_what_a_line_names_exists(line: Line) -> None:
    keys = []
    for code in codes(line.here):
        if code.startswith("dispatcher "):
            check_command(code)
        elif code.split("(")[0].split(".")[0] in CLIENTS:
            check_python(code)
        elif ": " in code:
            keys.append(code)
        elif code.startswith("prefetch"):
            check_consumer_argument(code)
        else:
            assert code in LANE_KEYS | _FILE_KEYS, code
    check_keys(keys)
    for code in codes(line.differences):
        if code.startswith("dispatcher "):
            check_command(code)
        elif ": " in code:
            check_keys([code])


def test_every_option_of_another_system_has_a_line() -> None:
    cited = {row for line in LINES for row in line.rows}
    features = feature_rows()
    assert cited <= features.keys()
    options = {identity for identity, row in features.items() if "`" in row.what}
    assert options <= cited, "their names are in rows.toml"


def test_every_system_has_its_section() -> None:
    assert [section for section in dict.fromkeys(line.section for line in LINES)] == [
        "ActiveMQ Classic", "ActiveMQ Artemis", "Qpid", "RocketMQ", "SQS FIFO",
        "A hash exchange with single active consumer", "An earlier version of the dispatcher",
    ]  # fmt: skip
