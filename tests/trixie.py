"""Where scripts/trixie puts RabbitMQ 4.0, Redis 8 and Valkey 8 of Debian 13."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from dispatcher.nodes.installed import ROOT_VARIABLE

SCRIPT = Path(__file__).parents[1] / "scripts/trixie"


def trixie_folder() -> Path:
    """Makes it if it is not there. Skips the test where that can't be: without Debian's apt or a mirror."""
    given = os.environ.get(ROOT_VARIABLE)
    if given is not None:
        return Path(given)
    made = subprocess.run([SCRIPT], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        pytest.skip(f"no RabbitMQ 4.0: {made.stderr.strip()}")
    return Path(made.stdout.strip())
