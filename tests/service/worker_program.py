"""Supervised workers that are no dispatchers.

Arguments: how many, how long they may take to stop, and what a worker does: `start` and wait for a signal,
`refuse` to start unless it is the first, `fail` after the start, `orphan` a process as it ends. With
`crowded` the system has no process for any worker until SIGUSR1.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys

from dispatcher import logs
from dispatcher.service.workers import supervise

REFUSED = 7
NOBODY = 65_534
PR_SET_CHILD_SUBREAPER = 36


def main() -> int:
    count, stop_s, act = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    logs.configure(as_json=True)
    if act == "orphan":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    if act == "crowded":
        if os.getuid() == 0:
            os.setuid(NOBODY)  # there is no limit for root
        _, most = resource.getrlimit(resource.RLIMIT_NPROC)
        resource.setrlimit(resource.RLIMIT_NPROC, (1, most))
        signal.signal(signal.SIGUSR1, lambda *_: resource.setrlimit(resource.RLIMIT_NPROC, (most, most)))
    worker = supervise(count, stop_s=stop_s, pause_s=0.2)
    if isinstance(worker, int):
        return worker
    if act == "refuse" and worker.number > 1:
        return REFUSED
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    worker.has_started()
    if act == "orphan":
        subprocess.Popen(["cat"], stdin=subprocess.PIPE)  # ends when this process has
    if act != "fail":
        signal.sigwait([signal.SIGTERM])
    return 0


if __name__ == "__main__":
    sys.exit(main())
