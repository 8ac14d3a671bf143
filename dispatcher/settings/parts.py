"""Settings in groups of their own under a lane's key."""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import Annotated, Any, Final, NamedTuple
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field

from dispatcher.settings.kinds import Choice, Duration, Flag, Fraction, Integer, Size, Text
from dispatcher.settings.urls import redact, split_url
from dispatcher.wire.protocol import PREFETCH_MAX, dotted_name_problem

#: More than a lane is measured with.
CONSUMERS_MAX: Final = 10_000
#: A week.
WINDOW_MS_MAX: Final = 7 * 24 * 3_600_000
#: In Redis they take 1.4 GB.
IDS_MAX: Final = 10_000_000
#: Ten years.
MAX_AGE_MS_MAX: Final = 3_650 * 24 * 3_600_000


def _consumer_id(text: str) -> str:
    if problem := dotted_name_problem(text):
        raise ValueError(problem)
    return text


class Model(BaseModel):
    """Frozen, and strict about its keys; shows no password."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_by_name=True, validate_by_alias=True, validate_default=False
    )

    def __repr_args__(self) -> Any:
        for name, value in super().__repr_args__():
            if name == "url" and isinstance(value, str):
                yield name, redact(value)
            elif name == "urls" and value:
                yield name, tuple(redact(url) for url in value)
            else:
                yield name, value


class Conflict(NamedTuple):
    """Keys that don't go together."""

    keys: tuple[str, ...]  # the first is the one to change
    text: str


class Reload(Enum):
    """What a changed value of a key means for a dispatcher that runs, as metadata of the field. Where a key
    of a lane says nothing, the lane is led anew, as after a fail-over."""

    AT_ONCE = "at once"  # the core reads the value whenever it needs it
    RESTART = "restart"  # it can't change while the process runs


class PolicyName(StrEnum):
    """How the messages of one group may be spread over consumers."""

    EXCLUSIVE = "exclusive"
    SEQUENCED = "sequenced"
    CONCURRENT = "concurrent"


class OverdueAct(StrEnum):
    """What the lane does about a message that its consumer has had for longer than `ack_timeout`."""

    REPORT = "report"
    EVICT = "evict"


class ExhaustedAct(StrEnum):
    """What becomes of a group when a message of it can't be processed."""

    SKIP = "skip"
    STOP = "stop"


class PauseName(StrEnum):
    """What waits while groups move to other consumers."""

    GROUP = "group"
    LANE = "lane"
    NONE = "none"


class SequenceCheck(StrEnum):
    """What the lane does about gaps in the numbers that producers give to the messages of a group."""

    OFF = "off"
    REPORT = "report"
    HOLD = "hold"


class QueueKind(StrEnum):
    """What kind of queues a lane's own ones are."""

    AUTO = "auto"
    CLASSIC = "classic"
    QUORUM = "quorum"


class PlacementName(StrEnum):
    """Which consumer a new group goes to."""

    FEWEST = "fewest"
    MEASURED = "measured"


class RebalanceSettings(Model):
    """When groups move to other consumers, and what waits meanwhile."""

    on_join: Annotated[bool, Flag()] = Field(
        default=False, description="Even out the consumers' numbers of groups when one has joined."
    )
    pause: Annotated[PauseName, Choice(PauseName), Reload.AT_ONCE] = Field(
        default=PauseName.GROUP,
        description=(
            "Which messages wait for those in flight: of each moving group, of the lane, or none (overlaps)."
        ),
    )


class DedupSettings(Model):
    """Which messages count as repeated: those with the `message_id` of another one shortly before."""

    window_ms: Annotated[int, Duration(1_000, WINDOW_MS_MAX)] = Field(
        default=300_000, alias="window", description="How long after the first one was handed over."
    )
    max_ids: Annotated[int, Integer(1_000, IDS_MAX)] = Field(
        default=1_000_000, description="Ids kept in Redis; beyond that the oldest are forgotten."
    )


class HistorySettings(Model):
    """Which arrived messages a lane keeps."""

    max_age_ms: Annotated[int, Duration(1_000, MAX_AGE_MS_MAX)] = Field(
        alias="max_age", description="How long at least: RabbitMQ deletes whole segments of the stream."
    )


class HandOverConsumerSettings(Model):
    """A consumer that only reads its queue and acks."""

    id: Annotated[str, Text(_consumer_id)] = Field(
        description="Its id; it reads the queue <prefix>.<lane>.consumer.<id>."
    )
    prefetch: Annotated[int, Integer(1, PREFETCH_MAX)] = Field(
        default=50, description="Messages that may wait in its queue."
    )


class LedgerSettings(Model):
    """Where the ledger is written, and how much of it is kept."""

    path: Annotated[str, Text()] = Field(description="A directory, or its URL: file://, s3://, gs:// …")
    max_age_ms: Annotated[int, Duration(1_000, MAX_AGE_MS_MAX)] | None = Field(
        default=30 * 24 * 3_600_000, alias="max_age", description="Older files are deleted; null: none."
    )
    max_bytes: Annotated[int, Size(1, 1 << 50)] | None = Field(
        default=10 << 30, description="Beyond that the oldest files are deleted; null: none."
    )
    file_age_ms: Annotated[int, Duration(100, 3_600_000)] = Field(
        default=10_000, alias="file_age", description="A file is written this long after its first record."
    )
    file_rows: Annotated[int, Integer(1, 10_000_000)] = Field(
        default=100_000, description="Or when it has this many records."
    )
    memory_bytes: Annotated[int, Size(1 << 20, 1 << 40)] = Field(
        default=64 << 20,
        alias="memory",
        description="Memory for records that are not written yet; beyond that records are dropped.",
    )


def _trace_endpoint(text: str) -> str:
    split_url(text, {"http": 4318, "https": 443})
    return text


class TraceSettings(Model):
    """Where spans go, and of which messages there are some."""

    endpoint: Annotated[str, Text(_trace_endpoint)] = Field(
        default="http://localhost:4318",
        description="Collector that takes OTLP over HTTP; without a path, /v1/traces is added.",
    )
    sample: Annotated[float, Fraction()] = Field(
        default=1.0,
        description="Share of the messages without a traceparent that get a span; else the producer decides.",
    )
    service_name: Annotated[str, Text()] = Field(
        default="dispatcher", description="The name of the dispatcher among the services of the traces."
    )

    @property
    def traces_url(self) -> str:
        """Where the spans are posted to."""
        base = self.endpoint.rstrip("/")
        return base if urlsplit(base).path else f"{base}/v1/traces"


class StartSettings(Model):
    """What a lane waits for before it hands anything out, each time that its first consumer comes."""

    consumers: Annotated[int, Integer(0, CONSUMERS_MAX)] = Field(
        default=0, description="As soon as this many consumers are here; 0: the time alone counts."
    )
    wait_ms: Annotated[int, Duration(0, 3_600_000)] = Field(
        default=0, alias="wait",
        description="At the latest this long after the first one came; 0 with a number of consumers: 1s.",
    )  # fmt: skip
