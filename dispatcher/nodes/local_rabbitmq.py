"""A private RabbitMQ node: own ports, own port mapper, own cookie, own data."""

from __future__ import annotations

import os
import re
import subprocess
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from dispatcher.errors import DispatcherError
from dispatcher.nodes.installed import erl_call, erlang_programs, rabbitmq_server
from dispatcher.nodes.local import LocalNode
from dispatcher.nodes.ports import LOOPBACK, free_ports
from dispatcher.nodes.process import GuardedProcess
from dispatcher.nodes.readiness import rabbitmq_answers

PLUGINS: Final = (
    "rabbitmq_management",
    "rabbitmq_event_exchange",
    "rabbitmq_shovel",
    "rabbitmq_shovel_management",
    "rabbitmq_consistent_hash_exchange",
)
#: Deprecated from RabbitMQ 4.0 on: a node of ours refuses them, as a later version will. Only
#: management_metrics_collection stays: without it the management API lists no connections.
_DEPRECATED: Final = (
    "amqp_address_v1",
    "classic_queue_mirroring",
    "global_qos",
    "queue_master_locator",
    "ram_node_type",
    "transient_nonexcl_queues",
)
_REFUSES_SINCE: Final = 4
#: What a node says that looks for what is deprecated before it has its tables (RabbitMQ 4.0, when it has run
#: before): it ends, though nothing deprecated is there.
_LOOKED_TOO_SOON: Final = "failed_to_deny_deprecated_features"
#: What a node of a cluster says that waits for tables in vain, now and then after others were restarted as
#: well (3.10).
_WAITS_IN_VAIN: Final = "timeout_waiting_for_tables"
#: Every other one may end so.
_STARTS: Final = 10
#: One of some thousand connects of erl_call fails though the node is well (Erlang/OTP 25).
RECONNECTS: Final = 2


class LocalRabbitMQ(LocalNode):
    """One RabbitMQ node with user guest/guest; `config` are more lines for its rabbitmq.conf, `plugins` more
    plugins of the installed package.

    URLs are valid from the first `start` on. A change of `config` counts at the next `start`.
    """

    name = "rabbitmq"
    # A clean shutdown takes 2 to 8 s.
    stop_timeout_s = 30.0

    def __init__(self, config: Iterable[str] = (), plugins: Iterable[str] = ()) -> None:
        super().__init__()
        self.config = list(config)
        self._plugins = (*PLUGINS, *plugins)
        self._node = f"d{uuid.uuid4().hex[:12]}@localhost"
        self._ports: list[int] = []

    @property
    def amqp_url(self) -> str:
        return f"amqp://guest:guest@{LOOPBACK}:{self._ports[0]}/"

    @property
    def management_url(self) -> str:
        return f"http://guest:guest@{LOOPBACK}:{self._ports[1]}"

    def sync_definitions(self) -> None:
        """Put every queue, exchange and binding declared so far on disk, so that it survives `kill9`.

        RabbitMQ itself does that up to two seconds after its answer: a durable queue that was younger was
        seen to be gone after a kill -9.
        """
        self.evaluate("mnesia:sync_log()")

    def evaluate(self, expression: str) -> str:
        """The value of an Erlang expression on this node, in words. Raises DispatcherError.

        It takes 10 ms; rabbitmqctl would start an Erlang of its own first, two seconds of a processor.
        """
        result = self._call(expression)
        for _ in range(RECONNECTS):
            if "failed to connect" in result.stderr:  # so nothing was evaluated
                result = self._call(expression)
        said = result.stdout.strip()
        if result.returncode != 0 or not said.startswith("{ok, {value, "):
            raise DispatcherError(f"{expression} failed: {said or result.stderr.strip()}")
        return said.removeprefix("{ok, {value, ").removesuffix("}}")

    def _call(self, expression: str) -> subprocess.CompletedProcess[str]:
        if self._process is None:
            raise DispatcherError(f"{self.name} was not started")
        # erl_call does not say why it can't evaluate something.
        told = f"try {expression} of Value -> {{value, Value}} catch Kind:Why -> {{Kind, Why}} end.\n"
        return subprocess.run(
            [str(erl_call()), "-name", self._node, "-e"], env=self._environment(self._process),
            input=told, capture_output=True, text=True, check=False,
        )  # fmt: skip

    def _launch(self, process: GuardedProcess) -> None:
        self._start_at_last(lambda: super(LocalRabbitMQ, self)._launch(process))

    def _start_at_last(self, start: Callable[[], object]) -> None:
        """Start it, again if it has looked too soon, and once if it waits in vain. Raises what `start`
        raises."""
        for attempt in range(_STARTS - 1):
            try:
                start()
            except DispatcherError as problem:
                waits_in_vain = attempt == 0 and _WAITS_IN_VAIN in str(problem)
                if not waits_in_vain and _LOOKED_TOO_SOON not in str(problem):
                    raise
            else:
                return
        start()

    def _lay_out(self, process: GuardedProcess) -> None:
        self._ports = free_ports(4)
        for folder in ("home", "mnesia", "log"):
            (process.directory / folder).mkdir()
        (process.directory / "env.conf").touch()
        (process.directory / "advanced.config").write_text("[].\n")
        (process.directory / "enabled_plugins").write_text(f"[{','.join(self._plugins)}].\n")

    def _command(self, process: GuardedProcess) -> tuple[list[str], dict[str, str]]:
        amqp_port, management_port, _, _ = self._ports
        server = rabbitmq_server()
        lines = [
            f"listeners.tcp.1 = {LOOPBACK}:{amqp_port}",
            f"management.tcp.ip = {LOOPBACK}",
            f"management.tcp.port = {management_port}",
            # A test machine's disk may be fuller than a broker's should be.
            "disk_free_limit.absolute = 50MB",
            *_refusals(server),
            *self.config,
        ]
        (process.directory / "rabbitmq.conf").write_text("\n".join(lines) + "\n")
        return [str(server)], self._environment(process)

    def _environment(self, process: GuardedProcess) -> dict[str, str]:
        base = process.directory
        # What the user has set for a RabbitMQ of his own must not reach this one.
        inherited = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("RABBITMQ_", "ERL_")) and key != "NOTIFY_SOCKET"
        }
        return inherited | {
            "PATH": os.pathsep.join([str(erlang_programs()), os.environ.get("PATH", os.defpath)]),
            "HOME": str(base / "home"),  # the Erlang cookie
            "ERL_CRASH_DUMP": str(base / "erl_crash.dump"),
            "ERL_EPMD_PORT": str(self._ports[2]),
            "ERL_EPMD_ADDRESS": LOOPBACK,
            "RABBITMQ_NODENAME": self._node,
            "RABBITMQ_DIST_PORT": str(self._ports[3]),
            "RABBITMQ_MNESIA_BASE": str(base / "mnesia"),
            "RABBITMQ_LOG_BASE": str(base / "log"),
            "RABBITMQ_PID_FILE": str(base / "server.pid"),
            "RABBITMQ_CONFIG_FILE": str(base / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(base / "advanced.config"),
            "RABBITMQ_CONF_ENV_FILE": str(base / "env.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(base / "enabled_plugins"),
            # The script becomes the server instead of watching over it, so that its pid is the server's.
            "RABBITMQ_ALLOW_INPUT": "1",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-noinput -kernel inet_dist_use_interface {127,0,0,1}",
            # Several nodes share a test machine: bound schedulers would all sit on the same cores.
            "RABBITMQ_SCHEDULER_BIND_TYPE": "u",
        }

    def _answers(self) -> bool:
        return rabbitmq_answers(self.amqp_url, self.management_url)


def _refusals(server: Path) -> list[str]:
    """What makes a node refuse all that is deprecated, where it can; `server` is its script."""
    version = re.search(r"rabbitmq_server-(\d+)", str(server))
    if version is None or int(version[1]) < _REFUSES_SINCE:
        return []
    return [f"deprecated_features.permit.{feature} = false" for feature in _DEPRECATED]
