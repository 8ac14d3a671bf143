"""The checkout compiled with mypyc, made once for each state of its sources."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

from dispatcher.errors import ConfigurationError
from dispatcher.nodes.installed import as_root, install

ROOT = Path(__file__).parents[2]
#: What a test can do about an obstacle, on Debian.
_PACKAGES = ["gcc", "libc6-dev", f"libpython3.{sys.version_info[1]}-dev"]


@pytest.fixture(scope="session")
def compiling() -> ModuleType:
    """`scripts/compile.py`."""
    spec = importlib.util.spec_from_file_location("dispatcher_compile", ROOT / "scripts/compile.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _state() -> str:
    """A hash of all that the compiled modules are made of."""
    found = hashlib.sha256(sys.version.encode())
    sources = sorted((ROOT / "dispatcher").rglob("*.py"))
    for path in [ROOT / "scripts/compile.py", *sources]:
        found.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return found.hexdigest()[:16]


@pytest.fixture(scope="session")
def compiled(compiling: ModuleType) -> Path:
    """A copy of this checkout with compiled modules. One of the workers makes it, the others wait."""
    kept = ROOT / ".local" / "compiled"
    kept.mkdir(parents=True, exist_ok=True)
    with (kept / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if compiling.obstacle() is not None:
            try:
                install(_PACKAGES, as_root(), print)
            except ConfigurationError as error:
                pytest.skip(f"{compiling.obstacle()}; {error}")
        folder = kept / _state()
        is_made = (folder / "made").is_file()
        if not is_made:
            for former in kept.iterdir():
                if former.is_dir():
                    shutil.rmtree(former)
        # Always: the tests in it may have changed.
        compiling.copy_tree(folder)
        if not is_made:
            # Without optimisation: that takes half as long, and what is decided is the same.
            compiling.compile_tree(folder, optimisation="0")
            (folder / "made").touch()
    return folder
