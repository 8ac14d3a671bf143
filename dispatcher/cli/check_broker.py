"""Is RabbitMQ ready for the lanes: connection, rights, inbound queues."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import ChannelClosedByBroker

from dispatcher.cli.check_findings import Findings
from dispatcher.cli.check_rights import RightsCheck
from dispatcher.cli.output import counted
from dispatcher.cli.rabbitmq import connected, look_at_queue, refusal, user_text
from dispatcher.core.parking.queue import PARKING_QUEUES_MAX
from dispatcher.errors import PRECONDITION_FAILED, BrokerUnavailable, ConfigurationError
from dispatcher.service.queue_kinds import (
    CLASSIC,
    DIFFERENCES_MAX,
    IMPOSSIBLE_CONSUME,
    QUORUM,
    ArgumentProbe,
    KindProbe,
    is_cut,
    kind_named,
    unusable,
)
from dispatcher.service.shards import PLUGIN_IS_MISSING, RING_TYPE, UNKNOWN_RING
from dispatcher.service.topology import (
    Kinds,
    kinds_of,
    one_place_problem,
    own_exchanges,
    own_queues,
    parking_queues,
)
from dispatcher.settings import InboundSettings, LaneSettings, Settings
from dispatcher.wire.protocol import LaneNames
from dispatcher.wire.shards import ShardNames


class FoundBroker(NamedTuple):
    """What is there, as far as it was found out."""

    cluster: str | None  # its name; None: it can't be reached, or doesn't say
    kinds: dict[str, Kinds]  # by lane


def check_broker(settings: Settings, findings: Findings) -> FoundBroker:
    """Everything that stands in the lanes' way on RabbitMQ. Changes nothing there."""
    address, nodes, cluster = settings.rabbitmq.address, settings.rabbitmq.nodes(), None
    kinds: dict[str, Kinds] = {}
    where = f"{address.host}:{address.port}" if len(nodes) == 1 else f"one of {len(nodes)} nodes"
    try:
        with connected(settings.rabbitmq, "check") as connection:
            version, cluster = connection.broker
            findings.ok(f"rabbitmq: connected to {where}, vhost {address.vhost!r}, RabbitMQ {version}")
            rights = RightsCheck(connection, user_text(settings.rabbitmq), findings)
            for name, lane in settings.lanes.items():
                names = LaneNames(name, settings.prefix)
                rights.check(names, lane)
                kinds[name] = _wanted_kinds(connection, lane)
                _check_own_names(connection, names, lane, kinds[name], findings)
                _check_inbound_queues(connection, names, lane, findings)
        _check_plugin(settings, findings)
    except ConfigurationError as error:
        for problem in error.problems:
            findings.problem(problem)
    except BrokerUnavailable as error:
        findings.problem(f"{settings.rabbitmq.url_key}: {error}")
    findings.note("rabbitmq: keep consumer_timeout (default 30m) above the longest work")
    return FoundBroker(cluster, kinds)


def _check_plugin(settings: Settings, findings: Findings) -> None:
    """Ask for an exchange that can't be. RabbitMQ says so if it does not know the type."""
    lanes = dict.fromkeys(lane.shard.lane for lane in settings.lanes.values() if lane.shard is not None)
    impossible = {"hash-header": "one", "hash-property": "message_id"}
    try:
        for lane in lanes:
            exchange = ShardNames(lane, settings.prefix).ring(1, "check")
            with connected(settings.rabbitmq, "check") as connection:
                connection.channel().exchange_declare(exchange, RING_TYPE, arguments=impossible)
    except BrokerUnavailable as closed:
        if UNKNOWN_RING not in str(closed):
            return  # it knows the type, and the exchange is impossible
        for lane in lanes:
            findings.problem(f"lanes.{lane}.shards: {PLUGIN_IS_MISSING}")


def _check_own_names(
    connection: BlockingConnection, names: LaneNames, lane: LaneSettings, kinds: Kinds, findings: Findings
) -> None:
    """Queues and exchanges with our names must be as we would declare them, or as a lane with the other kind
    of queues would. Declaring existing ones changes nothing."""

    def declare(queue: str, arguments: dict[str, Any]) -> ChannelClosedByBroker | None:
        return refusal(
            connection,
            partial(BlockingChannel.queue_declare, queue=queue, durable=True, arguments=arguments),
        )

    errors = []
    others = own_queues(names, lane, Kinds(not kinds.own, not kinds.messages))
    for queue, arguments in own_queues(names, lane, kinds).items():
        if (
            look_at_queue(connection, queue).refused is not None
            or (error := declare(queue, arguments)) is None
        ):
            continue
        other = others.get(queue)
        if other is None or other == arguments or declare(queue, other) is not None:
            errors.append(error)
        elif arguments["x-queue-type"] == "quorum":
            findings.warning(
                f"lanes.{lane.name}: {queue!r} is a classic queue: the lane stands still while its node is "
                "away. A start of the dispatcher replaces it, if it is empty and nobody reads it"
            )
        else:
            findings.note(f"lanes.{lane.name}: {queue!r} is a quorum queue, which the lane uses as it is")
    if kinds.messages:
        _warn_of_one_place(connection, names, lane, findings)
    errors += _exchange_errors(connection, names)
    for error in errors:
        if error.reply_code == PRECONDITION_FAILED:
            findings.problem(f"lanes.{lane.name}: {error.reply_text}; delete it, or choose another prefix")


def _exchange_errors(connection: BlockingConnection, names: LaneNames) -> list[ChannelClosedByBroker]:
    """Why those with our names that exist can't be ours."""
    errors = []
    look = partial(BlockingChannel.exchange_declare, passive=True)
    for exchange in own_exchanges(names):
        if refusal(connection, partial(look, exchange=exchange)) is None:
            error = refusal(
                connection,
                partial(
                    BlockingChannel.exchange_declare, exchange=exchange, exchange_type="direct", durable=True
                ),
            )
            errors += [error] if error is not None else []
    return errors


def _kind(connection: BlockingConnection, queue: str) -> str | None:
    """As dispatcher.service.queue_kinds.kind_of_queue. None: it is not there, or that isn't said."""
    error = refusal(connection, partial(_consume_impossibly, queue=queue))
    if error is None:
        return None
    if (kind := kind_named(error.reply_text)) is not None or not is_cut(error.reply_text):
        return kind
    probe = KindProbe(queue)
    _find_out(connection, probe)
    return probe.kind


def _consume_impossibly(channel: BlockingChannel, queue: str) -> None:
    channel.basic_consume(queue, lambda *_: None, arguments=IMPOSSIBLE_CONSUME)


def _wanted_kinds(connection: BlockingConnection, lane: LaneSettings) -> Kinds:
    """As dispatcher.service.topology.quorum_inbound. A queue that is not there yet will be a classic one."""
    return kinds_of(lane, [_kind(connection, inbound.queue) == QUORUM for inbound in lane.inbound])


def _warn_of_one_place(
    connection: BlockingConnection, names: LaneNames, lane: LaneSettings, findings: Findings
) -> None:
    """What came in replicated and is kept on one node."""
    for queue in parking_queues(names, PARKING_QUEUES_MAX):
        if _kind(connection, queue) == CLASSIC:
            findings.warning(
                f"lanes.{lane.name}: {queue!r} is a classic queue: its messages are lost with its node. The "
                "dispatcher deletes it when all of them are settled, and makes a quorum queue next time"
            )
    if (problem := one_place_problem(lane, [True])) is not None:
        findings.problem(problem)
    elif lane.handover:
        findings.warning(
            f"lanes.{lane.name}: with handover the queues of its consumers are classic queues: what is "
            "handed over is lost with their node, although an inbound queue is a quorum queue"
        )


def _check_inbound_queues(
    connection: BlockingConnection, names: LaneNames, lane: LaneSettings, findings: Findings
) -> None:
    leaders = look_at_queue(connection, names.lock).consumers
    if leaders:
        findings.note(f"lanes.{lane.name}: a dispatcher is active")
    for index, inbound in enumerate(lane.inbound):
        path = f"lanes.{lane.name}.inbound[{index}].queue"
        seen = look_at_queue(connection, inbound.queue)
        if seen.missing:
            _report_missing(path, inbound, findings)
        elif seen.refused is not None:
            findings.problem(f"{path}: {seen.refused}")
        else:
            foreign = seen.consumers - leaders
            if foreign > 0:
                findings.problem(
                    f"{path}: {inbound.queue!r} has {counted(foreign, 'consumer')} of another program; "
                    "stop them, or messages of one group go two ways"
                )
            _check_kind(connection, f"{path}: {inbound.queue!r}", inbound.queue, findings)
            findings.ok(f"{path}: {inbound.queue!r} is there, {counted(seen.ready, 'message')} ready")


def _report_missing(path: str, inbound: InboundSettings, findings: Findings) -> None:
    if inbound.declare:
        findings.note(f"{path}: there is no queue {inbound.queue!r} yet; the dispatcher declares it")
    else:
        findings.problem(f"{path}: there is no queue {inbound.queue!r}; declare it, or set `declare: true`")


def _check_kind(connection: BlockingConnection, path: str, queue: str, findings: Findings) -> None:
    """As a lane does before it leads."""
    if (kind := _kind(connection, queue)) is None:
        findings.problem(f"{path}: RabbitMQ doesn't say of what kind it is, which takes the read right")
        return
    has_priorities = _has_priorities(connection, queue) if kind == CLASSIC else False
    if has_priorities is None:
        findings.warning(
            f"{path}: whether it has x-max-priority, which reorders redeliveries, can't be found out without "
            "the configure right on it"
        )
    elif (problem := unusable(kind, has_priorities=has_priorities)) is not None:
        findings.problem(f"{path} {problem}")


def _has_priorities(connection: BlockingConnection, queue: str) -> bool | None:
    """As dispatcher.service.queue_kinds.has_priorities."""
    probe = ArgumentProbe.of_priorities(queue)
    _find_out(connection, probe)
    return probe.found


def _find_out(connection: BlockingConnection, probe: KindProbe | ArgumentProbe) -> None:
    """Declare until the probe has its answer."""
    for _ in range(DIFFERENCES_MAX):
        error = refusal(connection, partial(BlockingChannel.queue_declare, **probe.declare))
        if error is None or not probe.learn(error.reply_code, error.reply_text):
            return
