"""What only RabbitMQ's management API knows: kinds of queues, policies, alarms."""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import quote

from dispatcher.cli.check_findings import Findings
from dispatcher.errors import BrokerUnavailable
from dispatcher.nodes.management import Management
from dispatcher.service.topology import HAS_PRIORITIES, IS_A_STREAM
from dispatcher.settings import Settings
from dispatcher.settings.units import format_duration
from dispatcher.wire.protocol import LaneNames

#: A queue with one of these drops messages, settles and commands among them.
_HARMFUL_POLICY_KEYS: Final = ("max-length", "max-length-bytes", "message-ttl", "expires")
_COLUMNS: Final = "name,type,arguments,effective_policy_definition"
_POLICY_TARGETS: Final = ("queues", "classic_queues", "all")
_ALARMS: Final = {"mem_alarm": "memory", "disk_free_alarm": "disk"}
#: From this version on RabbitMQ obeys a consumer timeout of a queue or policy, not only its own.
_OWN_TIMEOUTS_SINCE: Final = (3, 12)
#: From this version on a quorum queue drops a message that came back this often, unless it has its own limit.
_DEFAULT_LIMIT_SINCE: Final = 4
_DEFAULT_LIMIT: Final = 20


def check_management(settings: Settings, url: str, cluster: str | None, findings: Findings) -> None:
    """Ask the management API about the lanes' queues; a note if it can't be asked, or is that of another
    RabbitMQ than `cluster` (None: not known)."""
    management = Management(url)
    try:
        overview = management.request("overview")
        version, others = str(overview.get("rabbitmq_version", "")), overview.get("cluster_name")
        if cluster is not None and others not in (cluster, None):
            findings.note(
                f"rabbitmq: the management API that was asked is that of another RabbitMQ ({others!r}, not "
                f"{cluster!r}); policies and kinds of queues were not looked at: say where it is "
                "(--management URL)"
            )
            return
        vhost = quote(settings.rabbitmq.address.vhost, safe="")
        policies = management.request(f"policies/{vhost}")
        queues = {queue["name"]: queue for queue in management.request(f"queues/{vhost}?columns={_COLUMNS}")}
    except BrokerUnavailable as error:
        findings.note(
            f"rabbitmq: the management API can't be asked ({error}); policies and kinds of queues were not "
            "looked at: enable the plugin rabbitmq_management, or say where it is (--management URL)"
        )
        return
    _check_alarms(management, findings)
    for name, lane in settings.lanes.items():
        for index, inbound in enumerate(lane.inbound):
            if (queue := queues.get(inbound.queue)) is not None:
                _check_inbound(f"lanes.{name}.inbound[{index}].queue", queue, version, findings)
        _check_policies(LaneNames(name, settings.prefix), policies, findings)


def _check_alarms(management: Management, findings: Findings) -> None:
    try:
        nodes = management.request(f"nodes?columns={','.join(('name', *_ALARMS))}")
    except BrokerUnavailable:
        return  # a user without the tag "monitoring" may not see the nodes
    for node in nodes:
        for field, resource in _ALARMS.items():
            if node.get(field):
                findings.problem(
                    f"rabbitmq: node {node['name']!r} is short of {resource} and blocks publishers: "
                    "nothing is dispatched until it has more"
                )


def _check_inbound(path: str, queue: dict[str, Any], version: str, findings: Findings) -> None:
    arguments = queue.get("arguments") or {}
    policy = queue.get("effective_policy_definition") or {}
    kind = queue.get("type", "classic")
    if kind == "stream":
        findings.problem(f"{path}: {queue['name']!r} {IS_A_STREAM}")
    if "x-max-priority" in arguments:
        findings.problem(f"{path}: {queue['name']!r} {HAS_PRIORITIES}")
    _check_timeout(path, queue["name"], arguments, policy, version, findings)
    if kind == "quorum":
        limits = [arguments.get("x-delivery-limit"), policy.get("delivery-limit")]
        limit = min((int(value) for value in limits if isinstance(value, int)), default=None)
        major = int(version.split(".")[0]) if version[:1].isdigit() else 0
        if limit is None and major >= _DEFAULT_LIMIT_SINCE:
            limit = _DEFAULT_LIMIT
        if limit is not None and limit >= 0:
            findings.warning(
                f"{path}: quorum queue {queue['name']!r} drops a message that came back more than {limit} "
                "times, and every lost connection of the dispatcher counts; raise its delivery limit"
            )


def _check_timeout(
    path: str, queue: str, arguments: dict[str, Any], policy: dict[str, Any], version: str,
    findings: Findings,
) -> None:  # fmt: skip
    """The broker's own consumer_timeout can't be read from outside, a queue's can."""
    given = [arguments.get("x-consumer-timeout"), policy.get("consumer-timeout")]
    timeout_ms = min((int(value) for value in given if isinstance(value, int)), default=None)
    if timeout_ms is None:
        return
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < _OWN_TIMEOUTS_SINCE:
        findings.note(f"{path}: RabbitMQ {version} ignores the consumer timeout of {queue!r}")
    else:
        findings.warning(
            f"{path}: {queue!r} has a consumer timeout of {format_duration(timeout_ms)}: an original that "
            "waits or is processed for longer makes RabbitMQ close the lane's channel, which then recovers"
        )


def _check_policies(names: LaneNames, policies: list[dict[str, Any]], findings: Findings) -> None:
    ours = [names.control, names.command, names.lock, names.witness, names.dead, "amq.gen-consumer"]
    for policy in policies:
        keys = [key for key in _HARMFUL_POLICY_KEYS if key in policy.get("definition", {})]
        if not keys or policy.get("apply-to", "all") not in _POLICY_TARGETS:
            continue
        try:
            hit = next((name for name in ours if re.search(policy["pattern"], name)), None)
        except re.error:
            continue  # RabbitMQ's expressions can say what Python's can't
        if hit is not None:
            which = "consumer queues" if hit.startswith("amq.gen-") else hit
            findings.warning(
                f"lanes.{names.lane}: policy {policy['name']!r} sets {', '.join(keys)} on {which}, "
                "which makes RabbitMQ drop messages of the dispatcher; narrow its pattern"
            )
