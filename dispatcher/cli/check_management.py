"""What only RabbitMQ's management API knows: kinds of queues, policies, alarms."""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import quote

from dispatcher.cli.check_broker import FoundBroker
from dispatcher.cli.check_findings import Findings
from dispatcher.cli.management import management_of, where_else
from dispatcher.core.parking.queue import PARKING_QUEUES_MAX
from dispatcher.errors import BrokerUnavailable, ConfigurationError
from dispatcher.nodes.management import Management
from dispatcher.service.queue_kinds import DELIVERY_LIMIT, default_delivery_limit, unusable
from dispatcher.service.topology import (
    Kinds,
    kinds_of,
    own_queues,
    parking_arguments,
    parking_queues,
)
from dispatcher.settings import LaneSettings, Settings
from dispatcher.settings.units import format_duration
from dispatcher.wire.protocol import LaneNames

#: A queue with one of these, as a policy or argument (`x-`), drops messages, settles and commands among them.
_HARMFUL_KEYS: Final = ("max-length", "max-length-bytes", "message-ttl", "expires")
#: One with this drops a message of a quorum queue that came back more often.
_DELIVERY_LIMIT: Final = "delivery-limit"
#: A name as RabbitMQ gives it to a consumer's queue.
_CONSUMER_QUEUE: Final = "amq.gen-consumer"
_COLUMNS: Final = "name,type,arguments,effective_policy_definition"
_ALARMS: Final = {"mem_alarm": "memory", "disk_free_alarm": "disk"}
#: From this version on RabbitMQ obeys a consumer timeout of a queue or policy, not only its own.
_OWN_TIMEOUTS_SINCE: Final = (3, 12)


def check_management(settings: Settings, url: str | None, broker: FoundBroker, findings: Findings) -> None:
    """Ask the management API about the lanes' queues; a note if it can't be asked, or is that of another
    RabbitMQ than `broker`. No URL: the usual one."""
    try:
        management, cluster = management_of(settings.rabbitmq, url), broker.cluster
    except ConfigurationError:
        return  # the connection to the broker has the same certificates, and its check has said so
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
        policies = [{**each, "kind": "policy"} for each in management.request(f"policies/{vhost}")]
        queues = {queue["name"]: queue for queue in management.request(f"queues/{vhost}?columns={_COLUMNS}")}
    except BrokerUnavailable as error:
        findings.note(
            f"rabbitmq: the management API can't be asked ({error}); policies and kinds of queues were not "
            "looked at: enable the plugin rabbitmq_management, or say where it is "
            f"({where_else(settings.rabbitmq, url)})"
        )
        return
    policies += _operators(management, vhost)
    _check_alarms(management, findings)
    for name, lane in settings.lanes.items():
        for index, inbound in enumerate(lane.inbound):
            if (queue := queues.get(inbound.queue)) is not None:
                _check_inbound(f"lanes.{name}.inbound[{index}].queue", queue, version, findings)
        names = LaneNames(name, settings.prefix)
        ours = _own_kinds(names, lane, broker.kinds.get(name, kinds_of(lane, [])), queues)
        _check_policies(names, ours, policies, findings)
        _check_parking(names, queues, version, findings)


def _operators(management: Management, vhost: str) -> list[dict[str, Any]]:
    """The operator policies, if this user may see them: they add to the other ones."""
    try:
        found = management.request(f"operator-policies/{vhost}")
    except BrokerUnavailable:
        return []
    return [{**each, "kind": "operator policy"} for each in found]


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
    if (problem := unusable(kind, has_priorities="x-max-priority" in arguments)) is not None:
        findings.problem(f"{path}: {queue['name']!r} {problem}")
    _check_timeout(path, queue["name"], arguments, policy, version, findings)
    if kind == "quorum":
        limits = [arguments.get(DELIVERY_LIMIT), policy.get(_DELIVERY_LIMIT)]
        limit = min((int(value) for value in limits if isinstance(value, int)), default=None)
        if limit is None:
            limit = default_delivery_limit(version)
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


def _check_policies(
    names: LaneNames, ours: dict[str, str], policies: list[dict[str, Any]], findings: Findings
) -> None:
    """Those that fit a queue of the dispatcher, also if RabbitMQ obeys another one of a higher priority."""
    for policy in policies:
        found: dict[str, str] = {}  # by key: the first queue that it harms
        for name, kind in ours.items():
            if policy.get("apply-to", "all") not in ("all", "queues", f"{kind}_queues"):
                continue
            try:
                if re.search(policy["pattern"], name) is None:
                    continue
            except re.error:
                break  # RabbitMQ's expressions can say what Python's can't
            for key in _harmful(policy.get("definition", {}), kind, is_lock=name == names.lock):
                found.setdefault(key, "consumer queues" if name == _CONSUMER_QUEUE else name)
        if found:
            sets = " and ".join(
                f"{', '.join(key for key in found if found[key] == which)} on {which}"
                for which in dict.fromkeys(found.values())
            )
            findings.warning(
                f"lanes.{names.lane}: {policy['kind']} {policy['name']!r} sets {sets}, "
                "which makes RabbitMQ drop messages of the dispatcher; narrow its pattern"
            )


def _harmful(definition: dict[str, Any], kind: str, *, is_lock: bool) -> list[str]:
    """The keys by which messages of such a queue are dropped."""
    keys: list[str] = [key for key in _HARMFUL_KEYS if key in definition]
    limit = definition.get(_DELIVERY_LIMIT)
    # The lock's message is laid down again and again.
    if kind == "quorum" and not is_lock and isinstance(limit, int) and limit >= 0:
        keys.append(_DELIVERY_LIMIT)
    return keys


def _check_parking(names: LaneNames, queues: dict[str, Any], version: str, findings: Findings) -> None:
    """The lane takes parking queues as they are. Every other queue must be as it would declare it."""
    for name in parking_queues(names, PARKING_QUEUES_MAX):
        queue = queues.get(name, {})
        arguments = queue.get("arguments") or {}
        policy = queue.get("effective_policy_definition") or {}
        keys = [f"x-{key}" for key in _HARMFUL_KEYS if f"x-{key}" in arguments]
        if queue.get("type") == "quorum":
            usual = parking_arguments(quorum=True)[DELIVERY_LIMIT]
            limit = arguments.get(DELIVERY_LIMIT)
            if limit is None and _DELIVERY_LIMIT not in policy:
                limit = default_delivery_limit(version)
            if isinstance(limit, int) and 0 <= limit < usual:
                keys.append(f"{DELIVERY_LIMIT} {limit}")
        if keys:
            findings.warning(
                f"lanes.{names.lane}: parking queue {name!r} has {', '.join(keys)}, which makes RabbitMQ "
                "drop messages; the dispatcher deletes it when all of them are settled, and makes one without"
            )


def _own_kinds(names: LaneNames, lane: LaneSettings, kinds: Kinds, queues: dict[str, Any]) -> dict[str, str]:
    """The lane's own queues, and of which kind they are, or will be."""
    own = own_queues(names, lane, kinds)
    # A stream has limits of its own, and a heartbeat may be dropped.
    others = names.history, names.heartbeat
    expected = {name: str(each["x-queue-type"]) for name, each in own.items() if name not in others}
    expected[names.witness] = "classic"
    parked = "quorum" if kinds.messages else "classic"
    expected |= dict.fromkeys(parking_queues(names, PARKING_QUEUES_MAX), parked)
    found = {name: str(queues[name].get("type", kind)) for name, kind in expected.items() if name in queues}
    return {**expected, **found, _CONSUMER_QUEUE: "classic"}
