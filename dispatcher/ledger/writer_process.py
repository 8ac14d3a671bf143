"""The process that writes the ledger: `dispatcher.ledger.writer_process`, started by the dispatcher.

The settings come in on stdin, then frames of notes; reports go out on stdout, and the first one names the
problems with the ledger's place, or says that there are none. At the end of stdin, also when the dispatcher
was killed, it writes everything.
"""

from __future__ import annotations

import marshal
import os
import select
import signal
import sys
from typing import Any, BinaryIO, Final

from dispatcher.errors import ConfigurationError
from dispatcher.ledger.frames import read_frame, write_frame
from dispatcher.ledger.leadership_records import LedgerRecords, now_us
from dispatcher.ledger.store import Store
from dispatcher.settings import LedgerSettings

#: How often it looks whether a file is due.
LOOK_S: Final = 0.05
#: A store that has not taken the last file by then never will.
END_S: Final = 60


def serve(settings: LedgerSettings, notes: BinaryIO, reports: BinaryIO) -> None:
    """Write all notes until stdin ends. Raises ConfigurationError when it can't write at all."""
    store = Store(settings.path)
    store.try_out()
    write_frame(reports, [])

    def report(told: Any) -> None:
        try:
            write_frame(reports, told)
        except BrokenPipeError:
            return  # the dispatcher has ended

    records = LedgerRecords(store, settings, report)
    while True:
        if select.select([notes], [], [], LOOK_S)[0]:
            frame = read_frame(notes)
            if frame is None:
                break
            for note in frame:
                records.note(*marshal.loads(note))
        records.look(now_us())
    signal.alarm(END_S)
    records.close()


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)  # it ends when the dispatcher has
    # Unbuffered, or select would not see bytes that were read ahead.
    notes, reports = os.fdopen(0, "rb", buffering=0), os.fdopen(os.dup(1), "wb")
    settings = read_frame(notes)
    if settings is None:  # the dispatcher was killed in this moment
        return 0
    try:
        serve(LedgerSettings(**settings), notes, reports)
    except ConfigurationError as refused:
        write_frame(reports, refused.problems)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
