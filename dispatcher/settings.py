"""The settings as the program uses them: frozen models, made by dispatcher.config from a file.

Attributes carry their unit (`reconnect_grace_ms`); the file's keys don't (`reconnect_grace: 5s`) and are
the fields' aliases. Code that makes settings by hand uses the attribute names and plain numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final

from pydantic import Field, field_validator

from dispatcher.known_work import read_known_work
from dispatcher.protocol import DEFAULT_PREFIX, HEADER_PREFIX, RESERVED_SEGMENTS, dotted_name_problem
from dispatcher.settings_conflicts import Conflict, lane_conflicts
from dispatcher.settings_parts import (
    DedupSettings,
    ExhaustedAct,
    HandOverConsumerSettings,
    HistorySettings,
    LedgerSettings,
    Model,
    OverdueAct,
    PlacementName,
    PolicyName,
    RebalanceSettings,
    SequenceCheck,
    StartSettings,
)
from dispatcher.settings_types import Choice, Chosen, Duration, Flag, Integer, OneOf, Size, Switch, Text
from dispatcher.urls import (
    BrokerAddress,
    StoreAddress,
    parse_broker_url,
    parse_listen,
    parse_store_url,
)

#: One priority of AMQP each; more inbound queues than that is a mistake in a template.
INBOUND_MAX: Final = 255
#: A weight is a ratio between neighbours; DWRR hands out this many in a row at most.
WEIGHT_MAX: Final = 1_000
#: AMQP's prefetch is 16 bits wide, and some of it is needed for what is not a held original.
LOOK_AHEAD_MAX: Final = 60_000
#: A year: whoever wants more wants `null`.
_IDLE_TIMEOUT_MS_MAX: Final = 365 * 24 * 3_600_000
#: As many groups as the core is measured with.
GROUPS_MAX: Final = 1_000_000
SHORT_STRING_BYTES_MAX: Final = 255
#: More attempts at one message than that keep a group waiting for hours.
ATTEMPTS_MAX: Final = 1_000
#: The longest word that the dispatcher puts behind a lane's name, with room for a parking queue's number.
_NAME_TAIL_BYTES: Final = len(".heartbeat")
#: Each of their queues is looked at every `liveness_interval`.
HAND_OVER_CONSUMERS_MAX: Final = 256
#: Message properties that are text, and so can name a group; `group_id` is one of AMQP 1.0.
GROUP_PROPERTIES: Final = (
    "app_id", "content_encoding", "content_type", "correlation_id",
    "group_id", "message_id", "reply_to", "type", "user_id",
)  # fmt: skip


def _short_string(text: str) -> str:
    if not text or len(text.encode()) > SHORT_STRING_BYTES_MAX:
        raise ValueError(f"must be text of 1 to {SHORT_STRING_BYTES_MAX} bytes")
    return text


def _group_source(text: str) -> str:
    kind, colon, name = text.partition(":")
    if colon and kind == "property" and name not in GROUP_PROPERTIES:
        raise ValueError(f"property: must be followed by one of {', '.join(GROUP_PROPERTIES)}")
    return _short_string(text)


def _sequence_source(text: str) -> str:
    if text.startswith("property:") and text != "property:group_sequence":
        raise ValueError("property: must be followed by group_sequence")
    return _short_string(text)


def _own_header(text: str) -> str:
    if text.startswith(HEADER_PREFIX):
        raise ValueError(f"must not begin with {HEADER_PREFIX}, which is the dispatcher's own")
    return _short_string(text)


def _added_header(text: str) -> str:
    if text in ("CC", "BCC"):
        raise ValueError("must not be CC or BCC: RabbitMQ takes them for routing keys and refuses the copies")
    return _own_header(text)


def _ungrouped(text: str) -> str:
    kind, _, name = text.partition(":")
    if text in ("balance", "reject") or (kind == "group" and name):
        return _short_string(text)
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


def _checked(parse: Callable[[str], object]) -> Callable[[str], str]:
    def check(text: str) -> str:
        parse(text)
        return text

    return check


class _Certificates(Model):
    """Files in PEM format; only an amqps:// or rediss:// URL uses them."""

    ca_file: Annotated[str, Text()] | None = Field(
        default=None, description="Trust only certificates signed by these CAs."
    )
    cert_file: Annotated[str, Text()] | None = Field(default=None, description="Client certificate to show.")
    key_file: Annotated[str, Text()] | None = Field(default=None, description="Private key of cert_file.")
    server_name: Annotated[str, Text()] | None = Field(
        default=None, description="Name to expect in the server's certificate, when it is not the URL's host."
    )

    def _tls_conflicts(self, tls: bool) -> list[Conflict]:
        names = ("ca_file", "cert_file", "key_file", "server_name")
        found = [
            Conflict((name, "url"), "needs a URL with TLS (amqps:// or rediss://)")
            for name in names
            if getattr(self, name) is not None and not tls
        ]
        if self.key_file is not None and self.cert_file is None:
            found.append(Conflict(("key_file", "cert_file"), "needs cert_file"))
        return found


class RabbitSettings(_Certificates):
    """Where RabbitMQ is, and how to speak to it."""

    url: Annotated[str, Text(_checked(parse_broker_url))] = Field(
        default="amqp://guest:guest@localhost:5672/", description="amqp[s]://user:password@host:port/vhost"
    )
    heartbeat_ms: Annotated[int, Duration(1_000, 600_000)] = Field(
        default=10_000, alias="heartbeat", description="AMQP heartbeat, in whole seconds."
    )

    @property
    def address(self) -> BrokerAddress:
        return parse_broker_url(self.url)

    @field_validator("heartbeat_ms")
    @classmethod
    def _whole_seconds(cls, value: int) -> int:
        if value % 1_000:
            raise ValueError("must be whole seconds: AMQP can't say less")
        return value

    def conflicts(self) -> list[Conflict]:
        """What its keys say against each other."""
        return self._tls_conflicts(self.address.tls)


class RedisSettings(_Certificates):
    """Where Redis is, and how long to wait for it."""

    url: Annotated[str, Text(_checked(parse_store_url))] = Field(
        default="redis://localhost:6379/0", description="redis[s]://user:password@host:port/database"
    )
    timeout_ms: Annotated[int, Duration(10, 60_000)] = Field(
        default=2_000, alias="timeout", description="After this long a commit's outcome counts as unknown."
    )

    @property
    def address(self) -> StoreAddress:
        return parse_store_url(self.url)

    def conflicts(self) -> list[Conflict]:
        """What its keys say against each other."""
        return self._tls_conflicts(self.address.tls)


class HttpSettings(Model):
    """Where health, metrics and the page for people are served."""

    listen: Annotated[str, Text(_checked(parse_listen))] = Field(
        default="127.0.0.1:8642", description="host:port; port 0 picks a free one and logs it."
    )

    @property
    def host(self) -> str:
        return parse_listen(self.listen)[0]

    @property
    def port(self) -> int:
        return parse_listen(self.listen)[1]


class InboundSettings(Model):
    """One queue that producers publish to."""

    queue: Annotated[str, Text(_short_string)] = Field(description="Name of the queue.")
    weight: Annotated[int, Integer(1, WEIGHT_MAX)] = Field(
        default=1, description="Share of this queue when several have messages that can go."
    )
    declare: Annotated[bool, Flag()] = Field(
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
    on_exhausted: Annotated[ExhaustedAct, Choice(ExhaustedAct)] = Field(
        default=ExhaustedAct.SKIP,
        description="Then: skip it (to the dead queue; the next ones go on), or park: its group stops.",
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
        description="New groups go to who owns the fewest, or to who has the least measured work.",
    )
    cost: Annotated[Chosen, _COST] = Field(
        default=Chosen("1"),
        description="What a message takes of its queue's share: 1, bytes, {header: NAME}, measured (FILE).",
    )
    start: StartSettings = Field(
        default=StartSettings(), description="What to wait for before anything is handed out."
    )
    rebalance: RebalanceSettings = Field(
        default=RebalanceSettings(), description="When groups move to other consumers, and what waits."
    )
    group_map: Annotated[Chosen, _GROUP_MAP] = Field(
        default=Chosen("exact"),
        description="Which groups are remembered: exact, {lru: N}, {buckets: N} or none (no grouping).",
    )
    group_idle_timeout_ms: Annotated[int, Duration(100, _IDLE_TIMEOUT_MS_MAX)] | None = Field(
        default=None, alias="group_idle_timeout",
        description="exclusive: a group of which nothing is here for so long loses its owner; null: never.",
    )  # fmt: skip
    top_up: Annotated[bool, Flag()] = Field(
        default=False, description="sequenced: the present owner keeps receiving while it holds something."
    )
    retry: RetrySettings = Field(
        default=RetrySettings(), description="How often a message is tried, and what comes then."
    )
    ack_timeout_ms: Annotated[int, Duration(1_000, _IDLE_TIMEOUT_MS_MAX)] | None = Field(
        default=None, alias="ack_timeout",
        description="A message that is not settled for so long is overdue; null: never.",
    )  # fmt: skip
    on_ack_timeout: Annotated[OverdueAct, Choice(OverdueAct)] = Field(
        default=OverdueAct.REPORT, description="What becomes of a consumer that has something overdue."
    )
    reconnect_grace_ms: Annotated[int, Duration(0, 3_600_000)] = Field(
        default=0, alias="reconnect_grace",
        description="How long a consumer whose connection was lost keeps its groups; 0: not at all.",
    )  # fmt: skip
    liveness_interval_ms: Annotated[int, Duration(10, 60_000)] = Field(
        default=500, alias="liveness_interval", description="How often a silent consumer's queue is probed."
    )
    heartbeat_ms: Annotated[int, Duration(100, 600_000)] = Field(
        default=5_000, alias="heartbeat", description="How often consumers report; 3 missing: no new groups."
    )
    max_in_flight_per_group: Annotated[int, Integer(1, LOOK_AHEAD_MAX)] | None = Field(
        default=None, description="Under concurrent: of one group id at a time, ids in turn; null: no limit."
    )
    look_ahead: Annotated[int, Integer(1, LOOK_AHEAD_MAX)] = Field(
        default=10_000, description="Originals held per inbound queue."
    )
    look_ahead_bytes: Annotated[int, Size(1, 1 << 40)] = Field(
        default=256 << 20, description="Memory for originals held by the lane (five eighths), and under way."
    )
    park_after_ms: Annotated[int, Duration(100, 86_400_000)] = Field(
        default=600_000,
        alias="park_after",
        description="What waits here for so long moves to a parking queue.",
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
        description="sequence_check hold: for so long what follows a gap waits for what is missing.",
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


class Settings(Model):
    """Everything that the file says."""

    rabbitmq: RabbitSettings = RabbitSettings()
    redis: RedisSettings = RedisSettings()
    http: HttpSettings = HttpSettings()
    prefix: Annotated[str, Text(_short_string)] = Field(
        default=DEFAULT_PREFIX,
        description="First word of all names that the dispatcher uses on the broker and in Redis.",
    )
    ledger: LedgerSettings | None = Field(
        default=None, description="Record every decision in Parquet files; null: none."
    )
    lanes: dict[str, LaneSettings] = Field(min_length=1, description="The lanes by name.")


def lane_name_problem(name: str, prefix: str) -> str | None:
    """What is wrong with a lane's name, or None."""
    if problem := dotted_name_problem(name, reserved=RESERVED_SEGMENTS):
        return f"the name {problem}"
    if len(prefix) + 1 + len(name) + _NAME_TAIL_BYTES > SHORT_STRING_BYTES_MAX:
        return f"the name is too long: queue names have at most {SHORT_STRING_BYTES_MAX} bytes"
    return None
