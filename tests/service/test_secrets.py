"""No password or token of the configuration is in the log, in errors, in results, or in the process list."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from dispatcher.ledger.writer_handle import WriterHandle
from dispatcher.settings import LedgerSettings, RabbitSettings, RedisSettings
from tests.service.harness import ROOT, document, lane

SECRETS = {"MQ": "rabbit-hunter2", "REDIS": "redis-hunter2", "VIEWER": "viewer-hunter2-hunter2"}


def configuration(folder: Path, **changes: Any) -> Path:
    """Servers that nobody listens at, so that everything fails and is told."""
    settings = document(
        "amqp://app:${MQ}@127.0.0.1:9/", "redis://app:${REDIS}@127.0.0.1:9/0", "dispatch", {"orders": lane()}
    )
    settings["http"]["tokens"] = {"viewer": "env:VIEWER"}
    file = folder / "dispatcher.yaml"
    file.write_text(yaml.safe_dump(settings | changes))
    return file


def run(file: Path, *arguments: str) -> str:
    """What the program prints, on both."""
    done = subprocess.run(
        [sys.executable, "-m", "dispatcher", *arguments, "-c", str(file)], cwd=ROOT, text=True,
        capture_output=True, env={**os.environ, **SECRETS}, timeout=60,
    )  # fmt: skip
    return done.stdout + done.stderr


def assert_hidden(text: str) -> None:
    assert text
    assert "hunter2" not in text


@pytest.mark.parametrize(
    "arguments",
    [("check",), ("check", "--json"), ("status",), ("groups", "list", "orders"), ("dead", "list", "orders"),
      ("replay", "orders", "--all"),
     ("consumers", "evict", "orders", "c1", "--management", "http://a:hunter2@127.0.0.1:9")],
)  # fmt: skip
def test_no_command_shows_a_secret(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    assert_hidden(run(configuration(tmp_path), *arguments))


@pytest.mark.parametrize(
    "changes",
    [
        {"rabbitmq": {"url": "amqp://app:hunter2@127.0.0.1:9/", "urls": ["amqp://app:hunter2@h/"]}},
        {"redis": {"url": "reddis://app:hunter2@h/0"}},
        {"rabbitmq": {"url": "amqp://app:hunter2@h/", "password": "hunter2"}},
        {"http": {"tokens": {"viewer": "hunter2-hunter2-hunter2", "operator": 7}}},
        {"ledger": {"path": "s3://key:hunter2@bucket/l", "max_age": "hunter"}},
    ],
)
def test_no_mistake_in_the_file_shows_one(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert_hidden(run(configuration(tmp_path, **changes), "check"))


def test_the_log_of_a_run_shows_none(tmp_path: Path) -> None:
    """It waits for its servers; every attempt is told."""
    file = configuration(tmp_path)
    command = [sys.executable, "-m", "dispatcher", "run", "-c", str(file), "--log-level", "debug"]
    with subprocess.Popen(
        command, cwd=ROOT, stderr=subprocess.PIPE, text=True, env={**os.environ, **SECRETS}
    ) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        while "orders" not in line:
            assert_hidden(line)
            line = process.stderr.readline()
        shown = Path(f"/proc/{process.pid}/cmdline").read_text()
        process.terminate()
        assert_hidden(line + process.stderr.read() + shown)


def test_the_process_that_writes_the_ledger_shows_none(tmp_path: Path) -> None:
    handle = WriterHandle(LedgerSettings(path=f"file://{tmp_path}/a:hunter2@b"))
    assert_hidden(Path(f"/proc/{handle.pid}/cmdline").read_text())
    handle.discard()


def test_no_address_shows_its_password() -> None:
    assert_hidden(repr(RabbitSettings(url="amqp://app:hunter2@h:1/v").address))
    assert_hidden(repr(RedisSettings(url="redis://app:hunter2@h:1/0").address))
