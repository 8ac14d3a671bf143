"""The settings of one lane, and what its keys say against each other."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field, field_validator

from dispatcher.settings.kinds import Choice, Chosen, Duration, Flag, Integer, OneOf, Size, Switch, Text
from dispatcher.settings.parts import (
    Conflict,
    DedupSettings,
    ExhaustedAct,
    HandOverConsumerSettings,
    HistorySettings,
    Model,
    OverdueAct,
    PlacementName,
    PolicyName,
    QueueKind,
    RebalanceSettings,
    Reload,
    SequenceCheck,
    StartSettings,
)
from dispatcher.settings.work_file import read_known_work
from dispatcher.wire.protocol import HEADER_PREFIX
from dispatcher.wire.shards import SHARDS_MAX, Shard, shard_name, shard_number, whole_name

#: One priority of AMQP each; more inbound queues than that is a mistake in a template.
INBOUND_MAX: Final = 255
#: A weight is a ratio between neighbours; DWRR hands out this many in a row at most.
WEIGHT_MAX: Final = 1_000
#: AMQP's prefetch is 16 bits wide, and some of it is needed for messages that are not held originals.
LOOK_AHEAD_MAX: Final = 60_000
#: A year; for longer times `null` serves.
_IDLE_TIMEOUT_MS_MAX: Final = 365 * 24 * 3_600_000
#: As many groups as the core is measured with.
GROUPS_MAX: Final = 1_000_000
SHORT_STRING_BYTES_MAX: Final = 255
#: More calls with one message than that keep a group waiting for hours.
ATTEMPTS_MAX: Final = 1_000
#: Each of their queues is looked at every `liveness_interval`.
HAND_OVER_CONSUMERS_MAX: Final = 256
#: Message properties that are text, and so can name a group; `group_id` is one of AMQP 1.0.
GROUP_PROPERTIES: Final = (
    "app_id", "content_encoding", "content_type", "correlation_id",
    "group_id", "message_id", "reply_to", "type", "user_id",
)  # fmt: skip


def short_string(text: str) -> str:
    """Text that fits in a short string of AMQP. Raises ValueError."""
    if not text or len(text.encode()) > SHORT_STRING_BYTES_MAX:
        raise ValueError(f"must be text of 1 to {SHORT_STRING_BYTES_MAX} bytes")
    return text


def _group_source(text: str) -> str:
    kind, colon, name = text.partition(":")
    if colon and kind == "property" and name not in GROUP_PROPERTIES:
        raise ValueError(f"property: must be followed by one of {', '.join(GROUP_PROPERTIES)}")
    return short_string(text)


def _sequence_source(text: str) -> str:
    if text.startswith("property:") and text != "property:group_sequence":
        raise ValueError("property: must be followed by group_sequence")
    return short_string(text)


def _own_header(text: str) -> str:
    if text.startswith(HEADER_PREFIX):
        raise ValueError(f"must not begin with {HEADER_PREFIX}, which is the dispatcher's own")
    return short_string(text)


def _added_header(text: str) -> str:
    if text in ("CC", "BCC"):
        raise ValueError("must not be CC or BCC: RabbitMQ takes them for routing keys and refuses the copies")
    return _own_header(text)


def _ungrouped(text: str) -> str:
    kind, _, name = text.partition(":")
    if text in ("balance", "reject") or (kind == "group" and name):
        return short_string(text)
    if kind == "group":
        raise ValueError("group: needs a name, for example group:default")
    raise ValueError("must be balance, reject or group:<name>")


_GROUP_MAP: Final = OneOf(
    ("exact", "none"), (("lru", "N", Integer(1, GROUPS_MAX)), ("buckets", "N", Integer(1, GROUPS_MAX)))
)


_COST: Final = OneOf(
    (1, "bytes", "measured"),
    (("header", "NAME", Text(_own_header)), ("measured", "FILE", Text(read_known_work))),
)


class InboundSettings(Model):
    """One queue that producers publish to."""

    queue: Annotated[str, Text(short_string)] = Field(description="Name of the queue.")
    weight: Annotated[int, Integer(1, WEIGHT_MAX), Reload.AT_ONCE] = Field(
        default=1, description="Share of this queue when several have messages that can go."
    )
    declare: Annotated[bool, Flag(), Reload.AT_ONCE] = Field(
        default=False,
        description="Declare it (durable, classic) when it is missing; otherwise that is an error.",
    )


class RetrySettings(Model):
    """What becomes of a message that its consumers can't process."""

    attempts: Annotated[int, Integer(1, ATTEMPTS_MAX)] = Field(
        default=3, description="Calls of the handler in one hand-over, and deaths that make poison."
    )
    backoff_ms: Annotated[int, Duration(0, 60_000)] = Field(
        default=1_000,
        alias="backoff",
        description="Pause before the second call; it doubles, up to a minute.",
    )
    on_exhausted: Annotated[ExhaustedAct, Choice(ExhaustedAct, formerly=(("park", "stop"),))] = Field(
        default=ExhaustedAct.SKIP,
        description="Then: skip it (to the dead queue; the next ones go on), or stop its group.",
    )


class GroupWindowSettings(Model):
    """How many messages of a group may be out at once."""

    initial: Annotated[int, Integer(1, LOOK_AHEAD_MAX)] = Field(
        default=2, description="What a group begins with."
    )
    max: Annotated[int, Integer(1, LOOK_AHEAD_MAX)] | None = Field(
        default=None, description="As far as it grows; null: to the prefetch of its consumer."
    )


class LaneDefaults(Model):
    """Everything of a lane that `defaults` and `match` may set too."""

    policy: Annotated[PolicyName, Choice(PolicyName)] = Field(
        default=PolicyName.EXCLUSIVE, description="How a group may be spread over consumers."
    )
    group_header: tuple[Annotated[str, Text(_group_source)], ...] = Field(
        default=("x-group-id",), min_length=1,
        description="Where the group is: headers, property:<name> or routing_key; the first present wins.",
    )  # fmt: skip
    sequence_header: Annotated[str, Text(_sequence_source)] | None = Field(
        default="x-group-seq", description="Header whose negative value closes the group; null: none."
    )
    first_header: Annotated[str, Text(_added_header)] | None = Field(
        default=None, description="Header that marks the first message of a group for a consumer; null: none."
    )
    ungrouped: Annotated[str, Text(_ungrouped)] = Field(
        default="balance", description="Messages without a group: balance, reject or group:<name>."
    )
    placement: Annotated[PlacementName, Choice(PlacementName)] = Field(
        default=PlacementName.FEWEST,
        description="New groups go to the consumer that owns the fewest, or has the least measured work.",
    )
    cost: Annotated[Chosen, _COST] = Field(
        default=Chosen("1"),
        description="What a message takes of its queue's share: 1, bytes, {header: NAME}, measured (FILE).",
    )
    start: StartSettings = Field(
        default=StartSettings(), description="What to wait for before anything is handed out."
    )
    rebalance: RebalanceSettings = Field(
        default=RebalanceSettings(),
        description="When groups move to other consumers, and which messages wait.",
    )
    group_map: Annotated[Chosen, _GROUP_MAP] = Field(
        default=Chosen("exact"),
        description="Which groups are remembered: exact, {lru: N}, {buckets: N} or none (no grouping).",
    )
    group_idle_timeout_ms: Annotated[int, Duration(100, _IDLE_TIMEOUT_MS_MAX)] | None = Field(
        default=None, alias="group_idle_timeout",
        description="exclusive: after this time without messages a group loses its owner; null: never.",
    )  # fmt: skip
    top_up: Annotated[bool, Flag()] = Field(
        default=False, description="sequenced: the present owner keeps receiving while it holds something."
    )
    strict_identity: Annotated[bool, Flag()] = Field(
        default=False, description="Words of a consumer count only from the user of its join (user_id)."
    )
    retry: RetrySettings = Field(
        default=RetrySettings(), description="How often a message is tried, and what happens then."
    )
    ack_timeout_ms: Annotated[int, Duration(1_000, _IDLE_TIMEOUT_MS_MAX)] | None = Field(
        default=None, alias="ack_timeout",
        description="A message that is not settled within this time is overdue; null: never.",
    )  # fmt: skip
    on_ack_timeout: Annotated[OverdueAct, Choice(OverdueAct)] = Field(
        default=OverdueAct.REPORT, description="What becomes of a consumer that has something overdue."
    )
    reconnect_grace_ms: Annotated[int, Duration(0, 3_600_000), Reload.AT_ONCE] = Field(
        default=0, alias="reconnect_grace",
        description="How long a consumer whose connection was lost keeps its groups; 0: not at all.",
    )  # fmt: skip
    liveness_interval_ms: Annotated[int, Duration(10, 60_000), Reload.AT_ONCE] = Field(
        default=500, alias="liveness_interval", description="How often a silent consumer's queue is probed."
    )
    # Consumers hear of it only when they join: they would seem frozen.
    heartbeat_ms: Annotated[int, Duration(100, 600_000), Reload.RESTART] = Field(
        default=5_000, alias="heartbeat", description="How often consumers report; 3 missing: no new groups."
    )
    group_window: GroupWindowSettings = Field(
        default=GroupWindowSettings(), description="How many messages of a group may be out, as it settles."
    )
    max_in_flight_per_group: Annotated[int, Integer(1, LOOK_AHEAD_MAX)] | None = Field(
        default=None,
        description="The most messages of a group in flight at a time; null: group_window decides.",
    )
    steal_after_ms: Annotated[int, Duration(100, 3_600_000)] | None = Field(
        default=1_000, alias="steal_after",
        description="How long a group waits for room at its owner until it moves to another; null: never.",
    )  # fmt: skip
    look_ahead: Annotated[int, Integer(1, LOOK_AHEAD_MAX)] = Field(
        default=10_000, description="Originals held per inbound queue."
    )
    look_ahead_bytes: Annotated[int, Size(1, 1 << 40)] = Field(
        default=256 << 20, description="Memory for originals held by the lane (five eighths), and under way."
    )
    park_after_ms: Annotated[int, Duration(100, 86_400_000)] = Field(
        default=600_000,
        alias="park_after",
        description="A message that waits here this long moves to a parking queue.",
    )
    queue_type: Annotated[QueueKind, Choice(QueueKind)] = Field(
        default=QueueKind.AUTO,
        description="Kind of the lane's own queues; auto: quorum if all inbound queues are quorum queues.",
    )
    dedup: DedupSettings | None = Field(
        default=None, description="Drop messages whose message_id came before, within a window; null: none."
    )
    sequence_check: Annotated[SequenceCheck, Switch(SequenceCheck)] = Field(
        default=SequenceCheck.OFF,
        description="Numbers of sequence_header that repeat or leave gaps in their group: hold, report, off.",
    )
    sequence_timeout_ms: Annotated[int, Duration(100, 86_400_000)] = Field(
        default=10_000,
        alias="sequence_timeout",
        description="With sequence_check: hold, how long later messages wait for a missing number.",
    )
    shards: Annotated[int, Integer(1, SHARDS_MAX), Reload.RESTART] = Field(
        default=1, description="How many leaders share the lane, each with the groups of its own queues."
    )
    history: HistorySettings | None = Field(
        default=None, description="Keep everything that comes in, in a stream, for `replay`; null: nothing."
    )

    handover: Annotated[bool, Flag()] = Field(
        default=False, description="Its consumers only read queues and ack: see docs/semantics.md, X-1."
    )
    consumers: tuple[HandOverConsumerSettings, ...] = Field(
        default=(), max_length=HAND_OVER_CONSUMERS_MAX, description="Those consumers; only with handover."
    )

    @field_validator("group_header")
    @classmethod
    def _distinct(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) != len(value):
            raise ValueError("names the same header twice")
        return value

    def conflicts(self) -> list[Conflict]:
        """What its keys say against each other."""
        return lane_conflicts(self)


class LaneSettings(LaneDefaults):
    """One lane: inbound queues, a policy, and how its consumers are treated."""

    name: str
    inbound: tuple[InboundSettings, ...] = Field(
        min_length=1, max_length=INBOUND_MAX, description="The queues that it consumes, one per priority."
    )

    @property
    def shard(self) -> Shard | None:
        """Which shard of a lane it is; None: it is a whole lane."""
        number = shard_number(self.name)
        return None if number is None else Shard(whole_name(self.name), number, self.shards)

    def split(self) -> tuple[LaneSettings, ...]:
        """The lanes that are led: its shards, or itself if it has one."""
        if self.shards == 1:
            return (self,)
        return tuple(self._split(number) for number in range(1, self.shards + 1))

    def _split(self, number: int) -> LaneSettings:
        inbound = tuple(
            each.model_copy(update={"queue": shard_name(each.queue, number)}) for each in self.inbound
        )
        return self.model_copy(update={"name": shard_name(self.name, number), "inbound": inbound})


def lane_conflicts(lane: LaneDefaults) -> list[Conflict]:
    """What the keys of a lane say against each other."""
    found = _of_group_map(lane)
    if lane.top_up and lane.policy is not PolicyName.SEQUENCED:
        found.append(Conflict(("top_up", "policy"), "only works with policy: sequenced"))
    if lane.rebalance.on_join and lane.policy is not PolicyName.EXCLUSIVE:
        found.append(Conflict(("rebalance", "policy"), "on_join only works with policy: exclusive"))
    if lane.group_idle_timeout_ms is not None and lane.policy is not PolicyName.EXCLUSIVE:
        found.append(Conflict(("group_idle_timeout", "policy"), "only works with policy: exclusive"))
    if _steals(lane):
        found += _of_stealing(lane)
    if lane.on_ack_timeout is OverdueAct.EVICT and lane.ack_timeout_ms is None:
        found.append(Conflict(("on_ack_timeout", "ack_timeout"), "evict needs an ack_timeout"))
    found += _of_concurrent(lane)
    found += _of_group_window(lane)
    found += _of_handover(lane)
    found += _of_shards(lane)
    if lane.sequence_check is not SequenceCheck.OFF and lane.sequence_header is None:
        found.append(Conflict(("sequence_check", "sequence_header"), "needs a sequence_header"))
    if lane.sequence_check is SequenceCheck.HOLD and lane.policy is PolicyName.CONCURRENT:
        found.append(Conflict(("sequence_check", "policy"), "hold needs a policy that has groups"))
    if lane.sequence_header is not None and lane.sequence_header in lane.group_header:
        found.append(Conflict(("sequence_header", "group_header"), "is a group header too"))
    if lane.first_header is not None and lane.first_header in (*lane.group_header, lane.sequence_header):
        keys = ("first_header", "group_header", "sequence_header")
        found.append(Conflict(keys, "is read as group or sequence header too"))
    return found


def _of_shards(lane: LaneDefaults) -> list[Conflict]:
    if lane.shards == 1:
        return []
    found = []
    if lane.handover:
        found.append(Conflict(("shards", "handover"), "with handover each consumer has one queue"))
    if lane.policy is PolicyName.CONCURRENT:
        found.append(Conflict(("shards", "policy"), "policy concurrent has no groups to spread"))
    if lane.group_map.name == "none":
        found.append(Conflict(("shards", "group_map"), "group_map none has no groups to spread"))
    source, *more = lane.group_header
    if more or source == "routing_key" or source.startswith("property:"):
        text = "RabbitMQ spreads groups by one header: group_header must be the name of one"
        found.append(Conflict(("shards", "group_header"), text))
    if lane.ungrouped.startswith("group:"):
        text = "messages without a group are in another shard than the group that ungrouped names"
        found.append(Conflict(("shards", "ungrouped"), text))
    return found


def _of_concurrent(lane: LaneDefaults) -> list[Conflict]:
    found: list[Conflict] = []
    if lane.policy is not PolicyName.CONCURRENT:
        return found
    if lane.first_header is not None:
        found.append(
            Conflict(("first_header", "policy"), "policy concurrent has no groups, so nothing is first")
        )
    if lane.ungrouped != "balance":
        found.append(
            Conflict(("ungrouped", "policy"), "policy concurrent treats all messages alike: balance")
        )
    if lane.retry.on_exhausted is ExhaustedAct.STOP:
        found.append(Conflict(("retry", "policy"), "on_exhausted: stop needs a policy that has groups"))
    return found


def _of_group_window(lane: LaneDefaults) -> list[Conflict]:
    found: list[Conflict] = []
    window = lane.group_window
    if "initial" in window.model_fields_set and window.max is not None and window.max < window.initial:
        found.append(Conflict(("group_window",), "max is below initial"))
    if "group_window" in lane.model_fields_set:
        if lane.max_in_flight_per_group is not None:
            text = "does not go with max_in_flight_per_group, which is a window that never changes"
            found.append(Conflict(("group_window", "max_in_flight_per_group"), text))
        if lane.group_map.name == "none":
            found.append(Conflict(("group_window", "group_map"), "group_map none has no groups"))
        if lane.policy is PolicyName.CONCURRENT:
            text = "policy concurrent has no groups; max_in_flight_per_group works"
            found.append(Conflict(("group_window", "policy"), text))
    is_stopped = lane.retry.on_exhausted is ExhaustedAct.STOP
    for key in ("group_window", "max_in_flight_per_group"):
        is_set = key in lane.model_fields_set and getattr(lane, key) is not None
        if is_set and is_stopped and lane.policy is not PolicyName.CONCURRENT:
            text = "on_exhausted: stop has one message of a group out at a time"
            found.append(Conflict((key, "retry"), text))
    return found


def _steals(lane: LaneDefaults) -> bool:
    """Whether the file asks for it: the default goes with everything."""
    return "steal_after_ms" in lane.model_fields_set and lane.steal_after_ms is not None


def _of_stealing(lane: LaneDefaults) -> list[Conflict]:
    found = []
    if lane.policy is not PolicyName.EXCLUSIVE:
        found.append(Conflict(("steal_after", "policy"), "only works with policy: exclusive"))
    if lane.group_map.name == "none":
        found.append(Conflict(("steal_after", "group_map"), "group_map none has no groups to move"))
    return found


def _of_group_map(lane: LaneDefaults) -> list[Conflict]:
    kind = lane.group_map.name
    found = []
    if kind == "lru" and lane.policy is not PolicyName.EXCLUSIVE:
        text = "lru only works with policy: exclusive; the others forget empty groups anyway"
        found.append(Conflict(("group_map", "policy"), text))
    if kind == "buckets" and lane.policy is PolicyName.CONCURRENT:
        found.append(Conflict(("group_map", "policy"), "policy concurrent has no groups to put in buckets"))
    if kind == "none":
        if lane.retry.on_exhausted is ExhaustedAct.STOP:
            found.append(Conflict(("retry", "group_map"), "group_map none has no groups to stop"))
        if lane.sequence_check is SequenceCheck.HOLD:
            text = "group_map none has no groups to hold; report works"
            found.append(Conflict(("sequence_check", "group_map"), text))
        if lane.rebalance.on_join:
            found.append(Conflict(("rebalance", "group_map"), "group_map none has no groups to move"))
        for key in ("first_header", "group_idle_timeout_ms", "max_in_flight_per_group"):
            if getattr(lane, key) is not None:
                name = key.removesuffix("_ms")
                found.append(Conflict((name, "group_map"), "group_map none has no groups"))
        if lane.ungrouped != "balance":
            text = "group_map none treats all messages alike: balance"
            found.append(Conflict(("ungrouped", "group_map"), text))
    return found


def _of_handover(lane: LaneDefaults) -> list[Conflict]:
    """The dispatcher hears nothing of what these consumers do: whatever needs to know it can't work."""
    if not lane.handover:
        return [Conflict(("consumers", "handover"), "needs handover: true")] if lane.consumers else []
    found = []
    if lane.policy is PolicyName.SEQUENCED:
        text = (
            "sequenced needs to know when a batch is settled, and with handover the dispatcher "
            "does not learn that"
        )
        found.append(Conflict(("policy", "handover"), text))
    if not lane.consumers:
        found.append(Conflict(("handover", "consumers"), "needs consumers: the readers, by id and prefetch"))
    ids = [consumer.id for consumer in lane.consumers]
    if repeated := sorted({name for name in ids if ids.count(name) > 1}):
        found.append(Conflict(("consumers", "handover"), f"names {', '.join(repeated)} twice"))
    if lane.queue_type is QueueKind.QUORUM:
        found.append(Conflict(("queue_type", "handover"), "the queues of its consumers are classic queues"))
    found += [Conflict((key, "handover"), text) for key, text in _unknowable(lane)]
    return found


def _unknowable(lane: LaneDefaults) -> list[tuple[str, str]]:
    """Keys that ask for what a lane with handover can't know or do, and why."""
    stays = "with handover a group moves only when its consumer is gone"
    unheard = "with handover the dispatcher does not learn when a message is settled"
    checks = (
        ("rebalance", lane.rebalance.on_join, f"on_join: {stays}"),
        ("group_idle_timeout", lane.group_idle_timeout_ms is not None, stays),
        ("steal_after", _steals(lane), stays),
        ("group_map", lane.group_map.name in ("lru", "buckets"), f"{lane.group_map.name}: {stays}"),
        ("ack_timeout", lane.ack_timeout_ms is not None, unheard),
        ("max_in_flight_per_group", lane.max_in_flight_per_group is not None, unheard),
        ("group_window", "group_window" in lane.model_fields_set, unheard),
        ("placement", lane.placement is PlacementName.MEASURED, f"measured: {unheard}"),
        ("cost", lane.cost.name == "measured", f"measured: {unheard}"),
        ("retry", "retry" in lane.model_fields_set, "with handover a rejected message is not tried again"),
        ("strict_identity", lane.strict_identity, "with handover no consumer says anything"),
        ("heartbeat", "heartbeat_ms" in lane.model_fields_set, "with handover no consumer sends heartbeats"),
    )
    return [(key, text) for key, is_asked, text in checks if is_asked]
