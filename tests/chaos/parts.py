"""The parts of a run, and what was done to them. All times are CLOCK_MONOTONIC."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import yaml

from tests.chaos.lanes import LaneOnStage
from tests.chaos.proxies import Proxies
from tests.client.tcp_proxy import TcpProxy
from tests.forking import Forked
from tests.service.harness import DispatcherProcess


@dataclass(slots=True, eq=False)
class Process:
    """One process of a consumer or producer, with a proxy of its own before RabbitMQ, or before each node."""

    name: str
    who: str
    lane: LaneOnStage
    kind: str
    proxy: TcpProxy | Proxies
    popen: subprocess.Popen[bytes] | Forked
    killed_at: float | None = None
    left_at: float | None = None
    silent: list[tuple[float, float]] = field(default_factory=list)  # it, or its way to RabbitMQ, stood still
    stuck: bool = False  # it is well, and ends nothing

    @property
    def alive(self) -> bool:
        return self.popen.poll() is None

    def ended_by_itself(self) -> bool:
        """Nobody has killed it or told it to stop, and it is gone."""
        return self.killed_at is None and self.left_at is None and not self.alive

    def was_silent(self, since: float) -> bool:
        """It, or its way to RabbitMQ, stood still at some time since then."""
        return any(until >= since for _, until in self.silent)

    def kill(self) -> None:
        if self.alive:
            self.killed_at = time.monotonic()
            self.popen.kill()
            self.popen.wait()

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.popen.send_signal(number)

    def get_stuck(self) -> None:
        """It ends nothing from now on: one of those that know how."""
        self.stuck = True
        self.signal(signal.SIGUSR1)

    def go_on(self) -> None:
        if self.stuck:
            self.stuck = False
            self.signal(signal.SIGUSR2)


@dataclass(slots=True, eq=False)
class Replica:
    """One dispatcher with its proxies before RabbitMQ and Redis."""

    name: str
    process: DispatcherProcess
    rabbitmq: TcpProxy | Proxies
    redis: TcpProxy
    ended_at: list[float] = field(default_factory=list)  # when it was killed, or told to stop
    slow: list[tuple[float, float]] = field(default_factory=list)  # it, or its way to RabbitMQ, stood still
    redis_slow: list[tuple[float, float]] = field(default_factory=list)  # its way to Redis did

    def start(self, configuration: dict[str, Any]) -> None:
        """With this file, whatever stands there now."""
        self.write(configuration)
        self.process.start()

    def write(self, configuration: dict[str, Any]) -> None:
        """Put another configuration where the process reads it, when it is told to."""
        written = self.process.config.with_suffix(".new")
        written.write_text(yaml.safe_dump(configuration))
        written.replace(self.process.config)

    def kill(self) -> None:
        self.ended_at.append(time.monotonic())
        self.process.kill9()

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, AssertionError):
            os.kill(self.process.pid, number)


class Eviction(NamedTuple):
    """An operator, or a dispatcher, evicted a consumer."""

    since: float
    until: float
    who: str
    incarnation: str | None  # the first of its uuid as records have it; None: nobody answered


@dataclass(slots=True)
class Outage:
    """A server was not there, or Redis lost what was written since `back_to`."""

    since: float
    until: float
    killed: bool = False
    back_to: float | None = None
    promoted: bool = False  # another Redis took its place, which may lack what was written last
    lanes: frozenset[str] | None = None  # of Redis: whose data was there; None: all


class NodeFault(NamedTuple):
    """What was done to one node of a cluster."""

    name: str
    node: int
    since: float
    until: float  # all nodes saw each other again
    lasted_s: float  # without the time that it took to come back
