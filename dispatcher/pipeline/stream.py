"""A ledger followed with Structured Streaming: every file in exactly one batch, also over kills.

Spark's file source says which files are new, and its checkpoint which batch they belong to. A batch is
written as a whole (`live_folder`); a repetition of one that is there already does nothing.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from dispatcher.errors import ConfigurationError
from dispatcher.pipeline.live_folder import ALERTS, LiveFolder
from dispatcher.pipeline.session import connector_missing_in, no_room_in, without_connector
from dispatcher.pipeline.spark_paths import written_to
from dispatcher.pipeline.stream_alerts import as_json, as_text
from dispatcher.pipeline.stream_batch import Batches, RetentionLimits
from dispatcher.pipeline.stream_reading import ARRIVALS, LedgerLocation

_LOOKS_EVERY_S: Final = 1
_ALERTS_PER_READ: Final = 1_000
#: Batches are small, and a new one may not wait for a compiler.
SESSION: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC",
}


class StreamOptions(NamedTuple):
    """How a stream goes."""

    trigger_ms: int
    until_caught_up: bool
    batch_files: int
    limits: RetentionLimits


class _Stopping(Exception):
    """A batch is not begun any more; it is the first one of the next stream."""


class Stream:
    """Runs until it has caught up, or is told to stop."""

    def __init__(
        self, spark: SparkSession, ledger: LedgerLocation, folder: LiveFolder, options: StreamOptions
    ) -> None:
        self._spark, self._ledger, self._folder, self._options = spark, ledger, folder, options
        name = "spark.sql.shuffle.partitions"
        if not spark.sparkContext.getConf().contains(name):
            spark.conf.set(name, spark.sparkContext.defaultParallelism)
        self._batches = Batches(spark, ledger, folder, options.limits)
        self._busy = threading.Lock()  # held while a batch is made
        self._stopping = threading.Event()
        self._problem: BaseException | None = None

    def run(self) -> None:
        """Raises ConfigurationError when the stream can't go on."""
        logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it tells everything twice, with its frames
        with _stopped_by_signals(self._stopping):
            try:
                last = self._folder.last
                if last is not None and not self._folder.is_told(last):
                    self._tell(last)
                query = self._start()
                while not self._stopping.is_set() and not query.awaitTermination(_LOOKS_EVERY_S):
                    pass
                with self._busy:  # the batch in hand; no other one begins any more
                    pass
                query.stop()
            except (PySparkException, Py4JError, OSError) as problem:
                if not isinstance(self._problem, _Stopping):
                    raise self._reason(problem) from problem

    def stop(self) -> None:
        """End after the batch in hand."""
        self._stopping.set()

    def _start(self) -> StreamingQuery:
        options = self._options
        arrivals = (
            self._spark.readStream.format("binaryFile").schema(ARRIVALS)
            .options(
                recursiveFileLookup=True, ignoreMissingFiles=True, maxFilesPerTrigger=options.batch_files
            )
            .load(self._ledger.pattern).select("path")
        )  # fmt: skip
        trigger: dict[str, Any] = (
            {"availableNow": True}
            if options.until_caught_up
            else {"processingTime": f"{options.trigger_ms} milliseconds"}
        )
        return (
            arrivals.writeStream.foreachBatch(self._each)
            .option("checkpointLocation", written_to(self._folder.checkpoint))
            .trigger(**trigger)
            .start()
        )

    def _each(self, arrivals: DataFrame, number: int) -> None:
        with self._busy:
            try:
                self._make(arrivals, number)
            except BaseException as problem:
                self._problem = problem
                raise

    def _make(self, arrivals: DataFrame, number: int) -> None:
        if self._stopping.is_set():
            raise _Stopping
        last = self._folder.last
        if last is not None and number <= last:
            return  # killed after it was written, before Spark knew that
        if number != (0 if last is None else last + 1):
            raise ConfigurationError(
                f"{self._folder.checkpoint}: goes on with batch {number}, and the tables in "
                f"{self._folder.path} end with {last}: name an empty directory for both"
            )
        began_s = time.monotonic()
        told = self._batches.make(number, (row["path"] for row in arrivals.collect()), _tell_all)
        self._folder.told(number)
        print(
            f"batch {number}: {_counted(told.files, 'file')}, {_counted(told.alerts, 'alert')}, "
            f"{time.monotonic() - began_s:.1f} s",
            file=sys.stderr, flush=True,
        )  # fmt: skip

    def _tell(self, number: int) -> None:
        """Print the alerts of a batch that was killed when it may not have done so."""
        path = self._folder.batch(number) / ALERTS
        if path.exists():
            for batch in pq.ParquetFile(path).iter_batches(_ALERTS_PER_READ):
                for alert in batch.to_pylist():
                    tell(alert)
        self._folder.told(number)

    def _reason(self, problem: BaseException) -> BaseException:
        if isinstance(self._problem, ConfigurationError):
            return self._problem
        if words := no_room_in(problem, self._problem):
            return ConfigurationError(
                f"{words}: the tables in {self._folder.path}, or Spark's own files, can't be written: make "
                "room, and start the stream again: it goes on where it was"
            )
        if scheme := connector_missing_in(problem, self._problem):
            return without_connector(scheme)
        if isinstance(problem, Py4JError | OSError):
            return ConfigurationError(
                "Spark's Java process is gone; start the stream again: it goes on where it was"
            )
        return self._problem or problem


def tell(alert: dict[str, Any]) -> None:
    """On a terminal text for people, else a line of JSON on stdout, and the text on stderr's terminal."""
    if sys.stdout.isatty():
        print(as_text(alert), flush=True)
        return
    print(as_json(alert), flush=True)
    if sys.stderr.isatty():
        print(as_text(alert), file=sys.stderr, flush=True)


def _tell_all(alerts: pa.Table) -> None:
    for batch in alerts.to_batches(_ALERTS_PER_READ):
        for alert in batch.to_pylist():
            tell(alert)


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


@contextlib.contextmanager
def _stopped_by_signals(stopping: threading.Event) -> Iterator[None]:
    """SIGINT and SIGTERM set it; elsewhere than in the main thread nothing is changed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = {
        each: signal.signal(each, lambda *_: stopping.set()) for each in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for each, handler in former.items():
            signal.signal(each, handler)
