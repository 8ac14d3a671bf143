"""Logs: lines of JSON where nobody watches, readable ones on a terminal, passwords in neither."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from dispatcher import logs


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def test_json_lines_without_a_terminal() -> None:
    stream = io.StringIO()
    logs.configure(stream)
    structlog.get_logger("lane").info("joined", lane="orders", consumer="c-1")
    logging.getLogger("library").warning("odd %s", "thing")
    logging.getLogger("library").debug("not shown")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert (first["event"], first["lane"], first["level"]) == ("joined", "orders", "info")
    assert first["timestamp"].endswith("Z")
    assert (second["event"], second["logger"]) == ("odd thing", "library")


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_no_passwords(stream: io.StringIO) -> None:
    logs.configure(stream)
    log = structlog.get_logger()
    url = "amqp://app:hunter2@mq/"
    log.warning("lost", url=url, nested={"urls": [url]}, error=ValueError(f"no {url}"))
    logging.getLogger("library").error("can't reach %s", url)
    try:
        body = b"the body"  # noqa: F841  # a traceback could show it
        raise OSError(f"no route to {url}")
    except OSError:
        log.exception("failed")
        logging.getLogger("library").exception("failed too")
    assert "amqp://app:***@mq/" in stream.getvalue()
    assert "hunter2" not in stream.getvalue()
    assert "no route to" in stream.getvalue()
    assert "the body" not in stream.getvalue().replace('body = b"the body"', "")


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_what_others_wrote_stays_within_its_line(stream: io.StringIO) -> None:
    logs.configure(stream)
    structlog.get_logger().info("message_failed", reason="no\n12:00:00 [info] lane_led \x1b[2J\x07")
    try:
        raise OSError("no route\x9b2J")
    except OSError:
        structlog.get_logger().exception("lane_failed")
    first, *rest = stream.getvalue().splitlines()
    assert "lane_led" in first
    assert "[2J" in first
    assert "\x1b[2J" not in first
    assert "\x07" not in first
    assert any("no route" in line for line in rest)
    assert all(line.isprintable() for line in rest) or stream.isatty()
    assert "\x9b" not in stream.getvalue()


def test_a_json_line_has_printable_characters_only() -> None:
    reason = "naïve 日本 \x7f\x9b2J\x85\u2028\u202e\U000e0001\ud800"
    stream = io.StringIO()
    logs.configure(stream)
    structlog.get_logger().info("message_failed", reason=reason)
    line = stream.getvalue().removesuffix("\n")
    assert line.isprintable()
    assert "naïve 日本" in line
    assert json.loads(line)["reason"] == reason


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_the_format_may_be_chosen_and_the_level(stream: io.StringIO) -> None:
    logs.configure(stream, level=logging.WARNING, as_json=stream.isatty())
    log = structlog.get_logger()
    log.info("joined")
    log.warning("lost", lane="orders")
    logging.getLogger("library").info("not shown")
    (line,) = stream.getvalue().splitlines()
    assert "lost" in line
    assert line.startswith("{") is stream.isatty()
    assert "\x1b" not in line


def test_readable_on_a_terminal() -> None:
    stream = Terminal()
    logs.configure(stream)
    structlog.get_logger().info("joined", lane="orders")
    assert "joined" in stream.getvalue()
    assert not stream.getvalue().startswith("{")
