"""CPU time that other processes have used."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Final

from dispatcher.errors import BrokerUnavailable
from dispatcher.nodes import Management

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
#: The management plugin collects a node's facts every 5 s.
FACTS_TIMEOUT_S: Final = 20.0
POLL_S: Final = 0.1


def used_s(pid: int) -> float:
    """User and system time of a process and all its threads, in seconds (resolution 10 ms)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def node_facts(api: Management) -> dict[str, Any]:
    """What the broker says about its node; one that just started needs seconds for that.

    Raises BrokerUnavailable.
    """
    deadline = time.monotonic() + FACTS_TIMEOUT_S
    while True:
        facts = dict(api.request("nodes")[0])
        if "os_pid" in facts:
            return facts
        if time.monotonic() > deadline:
            raise BrokerUnavailable("the management API says nothing about its node")
        time.sleep(POLL_S)


def broker_pid(facts: dict[str, Any]) -> int | None:
    """The broker's process, None when it runs elsewhere (another machine, a container)."""
    try:
        pid = int(facts["os_pid"])
        is_ours = "rabbit" in Path(f"/proc/{pid}/cmdline").read_text()
    except (OSError, ValueError):
        return None
    return pid if is_ours else None
