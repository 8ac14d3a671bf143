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
KEPT = ROOT / ".local" / "compiled"
#: What a test can do about an obstacle, on Debian.
_PACKAGES = ["gcc", "tcc", "libc6-dev", f"libpython3.{sys.version_info[1]}-dev"]


@pytest.fixture(scope="session")
def compiling() -> ModuleType:
    """`scripts/compile.py`."""
    spec = importlib.util.spec_from_file_location("dispatcher_compile", ROOT / "scripts/compile.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def compilers(compiling: ModuleType) -> None:
    """The C compiler of this Python, and `tcc`. One of the workers installs them, the others wait."""
    KEPT.mkdir(parents=True, exist_ok=True)
    with (KEPT / "installing").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if compiling.obstacle() is None and shutil.which("tcc") is not None:
            return
        try:
            install(_PACKAGES, as_root(), print)
        except ConfigurationError as error:
            pytest.skip(f"{compiling.obstacle() or 'there is no tcc'}; {error}")


def _state() -> str:
    """A hash of all that the compiled modules are made of."""
    found = hashlib.sha256(sys.version.encode())
    sources = sorted((ROOT / "dispatcher").rglob("*.py"))
    for path in [ROOT / "scripts/compile.py", *sources]:
        found.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return found.hexdigest()[:16]


@pytest.fixture(scope="session")
def compiled(compiling: ModuleType, compilers: None) -> Path:
    """A copy of this checkout with compiled modules. One of the workers makes it, the others wait."""
    with (KEPT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = KEPT / _state()
        is_made = (folder / "made").is_file()
        if not is_made:
            for former in KEPT.iterdir():
                if former.is_dir():
                    shutil.rmtree(former)
        # Always: the tests in it may have changed.
        compiling.copy_tree(folder)
        if not is_made:
            # tcc does not optimise, and is much quicker than gcc. What is decided is the same.
            compiling.compile_tree(folder, compiler="tcc")
            (folder / "made").touch()
    return folder
