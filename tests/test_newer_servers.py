"""The most telling tests once more, on RabbitMQ 4.0 and Redis 8; `scripts/test --rabbitmq 4` runs all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from dispatcher.nodes.installed import ROOT_VARIABLE
from tests.trixie import trixie_folder

SLICE: Final = (
    "tests/amqp/test_fidelity.py",
    "tests/service/test_relay.py",
    "tests/service/test_delivery_limit.py",
    "tests/service/test_inbound_queues.py",
    "tests/service/test_rights.py",
    "tests/service/test_without_deprecated.py",
    "tests/redis_store/test_lost_writes.py",
    "tests/redis_store/test_rights.py",
)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(ROOT_VARIABLE in os.environ, reason="all tests run on these servers already")
def test_slice_on_newer_servers() -> None:
    folder = trixie_folder()
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("DISPATCHER_", "PYTEST_"))}
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *SLICE],
        cwd=Path(__file__).parents[1], env=inherited | {ROOT_VARIABLE: str(folder)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-6_000:] + result.stderr[-2_000:]
