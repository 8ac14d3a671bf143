"""Where scripts/trixie puts RabbitMQ 4.0, Redis 8 and Valkey 8 of Debian 13."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from dispatcher.nodes.installed import ROOT_VARIABLE

SCRIPT = Path(__file__).parents[1] / "scripts/trixie"
#: What the script's exit code says of a machine that can't make the folder.
_LACKS_TOOLS = 2


def trixie_folder() -> Path:
    """Makes it if it is not there. Skips the test where apt or Debian's keys are missing."""
    given = os.environ.get(ROOT_VARIABLE)
    if given is not None:
        return Path(given)
    made = subprocess.run([SCRIPT], capture_output=True, text=True, check=False)
    if made.returncode == _LACKS_TOOLS:
        pytest.skip(f"no RabbitMQ 4.0: {made.stderr.strip()}")
    assert made.returncode == 0, made.stderr
    return Path(made.stdout.strip())
