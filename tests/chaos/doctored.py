"""A stage on which nothing runs, with records of what never happened: what the verdict must find in them."""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from dispatcher.judge.judge import violations
from dispatcher.judge.record import MessageKey
from tests.chaos.decisions import Decision
from tests.chaos.evidence import NOTHING, Found, gather
from tests.chaos.lanes import LaneOnStage
from tests.chaos.parts import Process, Replica
from tests.chaos.plan import Plan
from tests.chaos.producer import CONFIRMED, SENT
from tests.chaos.stage import Stage
from tests.client.tcp_proxy import Connection, TcpProxy
from tests.service.harness import DispatcherProcess

LANE = LaneOnStage("orders", "exclusive")
QUEUE = "orders.high"


def numbered(number: int, publish: int = 0) -> MessageKey:
    return MessageKey(QUEUE, "g", publish, number, "p0-1")


def handled(
    number: int, at: float, seq: int, *, epoch: int = 1, attempt: int = 1, end: bool = True, publish: int = 0,
    takes_s: float = 0.4,
) -> str:  # fmt: skip
    """The lines of one message: received, begun, ended after `takes_s`, and settled 0.1 s later."""
    numbers = " ".join(map(str, numbered(number, publish)))
    lines = [f"received {at - 0.1} aaaa {seq}", f"started {at} aaaa {seq} {seq} {epoch} {attempt} {numbers}"]
    if end:
        lines += [f"ended {at + takes_s} aaaa {seq}", f"confirmed {at + takes_s + 0.1} aaaa {seq}"]
    return "".join(f"{line}\n" for line in lines)


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()


class Doctored:
    """A stage on which nothing runs, with the records of two processes, `a` and `b`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stage = Stage(folder, Plan(1, 1.0), [LANE], 1.0)
        self.configure()
        self.a, self.b = self._process("a"), self._process("b")
        self.stage.consumers = [self.a, self.b]
        self.stage.producers = [self._process("p0-1")]
        self.published(1, 2, 3)

    def published(self, *numbers: int) -> None:
        lines = [
            f"{kind} 0.1 {' '.join(map(str, numbered(n)))}\n" for kind in (SENT, CONFIRMED) for n in numbers
        ]
        (self.folder / "p0-1.produced").write_text("".join(lines))

    def configure(self, **settings: object) -> None:
        plan = self.stage.plan
        usual = {
            "group_map": "exact",
            "group_idle_timeout": None,
            "on_join": False,
            "stopping": (),
            "keeping": (),
            "dropping": (),
            "checking": (),
            "evicting": (),
        }
        plan.settings = replace(plan.settings, **(usual | settings))  # type: ignore[arg-type]

    def _process(self, name: str) -> Process:
        popen = subprocess.Popen(["true"])
        popen.wait()
        proxy = TcpProxy("amqp://guest:guest@127.0.0.1:1/")
        proxy.connections.append(Connection(0.0))
        return Process(name, name, LANE, "async", proxy, popen)

    def write(self, process: Process, *parts: str) -> None:
        text = "welcomed 0.5 aaaa 1\n" + "".join(parts)
        (self.folder / f"{process.name}.record").write_text(text)

    def led_at(self, at: float, restored_at: float | None = None) -> None:
        """What a dispatcher's log says."""
        log = self.folder / "dispatcher0.log"
        offset = time.time() - time.monotonic()
        events = [("lane_led", at)] + ([("redis_restored", restored_at)] if restored_at is not None else [])
        lines = [
            json.dumps({"event": event, "lane": LANE.name, "timestamp": _iso(when + offset)})
            for event, when in events
        ]
        dispatcher = DispatcherProcess(self.folder, "dispatcher0", {})
        log.write_text("".join(f"{line}\n" for line in lines))
        proxy = TcpProxy("amqp://127.0.0.1:1/")
        self.stage.replicas = [Replica("dispatcher0", dispatcher, proxy, proxy)]

    def logged(self, at: float, event: str, **fields: object) -> None:
        """What the dispatcher of `led_at` says besides."""
        when = _iso(at + time.time() - time.monotonic())
        record = {"event": event, "lane": LANE.name, "timestamp": when, **fields}
        with (self.folder / "dispatcher0.log").open("a") as log:
            log.write(json.dumps(record) + "\n")

    def sent(self, **at: float) -> None:
        """When each message was sent and confirmed: `m1`, `m2` …"""
        lines = [
            f"{kind} {when} {' '.join(map(str, numbered(int(name[1:]))))}\n"
            for name, when in at.items() for kind in (SENT, CONFIRMED)
        ]  # fmt: skip
        (self.folder / "p0-1.produced").write_text("".join(lines))

    def decided(self, command: str, messages: int | None, since: float = 2.0, until: float = 4.0) -> None:
        """What an operator said of the group."""
        self.stage.decisions[LANE.name].append(Decision(command, "g", since, until, messages))

    def found(self, there: Found = NOTHING) -> set[str]:
        """The first words of what is wrong."""
        evidence = gather(self.stage, LANE, there)
        judged = violations(evidence.handlings, evidence.story)
        found = [str(v) for v in judged] + evidence.wrong_ends + evidence.misplaced
        return {line.partition(":")[0] for line in found}


ONE, TWO, THREE = handled(1, 1.0, 1), handled(2, 2.0, 2), handled(3, 3.0, 3)
