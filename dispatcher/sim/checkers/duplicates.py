"""G-4: no crash, restart or lost connection of a dispatcher hands a message over twice."""

from __future__ import annotations

from dispatcher.client.copies import Copy
from dispatcher.sim.checkers.checker import Checker
from dispatcher.sim.life import Life


class DuplicatesChecker(Checker):
    name = "duplicates"

    def handed(self, life: Life, incarnation: str, copy: Copy) -> None:
        history = self.world.history
        if (incarnation, copy.seq) not in history.journalled:
            self.violate(f"seq {copy.seq} for {incarnation} was sent before its commit: {life}")
        if life.twins > 1 or life.uid in history.excused or life.uid in history.forgotten:
            return
        if life.settled:
            self.violate(f"handed to {incarnation} as {copy.seq} after it was settled: {life}")
        if life.purges:
            self.violate(f"handed to {incarnation} as {copy.seq} after it was purged: {life}")
        if life.buried:
            self.violate(f"handed to {incarnation} as {copy.seq} after it went to the dead queue: {life}")
        for former, seq, attempt in life.starts:
            if former not in history.taken and (former, seq) not in life.failed:
                self.violate(f"handed to {incarnation} as {copy.seq} while {former} has it as {seq}: {life}")
            elif copy.attempt <= attempt:
                self.violate(f"handed over again as attempt {copy.attempt}, not above {attempt}: {life}")

    def buried(self, life: Life) -> None:
        if life.twins == 1 and life.settled and not life.fails and life.uid not in self.world.history.excused:
            self.violate(f"in the dead queue although it was settled: {life}")
