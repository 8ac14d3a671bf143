"""What is made once for all processes that run tests."""

from __future__ import annotations

import fcntl
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def common_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of all processes that run tests."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "common"
    folder.mkdir(exist_ok=True)
    return folder


def once(common: Path, name: str, make: Callable[[], object]) -> Any:
    """What `make` returns; of several processes the first one calls it, the others wait for it."""
    done = common / f"{name}.pickle"
    with (common / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            done.write_bytes(pickle.dumps(make()))
    return pickle.loads(done.read_bytes())
