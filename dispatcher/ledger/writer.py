"""The dispatcher's side of the ledger: notes go to a process of their own, through a thread that may wait.

What the disk does and how long it takes is nothing to the event loop: when the thread can't get rid of
notes, new ones are dropped and counted.
"""

from __future__ import annotations

import contextlib
import fcntl
import socket
import subprocess
import sys
import threading
import time
from functools import partial
from typing import IO, Any, Final

import structlog

from dispatcher.errors import ConfigurationError
from dispatcher.ledger.frames import read_frame, write_frame
from dispatcher.ledger.notes import Bookkeeper, Notes
from dispatcher.ledger.recorder import Recorder
from dispatcher.settings_parts import LedgerSettings

log = structlog.get_logger()

#: How often the thread looks for notes: files are seconds old when they are written.
POLL_S: Final = 0.1
#: About so much is written at a time.
FRAME_BYTES: Final = 256 * 1024
#: As much as Linux lets everybody have: the thread has to wait less often.
PIPE_BYTES: Final = 1 << 20


class Ledger:
    """Writes the ledger of one process. Raises ConfigurationError when its place can't be written to."""

    def __init__(self, settings: LedgerSettings) -> None:
        self._notes = Notes(settings.memory_bytes // 2)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "dispatcher.ledger.scribe", settings.model_dump_json(by_alias=False)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        problems = read_frame(self._pipe(self._process.stdout))
        if problems is None or problems:
            self.discard()
            raise ConfigurationError(problems or ["ledger: the process that writes it did not start"])
        self._stopping = threading.Event()
        self._sender = threading.Thread(target=self._send, name="ledger", daemon=True)
        self._reader = threading.Thread(target=self._read, name="ledger reports", daemon=True)
        self._failing = False
        self._offset_us = time.time_ns() // 1_000 - time.monotonic_ns() // 1_000
        #: Totals of each lane: records in files, messages that were not noted, records that no file took.
        self._written: dict[str, int] = {}
        self._refused: dict[str, int] = {}
        self._lost: dict[str, int] = {}

    @staticmethod
    def _pipe(pipe: IO[bytes] | None) -> Any:
        assert pipe is not None
        return pipe

    def start(self) -> None:
        self._sender.start()
        self._reader.start()

    def discard(self) -> None:
        """Instead of starting it: nothing will be written."""
        self._pipe(self._process.stdin).close()
        self._process.wait()
        self._pipe(self._process.stdout).close()

    def recorder(self, lane: str) -> Recorder:
        """For the next leadership of that lane."""
        return Bookkeeper(
            lane, socket.gethostname(), self._notes, self.now_us, partial(_count, self._refused, lane)
        )

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
        pipe = self._pipe(self._process.stdin)
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        try:
            is_last = False
            while not is_last:
                is_last = self._stopping.wait(POLL_S)
                while notes := self._notes.take(FRAME_BYTES):
                    write_frame(pipe, notes)
                    self._notes.done(notes)
        except Exception as failure:  # nothing else may stop over it
            self._notes.close()
            log.error("ledger_ended", problem=f"the process that writes it is gone: {failure!r}")
        finally:
            with contextlib.suppress(OSError):
                pipe.close()

    def _read(self) -> None:
        pipe = self._pipe(self._process.stdout)
        while (report := read_frame(pipe)) is not None:
            lane, written, lost, problem = report
            _count(self._written, lane, written)
            _count(self._lost, lane, lost)
            if lost and not self._failing:
                log.error("ledger_not_written", lane=lane, records=lost, problem=problem)
            self._failing = bool(lost)
        self._process.wait()
        pipe.close()


def _count(totals: dict[str, int], lane: str, count: int) -> None:
    totals[lane] = totals.get(lane, 0) + count
