"""Workers: `dispatcher run` as several processes on one machine, each an ordinary replica.

The first process only supervises. It starts the others, starts one anew that has died, passes signals on, and
ends when all have ended. It forks before there is a loop, a thread or a connection. A socket ties each worker
to it: the worker says on it that it has started, and stops when it ends, also by kill -9.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import Final

import structlog

from dispatcher.settings import Settings

log = structlog.get_logger()

#: How long workers may take to stop. They give their lanes up within 4 s, and end their files and spans then.
STOP_S: Final = 12.0
#: Before a worker is started anew: twice as long each time, unless it ran for longer than the longest pause.
PAUSE_S_MIN: Final = 1.0
PAUSE_S_MAX: Final = 30.0
_STARTED: Final = b"1"
#: End a process in order.
STOPPING: Final = (signal.SIGTERM, signal.SIGINT)
#: What a process that serves lanes handles. It blocks them before it can, and ignores them when it has ended.
SERVED_SIGNALS: Final = (*STOPPING, signal.SIGHUP)
_SIGNALS: Final = (*SERVED_SIGNALS, signal.SIGCHLD)


class Worker:
    """A worker's own view of its place."""

    def __init__(self, number: int, link: socket.socket) -> None:
        self.number = number  # from 1
        self.link = link  # can be read when the supervisor has ended

    def settings(self, settings: Settings) -> Settings:
        """What the file says, for this worker: the port of its HTTP server is its own."""
        listen = settings.http.listen
        host, _, port = listen.rpartition(":")
        if int(port):  # else each gets a free one
            listen = f"{host}:{int(port) + self.number - 1}"
        return settings.model_copy(update={"http": settings.http.model_copy(update={"listen": listen})})

    def has_started(self) -> None:
        """From now on it is started anew when it ends."""
        with contextlib.suppress(OSError):  # the supervisor has ended
            self.link.send(_STARTED)


class _Place:
    """Of one worker, and of those that come after it."""

    def __init__(self, number: int, pause_s: float) -> None:
        self.number = number
        self.has_started = False  # one of them
        self.pid: int | None = None
        self.due_s = 0.0  # when the next one starts
        self.pause_s = self._pause_s_min = pause_s
        self.began_s = time.monotonic()  # the latest one
        self._link: socket.socket | None = None

    def start(self, places: Sequence[_Place], signals: _Signals) -> Worker | None:
        """In the new process: the worker."""
        self._link, theirs = socket.socketpair()
        self.began_s = time.monotonic()
        sys.stdout.flush()
        signal.pthread_sigmask(signal.SIG_BLOCK, SERVED_SIGNALS)
        try:
            pid = os.fork()
        except OSError as error:  # too many processes, or too little memory: as if it had ended
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SERVED_SIGNALS)
            theirs.close()
            log.error("worker_not_forked", number=self.number, problem=str(error), again_in_s=self.ended())
            return None
        if pid == 0:
            signals.close(signal.SIG_DFL)
            for place in places:
                place.close()  # or it would not end with the supervisor
            return Worker(self.number, theirs)  # signals wait until its loop handles them
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SERVED_SIGNALS)
        self.pid = pid
        theirs.close()
        log.info("worker_started", number=self.number, pid=pid)
        return None

    def hear(self) -> None:
        """Whether the worker says that it has started."""
        if self._link is None:
            return
        with contextlib.suppress(BlockingIOError, ConnectionResetError):
            said = self._link.recv(1, socket.MSG_DONTWAIT)
            self.has_started = self.has_started or said == _STARTED
            if not said:
                self.close()

    def ended(self) -> float:
        """The worker has. Returns the pause before the next one."""
        self.hear()
        self.close()
        self.pid = None
        now_s = time.monotonic()
        if now_s - self.began_s > PAUSE_S_MAX:
            self.pause_s = self._pause_s_min
        pause_s = self.pause_s
        self.due_s = now_s + pause_s
        self.pause_s = min(2 * pause_s, PAUSE_S_MAX)
        return pause_s

    def send(self, number: int) -> None:
        if self.pid is not None:  # not reaped, so nobody else has the id
            os.kill(self.pid, number)

    def fileno(self) -> int | None:
        return None if self._link is None else self._link.fileno()

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None


class _Signals:
    """They only wake this process up."""

    def __init__(self) -> None:
        self._wakes, self._woken = socket.socketpair()
        self._wakes.setblocking(False)
        self._woken.setblocking(False)
        signal.set_wakeup_fd(self._wakes.fileno())
        for number in _SIGNALS:
            signal.signal(number, lambda *_: None)

    def wait(self, others: Sequence[int], timeout_s: float | None) -> set[int]:
        """The signals that came; none, when one of the others can be read or the time is up."""
        select.select([self._woken.fileno(), *others], [], [], timeout_s)
        with contextlib.suppress(BlockingIOError):
            return set(self._woken.recv(1_000))
        return set()

    def close(self, handler: signal.Handlers) -> None:
        """Signals go to that one."""
        signal.set_wakeup_fd(-1)
        for number in _SIGNALS:
            signal.signal(number, handler)
        self._wakes.close()
        self._woken.close()


class _Supervisor:
    def __init__(self, count: int, stop_s: float, pause_s: float) -> None:
        self._places = [_Place(number, pause_s) for number in range(1, count + 1)]
        self._signals = _Signals()
        self._stop_s = stop_s
        self._stop_by: float | None = None
        self._code = 0

    def run(self) -> Worker | int:
        while self._stop_by is None or any(place.pid is not None for place in self._places):
            for place in self._due():
                worker = place.start(self._places, self._signals)
                if worker is not None:
                    return worker
            links = [fileno for place in self._places if (fileno := place.fileno()) is not None]
            came = self._signals.wait(links, self._timeout_s())
            if signal.SIGHUP in came:
                self._send(signal.SIGHUP)
            if came.intersection(STOPPING):
                self._stop()
            for place in self._places:
                place.hear()
            self._reap()
            if self._stop_by is not None and time.monotonic() >= self._stop_by:
                self._kill()
        log.info("workers_stopped")
        self._signals.close(signal.SIG_IGN)
        return self._code

    def _due(self) -> list[_Place]:
        """Those that start now. The first goes alone: what keeps it from starting would keep all of them, and
        is said once."""
        if self._stop_by is not None:
            return []
        places = self._places if self._places[0].has_started else self._places[:1]
        return [place for place in places if place.pid is None and place.due_s <= time.monotonic()]

    def _timeout_s(self) -> float | None:
        times = [place.due_s for place in self._places if place.pid is None and place.due_s]
        if self._stop_by is not None:
            times = [self._stop_by]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _send(self, number: int) -> None:
        for place in self._places:
            place.send(number)

    def _stop(self) -> None:
        if self._stop_by is None:
            self._stop_by = time.monotonic() + self._stop_s
            self._send(signal.SIGTERM)

    def _kill(self) -> None:
        for place in self._places:
            if place.pid is not None:
                place.send(signal.SIGKILL)
                self._ended(place, os.waitstatus_to_exitcode(os.waitpid(place.pid, 0)[1]))

    def _reap(self) -> None:
        """Also processes that are none of ours: in a container they are given to process 1."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                for place in self._places:
                    if place.pid == pid:
                        self._ended(place, os.waitstatus_to_exitcode(status))

    def _ended(self, place: _Place, code: int) -> None:
        pid, pause_s = place.pid, place.ended()
        if self._stop_by is not None:
            self._code = self._code or int(code != 0)
        elif code and not place.has_started:
            log.error("worker_not_started", number=place.number, pid=pid, code=code)
            self._code = max(code, 1)
            self._stop()
        else:
            tell = log.error if code else log.warning
            tell("worker_ended", number=place.number, pid=pid, code=code, again_in_s=pause_s)


def supervise(count: int, *, stop_s: float = STOP_S, pause_s: float = PAUSE_S_MIN) -> Worker | int:
    """Start `count` workers. Returns the worker in each of them, with SERVED_SIGNALS blocked, and in this
    process its exit code, when all have ended.

    That is 0 if all ended with 0 after a SIGTERM or SIGINT. If one can't start for the first time, all end,
    and it is that one's.
    """
    return _Supervisor(count, stop_s, pause_s).run()
