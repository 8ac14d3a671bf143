"""A Spark session: quiet, and on this machine's loopback only unless another master is named."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from dispatcher.errors import ConfigurationError

DEFAULT_MASTER: Final = "local[*]"
#: Spark spills to disk what does not fit.
DRIVER_HEAP: Final = "1g"
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
    # A lane may be called 007.
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
}
#: Classes of Java that expressions are made of, and what is called most there.
_NAMED_OFTEN: Final = {
    "functions": ("col", "lit", "when"),
    "org.apache.spark.sql.functions": ("col", "lit", "when"),
    "PythonUtils": ("toSeq",),
    "PythonSQLUtils": (),
}
#: What a file system says that takes no more.
_NO_ROOM: Final = [os.strerror(each) for each in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)]
_ASCII_LOCALES: Final = ("C", "POSIX")
_LOCAL: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": DRIVER_HEAP,
    "spark.ui.enabled": "false",
}


@contextlib.contextmanager
def spark_session(master: str | None = None, settings: dict[str, str] | None = None) -> Iterator[Any]:
    """A session that is stopped afterwards. `master` None: what spark-submit says, else every core of this
    machine. Raises ConfigurationError where Spark can't start."""
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted:
        _require_java()
        _share_encoding()
    from py4j.protocol import Py4JError
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    configured = SparkConf(loadDefaults=submitted).setAppName("dispatcher pipeline")
    chosen = master or (None if submitted else DEFAULT_MASTER)
    if chosen is not None:
        configured.setMaster(chosen)
    is_local = not submitted and chosen is not None and chosen.startswith("local")
    for name, value in {**_SETTINGS, **(_LOCAL if is_local else {}), **(settings or {})}.items():
        configured.set(name, value)
    if is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    with _spark_log() as log:
        gateway = context = None
        try:
            try:
                # Spark's own lines go into a file: most of them are of no use to whoever reads a verdict.
                gateway = launch_gateway(  # type: ignore[no-untyped-call]
                    configured, {} if submitted else {"stdout": log, "stderr": log}
                )
                context = SparkContext(conf=configured, gateway=gateway)
            except (PySparkException, Py4JError, OSError) as problem:
                raise ConfigurationError(f"Spark can't start: {_reason(problem, log)}") from None
            _remember_classes(context._jvm)
            yield SparkSession.builder.getOrCreate()
        finally:
            if context is not None:
                with contextlib.suppress(Py4JError, OSError):  # its Java process was killed
                    context.stop()
            if gateway is not None and not submitted:
                _end(gateway)


def _share_encoding() -> None:
    """Where Python takes names of files for UTF-8 although the locale has ASCII, Java has to as well."""
    if os.environ.get("LC_ALL") in _ASCII_LOCALES and os.fsencode("ä") == b"\xc3\xa4":
        os.environ["LC_ALL"] = "C.UTF-8"


def _remember_classes(jvm: Any) -> None:
    """py4j asks for a class each time that it is named, and Java looks for it in every archive of Spark, once
    for each package that it may be of."""
    for name, members in _NAMED_OFTEN.items():
        found = getattr(jvm, name)
        setattr(jvm, name, found)
        for member in members:
            setattr(found, member, getattr(found, member))


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


def _end(gateway: Any) -> None:
    """Ends the Java process that `launch_gateway` has started: it would wait until this program ends."""
    from py4j.protocol import Py4JError
    from pyspark import SparkContext

    process = gateway.proc
    with contextlib.suppress(Py4JError, OSError):  # it was killed
        gateway.shutdown()
    process.stdin.close()
    process.wait(timeout=30)
    SparkContext._gateway = SparkContext._jvm = None
