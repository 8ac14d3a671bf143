"""The process that writes the ledger, as the dispatcher holds it."""

from __future__ import annotations

import contextlib
import fcntl
import subprocess
import sys
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any, Final

from dispatcher.errors import ConfigurationError
from dispatcher.ledger.frames import read_frame, write_frame
from dispatcher.settings import LedgerSettings

if TYPE_CHECKING:
    # It needs pyarrow, which only the other process has to have.
    from dispatcher.ledger.leadership_records import Report

#: As much as Linux allows to any user: the writing side has to wait less often.
PIPE_BYTES: Final = 1 << 20


class WriterHandle:
    """One such process. Raises ConfigurationError when the ledger's place can't be written to."""

    def __init__(self, settings: LedgerSettings) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "dispatcher.ledger.writer_process"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        self._notes, self._reports = self._pipe(self._popen.stdin), self._pipe(self._popen.stdout)
        with contextlib.suppress(OSError):  # it has ended, and reports nothing
            # Not as an argument, which every user of the machine can read: a URL may have a password.
            write_frame(self._notes, settings.model_dump(mode="json", by_alias=False))
        problems = read_frame(self._reports)
        if problems is None or problems:
            self.discard()
            raise ConfigurationError(problems or ["ledger: the process that writes it did not start"])
        with contextlib.suppress(OSError):  # this user has many large pipes: it works with a small one too
            fcntl.fcntl(self._notes, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    @staticmethod
    def _pipe(pipe: IO[bytes] | None) -> Any:
        assert pipe is not None
        return pipe

    @property
    def pid(self) -> int:
        return self._popen.pid

    def has_ended(self) -> bool:
        return self._popen.poll() is not None

    def send(self, notes: list[bytes]) -> None:
        """Raises OSError when it is gone."""
        write_frame(self._notes, notes)

    def finish(self) -> None:
        """There is nothing more: it writes all that it has, and ends."""
        with contextlib.suppress(OSError):
            self._notes.close()

    def reports(self) -> Iterator[Report]:
        """Until it has ended."""
        while (report := read_frame(self._reports)) is not None:
            yield report
        self._popen.wait()
        self._reports.close()

    def discard(self) -> None:
        """Nothing will be written."""
        self.finish()
        self._popen.wait()
        self._reports.close()
