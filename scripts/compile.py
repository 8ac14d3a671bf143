"""Compiles the hot modules of the dispatcher with mypyc: `python scripts/compile.py FOLDER` copies the
checkout to FOLDER and compiles it there. The build of a wheel does the same (`hatch_build.py`).

One C file for each module: all in one take a C compiler many minutes. The sources stay beside what was made
of them: Python prefers the compiled ones, and tracebacks show the sources.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
#: What a message passes on its way. `Lane` is only the loop around all this, and is made to be subclassed.
HOT = (
    "dispatcher/errors.py",
    "dispatcher/core/**/*.py",
    "dispatcher/wire/*.py",
    "dispatcher/amqp/connection.py",
    "dispatcher/amqp/decoder.py",
    "dispatcher/amqp/events.py",
    "dispatcher/amqp/grouping.py",
    "dispatcher/amqp/history_message.py",
    "dispatcher/amqp/identity.py",
    "dispatcher/amqp/parked.py",
    "dispatcher/amqp/pricing.py",
    "dispatcher/amqp/properties.py",
    "dispatcher/amqp/reclaimed.py",
    "dispatcher/amqp/relay.py",
    "dispatcher/amqp/transfer.py",
    "dispatcher/amqp/wire.py",
    "dispatcher/redis_store/codec.py",
    "dispatcher/redis_store/fields.py",
    "dispatcher/redis_store/parking_codec.py",
    "dispatcher/service/ack_window.py",
    "dispatcher/service/bundling.py",
    "dispatcher/service/confirms.py",
    "dispatcher/service/durations.py",
    "dispatcher/service/inbound_feed.py",
    "dispatcher/service/message_reader.py",
    "dispatcher/service/original_acks.py",
    "dispatcher/service/outbox.py",
    "dispatcher/service/publications.py",
    "dispatcher/service/publish_bisect.py",
    "dispatcher/service/resends.py",
    "dispatcher/service/ticks.py",
)
NOT_COMPILED = ("dispatcher/core/lane.py",)
#: What the build needs, beside a C compiler and Python's headers: mypyc, and what the hot modules import, for
#: its types. pip builds in an environment that has nothing else.
REQUIREMENTS = ("mypy[mypyc]>=2.4,<3", "pamqp>=4.0.1,<5", "structlog>=26.1,<27")
#: More takes twice as long to compile.
OPTIMISATION = "1"
#: Of a checkout; the rest is of no use in a copy.
_COPIED = (
    "dispatcher", "tests", "bench", "docs", "scripts", "deploy", "clients", "examples",
    "pyproject.toml", "README.md", "CHANGELOG.md", "hatch_build.py",
)  # fmt: skip


def obstacle() -> str | None:
    """Why nothing can be compiled on this machine; None: it can be."""
    if sys.implementation.name != "cpython":
        return f"{sys.implementation.name} is not CPython"
    compiler = shlex.split(sysconfig.get_config_var("CC") or "cc")[0]
    if shutil.which(compiler) is None:
        return f"there is no C compiler ({compiler})"
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").is_file():
        return f"Python's headers are missing (Python.h in {headers})"
    return None


def hot_modules(root: Path) -> list[str]:
    """Paths of the modules that are compiled, below `root`. A package's own file is not: it only imports."""
    found = {path.relative_to(root).as_posix() for pattern in HOT for path in root.glob(pattern)}
    return sorted(each for each in found if each not in NOT_COMPILED and not each.endswith("__init__.py"))


def copy_tree(folder: Path) -> None:
    """Copy the checkout to `folder`, without what was made of it."""
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "node_modules", ".env")
    for name in _COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=ignored, dirs_exist_ok=True)
        else:
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, folder / name)


def compile_tree(folder: Path, *, optimisation: str = OPTIMISATION) -> list[Path]:
    """Compile the hot modules of the dispatcher in `folder`, beside their sources; what was made.

    A process of its own does it: mypyc works in the current directory. Raises CalledProcessError; the reason
    is on stderr then.
    """
    with tempfile.TemporaryDirectory() as work:
        subprocess.run(
            [sys.executable, __file__, "--in-place", work, "--optimisation", optimisation, str(folder)],
            check=True,
        )
    return sorted((folder / "dispatcher").rglob("*.so"))


def _compile_here(folder: Path, work: str, optimisation: str) -> None:
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    # mypyc's own functions are a part of each C file, for the optimiser. They are most of what a C compiler
    # reads: without optimisation they are compiled once.
    part_of_each = optimisation != "0"

    class Build(build_ext):
        def build_extensions(self) -> None:
            if not part_of_each:
                _compile_runtime(self.extensions, self.compiler, Path(work))
                _compile_header(self.extensions, self.compiler, Path(work))
            super().build_extensions()

    os.chdir(folder)
    options = ["--config-file=", "--ignore-missing-imports", f"--cache-dir={work}/mypy"]
    extensions = mypycify(
        [*options, *hot_modules(folder)], opt_level=optimisation, debug_level="0", separate=True,
        target_dir=f"{work}/c", include_runtime_files=part_of_each,
    )  # fmt: skip
    command = Build(Distribution({"name": "dispatcher", "ext_modules": extensions}))
    command.inplace, command.build_temp, command.parallel = True, f"{work}/objects", os.cpu_count()
    command.ensure_finalized()
    command.run()


def _compile_runtime(extensions: Sequence[Any], compiler: Any, work: Path) -> None:
    """Compile what stands directly in the folder of C files, once, and link it to each that names it."""
    runtime = sorted({each for one in extensions for each in one.sources if Path(each).parent == work / "c"})
    users = [one for one in extensions if not set(runtime).isdisjoint(one.sources)]
    objects = compiler.compile(
        runtime, output_dir=f"{work}/runtime", include_dirs=users[0].include_dirs,
        extra_postargs=users[0].extra_compile_args,
    )  # fmt: skip
    for one in users:
        one.sources = [each for each in one.sources if each not in runtime]
        one.extra_objects = [*one.extra_objects, *objects]


def _compile_header(extensions: Sequence[Any], compiler: Any, work: Path) -> None:
    """Compile the headers of Python and mypyc once: they are most of what a small module is made of."""
    header = work / "all.h"
    header.write_text('#include "CPy.h"\n')
    users = max(extensions, key=lambda each: len(each.include_dirs))
    folders = [f"-I{each}" for each in (*users.include_dirs, *compiler.include_dirs)]
    options = [*folders, *users.extra_compile_args]
    compiler.spawn([*compiler.compiler_so, *options, "-x", "c-header", str(header), "-o", f"{header}.gch"])
    for one in extensions:
        one.include_dirs = users.include_dirs
        one.extra_compile_args = [*one.extra_compile_args, "-include", str(header)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--optimisation", choices="0123", default=OPTIMISATION, help="of the C compiler")
    parser.add_argument("--in-place", metavar="WORK", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    folder = chosen.folder.resolve()
    if chosen.in_place is not None:
        _compile_here(folder, chosen.in_place, chosen.optimisation)
        return
    if (problem := obstacle()) is not None:
        sys.exit(f"compile: {problem}: install gcc, libc6-dev and python3-dev")
    copy_tree(folder)
    made = compile_tree(folder, optimisation=chosen.optimisation)
    print(f"{folder}: {len(hot_modules(folder))} modules are compiled, {len(made)} files")


if __name__ == "__main__":
    main()
