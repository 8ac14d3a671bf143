"""The dispatcher's side of the ledger: notes go to a process of their own, through a thread that may wait.

The event loop never waits for the disk: when the thread can't pass on notes, new ones are dropped and
counted. A process that ends is started again. The records that it had in no file are lost and counted; the
next process records that.
"""

from __future__ import annotations

import socket
import threading
import time
from functools import partial
from typing import Final

import structlog

from dispatcher.errors import ConfigurationError
from dispatcher.ledger.note_queue import NoteQueue, NoteRecorder, Reached
from dispatcher.ledger.recorder import Recorder
from dispatcher.ledger.writer_handle import WriterHandle
from dispatcher.settings import LedgerSettings

log = structlog.get_logger()

#: How often the thread looks for notes: files are seconds old when they are written.
POLL_S: Final = 0.1
#: About how many bytes are written at a time.
FRAME_BYTES: Final = 256 * 1024
#: Before the process is started again: each time twice as long, until one has lived for the longest pause.
RESTART_S_MIN: Final = 0.5
RESTART_S_MAX: Final = 60.0


class Ledger:
    """Writes the ledger of one process. Raises ConfigurationError when its place can't be written to."""

    def __init__(self, settings: LedgerSettings) -> None:
        self._settings = settings
        self._notes = NoteQueue(settings.memory_bytes // 2)
        self._process = WriterHandle(settings)
        self._stopping = threading.Event()
        self._sender = threading.Thread(target=self._send, name="ledger", daemon=True)
        self._reader = self._new_reader()
        self._failing = False
        self._pause_s = RESTART_S_MIN
        self._offset_us = time.time_ns() // 1_000 - time.monotonic_ns() // 1_000
        #: Totals of each lane: records in files, messages that were not noted, records that no file took.
        self._written: dict[str, int] = {}
        self._refused: dict[str, int] = {}
        self._lost: dict[str, int] = {}
        self._reached: dict[int, Reached] = {}  # by the number of the leadership

    @property
    def pid(self) -> int:
        """Of the process that writes."""
        return self._process.pid

    def start(self) -> None:
        self._sender.start()
        self._reader.start()

    def discard(self) -> None:
        """Instead of starting it: nothing will be written."""
        self._process.discard()

    def recorder(self, lane: str) -> Recorder:
        """For the next leadership of that lane."""
        return NoteRecorder(
            lane, socket.gethostname(), self._notes, self.now_us, partial(_count, self._refused, lane),
            self._reached.get,
        )  # fmt: skip

    def now_us(self) -> int:
        """µs since 1970 that never go back."""
        return time.monotonic_ns() // 1_000 + self._offset_us

    def counters(self, lane: str) -> dict[str, float]:
        return {
            "ledger_records": self._written.get(lane, 0),
            "ledger_records_dropped": self._refused.get(lane, 0) + self._lost.get(lane, 0),
        }

    def stop(self, timeout_s: float) -> bool:
        """Write what there is; False when that takes longer: it goes on when this process has ended."""
        self._stopping.set()
        deadline_s = time.monotonic() + timeout_s
        self._sender.join(timeout_s)
        self._reader.join(max(0.0, deadline_s - time.monotonic()))
        return not (self._sender.is_alive() or self._reader.is_alive())

    # -- threads --

    def _send(self) -> None:
        while True:
            begun_s = time.monotonic()
            try:
                self._feed()
                return
            except Exception as failure:  # nothing else may stop over it
                problem = f"the process that writes it is gone: {failure!r}"
            finally:
                self._process.finish()
            self._notes.close()
            if time.monotonic() - begun_s >= RESTART_S_MAX:
                self._pause_s = RESTART_S_MIN
            log.error("ledger_ended", problem=problem, again_in_s=self._pause_s)
            self._reader.join()  # what it has told of files counts
            if not self._is_started_again():
                return

    def _feed(self) -> None:
        """Send notes until all are sent and none follows. Raises OSError when the process has ended."""
        is_last = False
        while not is_last:
            is_last = self._stopping.wait(POLL_S)
            if self._process.has_ended():
                raise ChildProcessError("it has ended")
            while notes := self._notes.take(FRAME_BYTES):
                self._process.send(notes)
                self._notes.done(notes)

    def _is_started_again(self) -> bool:
        """False: everything stops."""
        while not self._stopping.wait(self._pause_s):
            self._pause_s = min(2 * self._pause_s, RESTART_S_MAX)
            try:
                process = WriterHandle(self._settings)
            except (ConfigurationError, OSError) as problem:
                log.error("ledger_not_started", problem=str(problem), again_in_s=self._pause_s)
                continue
            self._notes.open_again()  # before the process can be seen
            self._process = process
            self._reader = self._new_reader()
            self._reader.start()
            log.info("ledger_started_again")
            return True
        return False

    def _new_reader(self) -> threading.Thread:
        return threading.Thread(target=self._read, args=[self._process], name="ledger reports", daemon=True)

    def _read(self, process: WriterHandle) -> None:
        for lane, written, lost, problem, reached in process.reports():
            _count(self._written, lane, written)
            _count(self._lost, lane, lost)
            if reached is not None:
                number, *found = reached
                self._reached[number] = Reached(*found)
            if lost and not self._failing:
                log.error("ledger_not_written", lane=lane, records=lost, problem=problem)
            self._failing = bool(lost)


def _count(totals: dict[str, int], lane: str, count: int) -> None:
    totals[lane] = totals.get(lane, 0) + count
