"""A dispatcher that a module of the benchmarks runs, to look on while it works."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from bench.relay.contenders import Dispatcher, Exclusive, Sequenced
from dispatcher.demo.dispatcher_process import DispatcherProcess

POLICIES: Final[dict[str, type[Dispatcher]]] = {"exclusive": Exclusive, "sequenced": Sequenced}


def observed(policy: str, module: str, file: Path) -> type[Dispatcher]:
    """The contender of this policy, run by `python -m MODULE FILE run …`: the module writes to `file` what it
    has seen when the process ends."""

    class Process(DispatcherProcess):
        program = (module, str(file))

        def close(self) -> None:
            self.stop()  # one that is killed writes nothing
            super().close()

    return type("Observed", (POLICIES[policy],), {"process_type": Process})
