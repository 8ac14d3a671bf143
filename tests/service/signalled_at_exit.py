"""`dispatcher`, whose processes get signals when Python has already given its handlers up."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from dispatcher.cli import main


class _Last:
    """Goes with the module, which is later than `atexit`."""

    def __del__(
        self, kill: Callable[[int, int], None] = os.kill, write: Callable[[int, bytes], int] = os.write,
        pid: Callable[[], int] = os.getpid,
    ) -> None:  # fmt: skip
        for number in (signal.SIGTERM, signal.SIGINT):
            kill(pid(), number)
        write(2, b'{"event": "signalled"}\n')


if __name__ == "__main__":
    last = _Last()
    main()
