"""A dispatcher that looks, while it works, what it works on: `python -m bench.profile.sampled FILE run …`.

The kernel's timer of the process' CPU time interrupts it. FILE gets which file of `dispatcher` was innermost
how many times, and the CPU time, from the begin of a leadership to the end of the process.
"""

from __future__ import annotations

import atexit
import json
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any, Final

import dispatcher
from dispatcher.cli import main
from dispatcher.service.lane_runner import LaneRunner
from dispatcher.service.lanes import Lanes

#: As often as the kernel can: it rounds that up to its own tick.
INTERVAL_S: Final = 0.001
_FOLDER: Final = f"{Path(dispatcher.__file__).parent}/"


class Sampler:
    """Counts where the process is, while it uses CPU time."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._samples = Counter[str]()
        self._begun_s: float | None = None

    def begin(self) -> None:
        if self._begun_s is None:
            self._begun_s = time.process_time()
            signal.signal(signal.SIGPROF, self._look)
            signal.setitimer(signal.ITIMER_PROF, INTERVAL_S, INTERVAL_S)
            atexit.register(self._write)

    def _look(self, _number: int, frame: FrameType | None) -> None:
        while frame is not None and not frame.f_code.co_filename.startswith(_FOLDER):
            frame = frame.f_back
        self._samples[frame.f_code.co_filename.removeprefix(_FOLDER) if frame is not None else ""] += 1

    def _write(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        assert self._begun_s is not None
        measured = {"cpu_s": time.process_time() - self._begun_s, "samples": self._samples}
        self._file.write_text(json.dumps(measured))


def run(file: Path) -> None:
    """The dispatcher, with the arguments that the process has."""
    sampler = Sampler(file)

    class SampledRunner(LaneRunner):
        async def _take_over(self, *given: Any) -> Any:
            sampler.begin()
            return await super()._take_over(*given)

    Lanes.runner_type = SampledRunner
    main()


if __name__ == "__main__":
    run(Path(sys.argv.pop(1)))
