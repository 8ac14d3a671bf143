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
from pathlib import Path

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


def obstacle(compiler: str | None = None) -> str | None:
    """Why nothing can be compiled on this machine, with this C compiler or that of this Python; None: it can
    be."""
    if sys.implementation.name != "cpython":
        return f"{sys.implementation.name} is not CPython"
    compiler = compiler or shlex.split(sysconfig.get_config_var("CC") or "cc")[0]
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


def compile_tree(folder: Path, *, compiler: str | None = None) -> list[Path]:
    """Compile the hot modules of the dispatcher in `folder`, beside their sources; what was made.

    `compiler` (as `tcc`) is taken instead of the C compiler of this Python, and does not optimise.

    A process of its own does it: mypyc works in the current directory. Raises CalledProcessError; the reason
    is on stderr then.
    """
    with tempfile.TemporaryDirectory() as work:
        options = [] if compiler is None else ["--compiler", compiler]
        subprocess.run([sys.executable, __file__, "--in-place", work, *options, str(folder)], check=True)
    return sorted((folder / "dispatcher").rglob("*.so"))


def _compile_here(folder: Path, work: str, compiler: str | None) -> None:
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    os.chdir(folder)
    options = ["--config-file=", "--ignore-missing-imports", f"--cache-dir={work}/mypy"]
    extensions = mypycify(
        [*options, *hot_modules(folder)], opt_level=OPTIMISATION if compiler is None else "0",
        debug_level="0", separate=True, target_dir=f"{work}/c",
    )  # fmt: skip
    if compiler is not None:
        os.environ |= {"CC": compiler, "LDSHARED": f"{compiler} -shared"}
        for each in extensions:  # mypyc passes it, and tcc warns of what gcc accepts
            each.extra_compile_args = [option for option in each.extra_compile_args if option != "-Werror"]
    command = build_ext(Distribution({"name": "dispatcher", "ext_modules": extensions}))
    command.inplace, command.build_temp, command.parallel = True, f"{work}/objects", os.cpu_count()
    command.ensure_finalized()
    command.run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--compiler", help="instead of the C compiler of this Python; does not optimise")
    parser.add_argument("--in-place", metavar="WORK", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    folder = chosen.folder.resolve()
    if chosen.in_place is not None:
        _compile_here(folder, chosen.in_place, chosen.compiler)
        return
    if (problem := obstacle(chosen.compiler)) is not None:
        sys.exit(f"compile: {problem}: install gcc, libc6-dev and python3-dev")
    copy_tree(folder)
    made = compile_tree(folder, compiler=chosen.compiler)
    print(f"{folder}: {len(hot_modules(folder))} modules are compiled, {len(made)} files")


if __name__ == "__main__":
    main()
