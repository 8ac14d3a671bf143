"""No password or token of the configuration is in the log, in errors, in results, or in the process list."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from dispatcher.ledger.writer_handle import WriterHandle
from dispatcher.settings import LedgerSettings, RabbitSettings, RedisSettings
from tests.service.harness import ROOT, document, lane

SECRETS = {"MQ": "rabbit-hunter2", "REDIS": "redis-hunter2", "VIEWER": "viewer-hunter2-hunter2"}
#: After what each command has printed.
END = "-- end --"
#: The program, once for each command, as it prints and as Python ends it.
ALL = f"""
import json, sys
from dispatcher.cli import main

commands = json.loads(sys.argv[1])
for arguments in commands:
    sys.argv[1:] = arguments
    try:
        main()
    except SystemExit as ended:
        print(ended.code if isinstance(ended.code, str) else "", end="")
    except BaseException:
        sys.excepthook(*sys.exc_info())
    sys.stderr.flush()
    print({END!r}, flush=True)
"""


def configuration(folder: Path, **changes: Any) -> Path:
    """Servers that nobody listens at, so that everything fails and is told."""
    settings = document(
        "amqp://app:${MQ}@127.0.0.1:9/", "redis://app:${REDIS}@127.0.0.1:9/0", "dispatch", {"orders": lane()}
    )
    settings["http"]["tokens"] = {"viewer": "env:VIEWER"}
    file = folder / "dispatcher.yaml"
    file.write_text(yaml.safe_dump(settings | changes))
    return file


def assert_all_hide(*commands: list[str]) -> None:
    """Every command prints something and no secret. One process runs them: its start takes longest."""
    done = subprocess.run(
        [sys.executable, "-c", ALL, json.dumps(commands)], cwd=ROOT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, **SECRETS}, timeout=60,
    )  # fmt: skip
    *printed, rest = done.stdout.split(f"{END}\n")
    assert (len(printed), rest) == (len(commands), "")
    for text in printed:
        assert_hidden(text)


def assert_hidden(text: str) -> None:
    assert text
    assert "hunter2" not in text


def test_no_command_shows_a_secret(tmp_path: Path) -> None:
    commands = (
        ["check"], ["check", "--json"], ["status"], ["groups", "list", "orders"], ["dead", "list", "orders"],
        ["replay", "orders", "--all"],
        ["consumers", "evict", "orders", "c1", "--management", "http://a:hunter2@127.0.0.1:9"],
    )  # fmt: skip
    file = str(configuration(tmp_path))
    assert_all_hide(*([*command, "-c", file] for command in commands))


def test_no_mistake_in_the_file_shows_one(tmp_path: Path) -> None:
    mistakes: tuple[dict[str, Any], ...] = (
        {"rabbitmq": {"url": "amqp://app:hunter2@127.0.0.1:9/", "urls": ["amqp://app:hunter2@h/"]}},
        {"redis": {"url": "reddis://app:hunter2@h/0"}},
        {"redis": {"url": "redis+sentinel://h/main", "sentinel_password": "hunter2"}},
        {"redis": {"urls": ["redis://app:hunter2@h/0", "redis://app:other@i/0"]}},
        {"rabbitmq": {"url": "amqp://app:hunter2@h/", "password": "hunter2"}},
        {"http": {"tokens": {"viewer": "hunter2-hunter2-hunter2", "operator": 7}}},
        {"ledger": {"path": "s3://key:hunter2@bucket/l", "max_age": "hunter"}},
    )
    commands = []
    for number, changes in enumerate(mistakes):
        folder = tmp_path / str(number)
        folder.mkdir()
        commands.append(["check", "-c", str(configuration(folder, **changes))])
    assert_all_hide(*commands)


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
