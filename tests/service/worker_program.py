"""Supervised workers that are no dispatchers.

Arguments: how many, how long they may take to stop, and what a worker does: `start` and wait for a signal,
`refuse` to start unless it is the first, `fail` after the start.
"""

from __future__ import annotations

import signal
import sys

from dispatcher import logs
from dispatcher.service.workers import supervise

REFUSED = 7


def main() -> int:
    count, stop_s, act = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    logs.configure(as_json=True)
    worker = supervise(count, stop_s=stop_s, pause_s=0.2)
    if isinstance(worker, int):
        return worker
    if act == "refuse" and worker.number > 1:
        return REFUSED
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    worker.has_started()
    if act != "fail":
        signal.sigwait([signal.SIGTERM])
    return 0


if __name__ == "__main__":
    sys.exit(main())
