"""Spark's classes as Java has them in memory, kept in a file for later starts (Java's class data sharing).

A start loads some 17,000 classes out of Spark's archives: for a ledger of few records that is a good part of
all work. Java itself refuses a file that another Java, or other archives of Spark, have made, and then loads
the classes as without. A file is made when a run ends, by the second one on a machine: who runs the pipeline
once only gains nothing by it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dispatcher.pipeline.progress import say_stage

#: For how long a Java process may end, on a machine that is busy with others, and while it makes the file.
JAVA_ENDS_WITHIN_S: Final = 30
_MADE_WITHIN_S: Final = 180
_FORGOTTEN_AFTER_S: Final = 30 * 86_400
#: What Java needs to make the file, on the disk (it has about 200 MB) and at all.
_ROOM_BYTES: Final = 2 * 2**30
_MEMORY_BYTES: Final = 4 * 2**30
#: What makes Spark's list of archives another one; Java takes a kept file for one list only.
_OTHER_CLASSES: Final = (
    "SPARK_HOME", "SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH",
)  # fmt: skip
#: Names of files that need no quotes among Java's options; a colon would divide two files.
_PLAIN: Final = re.compile(r"[\w./+@-]+", re.ASCII)


class ClassArchive:
    """`options`: what Java has to be told. `limit_s`: for how long it may take to end."""

    def __init__(self, options: str = "", unfinished: Path | None = None, file: Path | None = None) -> None:
        self.options, self._unfinished, self._file = options, unfinished, file
        self.limit_s = JAVA_ENDS_WITHIN_S if unfinished is None else _MADE_WITHIN_S

    @contextlib.contextmanager
    def kept(self, process: subprocess.Popen[bytes]) -> Iterator[None]:
        """Around the end of Java, which makes the file: it gets its name then. Where Java can't make it, an
        empty file says so."""
        lives, began_s = process.poll() is None, time.monotonic()
        yield
        if self._unfinished is None or self._file is None or not lives:
            return
        with contextlib.suppress(OSError):
            if process.returncode or not self._unfinished.exists():
                self._file.touch()
                return
            with self._unfinished.open("rb") as written:
                os.fsync(written.fileno())  # Java uses it without a look at its contents
            self._unfinished.rename(self._file)
            say_stage("keeping Spark classes for later starts", time.monotonic() - began_s)


@contextlib.contextmanager
def class_archive(*, is_of_use: bool, may_make: bool) -> Iterator[ClassArchive]:
    """For one start of Java. Without a place for the file, or where it does not fit, there is none."""
    with contextlib.ExitStack() as held:
        found = ClassArchive()
        if is_of_use:
            with contextlib.suppress(OSError, RuntimeError):  # no home
                found = _found(held, may_make=may_make)
        yield found


def _found(held: contextlib.ExitStack, *, may_make: bool) -> ClassArchive:
    file = _file()
    if file is None:
        return ClassArchive()
    if file.exists():
        if not file.stat().st_size:  # could not be made
            return ClassArchive()
        with contextlib.suppress(OSError):
            os.utime(file)
        return ClassArchive(f"-XX:SharedArchiveFile={file}")
    if not may_make:
        return ClassArchive()
    started = file.with_suffix(".lock")
    is_first = not started.exists()
    file.parent.mkdir(parents=True, exist_ok=True)
    lock = held.enter_context(started.open("a"))
    if is_first or not _has_room(file.parent):
        return ClassArchive()
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # else another process makes it
    _tidy(file.parent)
    unfinished = file.with_suffix(".unfinished")
    unfinished.unlink(missing_ok=True)
    return ClassArchive(f"-XX:ArchiveClassesAtExit={unfinished}", unfinished, file)


def _file() -> Path | None:
    """Of this Java and this Spark; None: their classes can't be kept."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin/java") if home else Path(shutil.which("java") or "java")
    library = java.resolve().parent.parent / "lib/server/libjvm.so"
    if any(os.environ.get(name) for name in _OTHER_CLASSES) or not library.is_file():
        return None
    import pyspark

    archives = sorted(Path(pyspark.__file__).parent.glob("jars/*"))
    of = [pyspark.__version__, *((each, *_stamp(each)) for each in (library, *archives))]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    file = (
        cache
        / "rabbitmq-group-dispatcher"
        / f"spark-{hashlib.sha256(repr(of).encode()).hexdigest()[:32]}.jsa"
    )
    return file if _PLAIN.fullmatch(str(file)) else None


def _stamp(file: Path) -> tuple[int, int]:
    found = file.stat()
    return found.st_size, found.st_mtime_ns


def _has_room(folder: Path) -> bool:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return memory >= _MEMORY_BYTES and shutil.disk_usage(folder).free >= _ROOM_BYTES


def _tidy(folder: Path) -> None:
    """Remove what no start has used for long: it is another Java's, or another Spark's."""
    for each in folder.glob("spark-*.*"):
        if time.time() - each.stat().st_mtime > _FORGOTTEN_AFTER_S:
            each.unlink(missing_ok=True)
