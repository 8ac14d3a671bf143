"""Where scripts/trixie puts RabbitMQ 4.0, Redis 8 and Valkey 8 of Debian 13."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dispatcher.nodes.installed import ROOT_VARIABLE


def trixie_folder() -> Path:
    """Skips the test when nobody has made it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(os.environ.get(ROOT_VARIABLE) or cache / "rabbitmq-group-dispatcher/trixie")
    if not folder.is_dir():
        pytest.skip(f"no {folder}: scripts/trixie makes it (a download of 75 MB, no rights are needed)")
    return folder
