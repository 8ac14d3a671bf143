"""The `dispatcher` program, run as operators do, against the lanes of a test."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from tests.conftest import Vhost
from tests.service.harness import ROOT, document, lane

TIMEOUT_S = 60


async def program(vhost: Vhost, *arguments: str, **keys: Any) -> subprocess.CompletedProcess[str]:
    """Run it with a configuration that has the lane `orders` with these keys; it ends by itself."""
    written = document(vhost.amqp_url, vhost.redis_url, vhost.redis_prefix, {"orders": lane(**keys)})

    def run() -> subprocess.CompletedProcess[str]:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "dispatcher.yaml"
            file.write_text(yaml.safe_dump(written))
            command = [sys.executable, "-m", "dispatcher", *arguments, "-c", str(file)]
            return subprocess.run(
                command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
            )

    return await asyncio.to_thread(run)
