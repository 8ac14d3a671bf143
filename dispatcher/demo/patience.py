"""How long to wait: as long as something goes on. Only a quiet machine would meet a limit on the whole."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from dispatcher.nodes.process import GuardedProcess

#: After so long without any sign of progress there will be none.
STUCK_S: Final = 60.0
POLL_S: Final = 0.02
#: Between two looks for signs: what a process does costs a look at every process of the machine.
SIGNS_S: Final = 0.5
#: Time between two looks counts up to so much: more has passed while this process itself stood still.
_LOOK_S_MAX: Final = 3.0


class Patience:
    """Ends when none of the signs has changed for `limit_s`."""

    def __init__(self, limit_s: float = STUCK_S, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit_s = limit_s
        self._clock = clock
        self._signs: object = None
        self._idle_s = 0.0
        self._looked_at = clock()

    def lasts(self, signs: object) -> bool:
        """Whether to wait on, given what can be seen now; to be called every second or more often."""
        now = self._clock()
        if signs == self._signs:
            self._idle_s += min(now - self._looked_at, _LOOK_S_MAX)
        else:
            self._signs, self._idle_s = signs, 0.0
        self._looked_at = now
        return self._idle_s <= self.limit_s


def wait_while_it_goes_on(
    done: Callable[[], bool], signs: Callable[[], object], limit_s: float = STUCK_S
) -> bool:
    """Wait until `done`; False when that has not happened, and nothing in `signs` has changed for
    `limit_s`. It looks for signs twice a second."""
    patience, next_look = Patience(limit_s), 0.0
    while not done():
        if time.monotonic() >= next_look:
            if not patience.lasts(signs()):
                return False
            next_look = time.monotonic() + SIGNS_S
        time.sleep(POLL_S)
    return True


def stop_patiently(process: GuardedProcess) -> None:
    """Let a process end by itself (SIGTERM); kill it when it does nothing and does not end."""
    process.ask_to_end()
    wait_while_it_goes_on(lambda: not process.is_alive(), lambda: whole_cpu_s(process))
    process.kill()


def whole_cpu_s(process: GuardedProcess) -> int:
    """A sign of progress: one that only tries to connect again and again hardly ever changes it."""
    return int(process.cpu_s())
