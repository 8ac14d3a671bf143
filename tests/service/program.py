"""The `dispatcher` program, run as operators do, against the lanes of a test."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from typer.testing import CliRunner

from dispatcher.cli import app
from tests.conftest import Vhost
from tests.service.harness import ROOT, document, lane

TIMEOUT_S = 60
Ended = subprocess.CompletedProcess[str]


async def program(vhost: Vhost, *arguments: str, **keys: Any) -> Ended:
    """Run it with a configuration that has the lane `orders` with these keys; it ends by itself. In this
    process, so one at a time: the start of another process takes longer than what it does."""

    def run(command: list[str]) -> Ended:
        done = CliRunner().invoke(app, command, prog_name="dispatcher")
        return subprocess.CompletedProcess(command, done.exit_code, done.stdout, done.stderr)

    return await _configured(run, vhost, arguments, keys)


async def program_beside_others(vhost: Vhost, *arguments: str, **keys: Any) -> Ended:
    """The same in a process of its own."""

    def run(command: list[str]) -> Ended:
        return subprocess.run(
            [sys.executable, "-m", "dispatcher", *command], cwd=ROOT, capture_output=True, text=True,
            timeout=TIMEOUT_S, check=False,
        )  # fmt: skip

    return await _configured(run, vhost, arguments, keys)


async def _configured(
    run: Callable[[list[str]], Ended], vhost: Vhost, arguments: tuple[str, ...], keys: dict[str, Any]
) -> Ended:
    written = document(vhost.amqp_url, vhost.redis_url, vhost.redis_prefix, {"orders": lane(**keys)})
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "dispatcher.yaml"
        file.write_text(yaml.safe_dump(written))
        return await asyncio.to_thread(run, [*arguments, "-c", str(file)])
