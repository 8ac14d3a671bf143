"""A Spark session: quiet, and on this machine's loopback only unless another master is named."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from dispatcher.errors import ConfigurationError
from dispatcher.pipeline.class_archive import JAVA_ENDS_WITHIN_S, class_archive

DEFAULT_MASTER: Final = "local[*]"
#: Spark's own variable for its heap on this machine.
HEAP_VARIABLE: Final = "SPARK_DRIVER_MEMORY"
_HEAP: Final = "spark.driver.memory"
_RECORDS_PER_GIB: Final = 10_000_000
#: For fewer the first GiB is enough.
_MANY_RECORDS: Final = 500_000
_CGROUP_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")
_SETTINGS: Final = {
    "spark.ui.showConsoleProgress": "false",
    # From its start on: with spark-submit there is no file that its lines go into.
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Else every operation on a column tells the Java process which line it comes from, in ten round trips.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # Ledgers name groups and consumers in any spelling.
    "spark.sql.caseSensitive": "true",
    # Spark's default is a type of its own that others read as nanoseconds without a time zone.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # What a window has spilled of a range it reads at once from all files: of each this would be two more
    # buffers of 1 MiB in the heap.
    "spark.unsafe.sorter.spill.read.ahead.enabled": "false",
    # A lane may be called 007.
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
}
#: Classes of Java that expressions are made of, and their functions that are called most.
_NAMED_OFTEN: Final = {
    "functions": ("col", "lit", "when"),
    "org.apache.spark.sql.functions": ("col", "lit", "when"),
    "PythonUtils": ("toSeq",),
    "PythonSQLUtils": (),
}
#: What Java says when its heap is full, or when all that it does is to look for room there.
_HEAP_FULL: Final = "java.lang.OutOfMemoryError"
#: For how long a Java process may go on after its last word.
_ENDING_S: Final = 5
#: What a file system says that takes no more.
_NO_ROOM: Final = [os.strerror(each) for each in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)]
#: The session of a `spark_session` that is not over.
_open: Final[list[Any]] = []
JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_ASCII_LOCALES: Final = ("C", "POSIX")
_LOCAL: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
}


@contextlib.contextmanager
def spark_session(
    master: str | None = None, settings: dict[str, str] | None = None, *, keep_classes: bool = False
) -> Iterator[Any]:
    """A session that is stopped afterwards. `master` None: what spark-submit says, else every core of this
    machine. Within another one it is that one's session, which goes on: a program may run several commands
    for one start of Spark. Settings that Spark can change while it runs are changed until the inner one is
    over. `keep_classes`: a later start of Spark may find these classes in a file (`class_archive`).
    Raises ConfigurationError where Spark can't start, where it ends within, and where the outer session
    has another master, or settings that need another start of Spark."""
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted:
        _require_java()
    if _open:
        with _changed(_open[-1], master, _wanted(settings or {}, submitted=submitted)):
            yield _open[-1]
        return
    if not submitted:
        _share_encoding()
    from py4j.protocol import Py4JError
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    configured = _configured(SparkConf(loadDefaults=submitted), master, settings or {}, submitted=submitted)
    heap = configured.get(_HEAP, "")
    logging.getLogger().addFilter(_is_not_of_py4j)
    with _spark_log() as log, class_archive(is_of_use=not submitted, may_make=keep_classes) as archive:
        _add_option(configured, archive.options)
        gateway = context = None
        try:
            try:
                # Spark's own lines go into a file: most of them are of no use to the reader of a verdict.
                with _sigterm_ignored():
                    gateway = launch_gateway(  # type: ignore[no-untyped-call]
                        configured, {} if submitted else {"stdout": log, "stderr": log}
                    )
                context = SparkContext(conf=configured, gateway=gateway)
            except (PySparkException, Py4JError, OSError) as problem:
                raise ConfigurationError(f"Spark can't start: {_reason(problem, log)}") from None
            _remember_classes(context._jvm)
            if not submitted:
                _leave_checksums_out(context)
            try:
                _open.append(SparkSession.builder.getOrCreate())
                yield _open[-1]
            except (PySparkException, Py4JError, OSError) as problem:
                if ended := _end_of_spark(problem, log, gateway, heap):
                    raise ConfigurationError(ended) from None
                raise
        finally:
            _open.clear()
            if context is not None:
                with contextlib.suppress(Py4JError, OSError):  # its Java process was killed
                    context.stop()
            if gateway is not None and not submitted:
                with archive.kept(gateway.proc):
                    _end(gateway, archive.limit_s)


@contextlib.contextmanager
def _sigterm_ignored() -> Iterator[None]:
    """By a process that is started meanwhile, for its whole life: SIGTERM to a process group is for the
    program, which may have work to finish. The Java process ends when the program does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


def _share_encoding() -> None:
    """Where Python takes names of files for UTF-8 although the locale has ASCII, Java has to as well."""
    if os.environ.get("LC_ALL") in _ASCII_LOCALES and os.fsencode("ä") == b"\xc3\xa4":
        os.environ["LC_ALL"] = "C.UTF-8"


def _configured(configured: Any, master: str | None, settings: dict[str, str], *, submitted: bool) -> Any:
    chosen = master or (None if submitted else DEFAULT_MASTER)
    if chosen is not None:
        configured.setMaster(chosen)
    is_local = not submitted and chosen is not None and chosen.startswith("local")
    wanted = _wanted(settings, submitted=submitted)
    if not submitted:
        wanted.setdefault(_HEAP, f"{heap_mib(0)}m")
    for name, value in {**_SETTINGS, **(_LOCAL if is_local else {}), **wanted}.items():
        configured.set(name, value)
    if is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return configured


def _add_option(configured: Any, option: str) -> None:
    """Of Java, if there is one."""
    if option:
        configured.set(JAVA_OPTIONS, f"{configured.get(JAVA_OPTIONS, '')} {option}".strip())


def _wanted(settings: dict[str, str], *, submitted: bool) -> dict[str, str]:
    """`settings`, with the heap that counts."""
    wanted = dict(settings)
    if submitted:  # its Java process is there
        for name in (_HEAP, JAVA_OPTIONS):
            wanted.pop(name, None)
    elif heap := os.environ.get(HEAP_VARIABLE):
        wanted[_HEAP] = heap
    return wanted


@contextlib.contextmanager
def _changed(session: Any, master: str | None, settings: dict[str, str]) -> Iterator[None]:
    """A session that goes on, with other settings meanwhile. Raises ConfigurationError."""
    from py4j.protocol import Py4JError

    process = getattr(session.sparkContext._gateway, "proc", None)
    if process is not None and process.poll() is not None:
        raise ConfigurationError(_ended(process.returncode))
    has = session.sparkContext.getConf()
    others = {name: value for name, value in settings.items() if session.conf.isModifiable(name)}
    fixed = {"spark.master": master} if master is not None else {}
    fixed |= {name: value for name, value in settings.items() if name not in others}
    for name, value in fixed.items():
        if not _is_met(session, name, value, has.get(name, "")):
            raise ConfigurationError(
                f"{name}: {value} is asked for, and the Spark session that is open has "
                f"{has.get(name, 'none')}: this can't change while Spark runs; open it with that value"
            )
    before = {name: session.conf.get(name, None) for name in others}
    for name, value in others.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        with contextlib.suppress(Py4JError, OSError):  # its Java process was killed
            for name, former in before.items():
                if former is None:
                    session.conf.unset(name)
                else:
                    session.conf.set(name, former)


def _is_met(session: Any, name: str, wanted: str, has: str) -> bool:
    """Whether a session has what is asked for; more heap, and other options of Java besides, will do."""
    if name == _HEAP:
        in_mib = session._jvm.org.apache.spark.network.util.JavaUtils.byteStringAsMb
        return bool(in_mib(wanted) <= in_mib(has))
    if name == JAVA_OPTIONS:
        return {*wanted.split()} <= {*has.split()}
    return wanted == has


def heap_setting(records: int) -> dict[str, str]:
    """The settings that a session on this machine needs for a ledger with this number of records."""
    return {_HEAP: f"{heap_mib(records)}m"}


def heap_mib(records: int) -> int:
    """1 GiB; for more than half a million records one more for each ten million begun, but then no more than
    half of what this machine, or its container, has. Spark writes to disk what does not fit. A sort reads
    all of its files at once, each through a buffer of 1 MiB in the heap: many small files fill the heap."""
    many = -(-records // _RECORDS_PER_GIB) if records > _MANY_RECORDS else 0
    return max(1_024, min(1_024 * (1 + many), _machine_mib() // 2))


def _machine_mib() -> int:
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with contextlib.suppress(OSError, ValueError):  # not in a control group, or one without a limit (max)
        limits.append(int(_CGROUP_LIMIT.read_text()))
    return min(limits) // 2**20


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """The end of a connection to Java is reported by its consequences, not also by a stack trace."""
    return "py4j" not in Path(record.pathname).parts


def _remember_classes(jvm: Any) -> None:
    """py4j asks for a class each time that it is named, and Java looks for it in every archive of Spark, once
    for each package that it may be of."""
    for name, members in _NAMED_OFTEN.items():
        found = getattr(jvm, name)
        setattr(jvm, name, found)
        for member in members:
            setattr(found, member, getattr(found, member))


def _leave_checksums_out(context: Any) -> None:
    """Of files on a disk: Parquet has its own, and for each file Hadoop would start one more process, which
    sets the rights of the file with the checksum."""
    local = context._jvm.org.apache.hadoop.fs.FileSystem.getLocal(context._jsc.hadoopConfiguration())
    local.setWriteChecksum(False)


def java_process(spark: Any) -> int | None:
    """The id of the Java process that `spark_session` has started; None: spark-submit has."""
    process = getattr(spark.sparkContext._gateway, "proc", None)
    return process.pid if process is not None else None


def text_of(problem: BaseException) -> str:
    """What Spark says of a problem: it asks its Java process for that, which may be gone."""
    from py4j.protocol import Py4JError

    try:
        return str(problem)
    except (Py4JError, OSError):
        return type(problem).__name__


def no_room_in(*problems: BaseException | None) -> str | None:
    """What a file system said that took no more (`No space left on device`); None: it was not that."""
    texts = [text_of(each) for each in problems if each is not None]
    return next((words for words in _NO_ROOM if any(words in text for text in texts)), None)


def connector_missing_in(*problems: BaseException | None) -> str | None:
    """The scheme of an object store that Spark has no connector for; None: it was not that."""
    for text in (text_of(each) for each in problems if each is not None):
        found = re.search(r'No FileSystem for scheme:? "?(\w+)|Class org\.apache\.hadoop\.fs\.(\w+)\.', text)
        if found:
            return found[1] or found[2]
    return None


def without_connector(scheme: str) -> ConfigurationError:
    """What to do then."""
    return ConfigurationError(
        f"Spark has no connector for {scheme}://: start with spark-submit and its package (`--packages "
        "org.apache.spark:spark-hadoop-cloud_2.13:VERSION`, that of this Spark)"
    )


def _require_java() -> None:
    home = os.environ.get("JAVA_HOME")
    program = Path(home, "bin/java") if home else None
    if program is not None and not program.is_file():
        raise ConfigurationError(f"JAVA_HOME: there is no {program}")
    if program is None and shutil.which("java") is None:
        raise ConfigurationError(
            "Spark needs Java 17 or newer, and there is none: `sudo apt-get install "
            "openjdk-17-jre-headless`, or set JAVA_HOME"
        )


@contextlib.contextmanager
def _spark_log() -> Iterator[Any]:
    with tempfile.TemporaryFile("w+", prefix="dispatcher-spark-", errors="replace") as file:
        yield file


def _reason(problem: BaseException, log: Any) -> str:
    """The line of Spark's log that says most."""
    log.flush()
    log.seek(0)
    lines = [line.strip() for line in log if "Exception" in line or "Error" in line]
    return (lines[0] if lines else str(problem).partition("\n")[0])[:300]


def _end_of_spark(problem: BaseException, log: Any, gateway: Any, heap: str) -> str | None:
    """Why Spark is at its end, and what to do; None: it is not."""
    from py4j.protocol import Py4JError, Py4JJavaError

    log.seek(0)
    if any(_HEAP_FULL in text for text in (text_of(problem), *log)):
        return (
            f"Spark has too little memory ({heap} of heap here): set {HEAP_VARIABLE} to more (on a "
            "cluster --driver-memory and --executor-memory of spark-submit), and start again"
        )
    process = getattr(gateway, "proc", None)
    if process is None:
        return None
    is_lost = isinstance(problem, ConnectionRefusedError | ConnectionResetError | Py4JError)
    with contextlib.suppress(subprocess.TimeoutExpired):  # its socket ends before it
        process.wait(_ENDING_S if is_lost and not isinstance(problem, Py4JJavaError) else 0)
    if process.returncode is None:
        return None
    return _ended(process.returncode)


def _ended(code: int) -> str:
    return f"Spark's Java process has ended (exit code {code}): start again"


def _end(gateway: Any, limit_s: float) -> None:
    """Ends the Java process that `launch_gateway` has started: it would wait until this program ends."""
    from py4j.protocol import Py4JError
    from pyspark import SparkContext

    process = gateway.proc
    with contextlib.suppress(Py4JError, OSError):  # it was killed
        gateway.shutdown()
    process.stdin.close()
    await_end(process, limit_s)
    SparkContext._gateway = SparkContext._jvm = None
    SparkContext._active_spark_context = None  # stop() leaves it if Java has ended before


def await_end(process: subprocess.Popen[bytes], limit_s: float = JAVA_ENDS_WITHIN_S) -> None:
    """Of a Java process that has nothing left to do; after `limit_s` it is killed."""
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
