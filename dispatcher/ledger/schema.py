"""The columns of the ledger and the words in them: what its readers rely on (docs/ledger.md).

This module imports nothing, so that any reader may take the schema from it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

#: Raised when a reader that knows the former version would draw wrong conclusions; new columns and new
#: events don't raise it.
SCHEMA_VERSION: Final = 1
#: Keys of a file's own metadata begin with this.
METADATA_PREFIX: Final = "dispatcher.ledger."
FILE_SUFFIX: Final = ".parquet"


class Kind(StrEnum):
    """What a column holds."""

    INSTANT = "timestamp"  # µs since 1970, UTC
    INTEGER = "int64"
    SMALL = "int32"
    TEXT = "string"
    BYTES = "binary"


class Column(NamedTuple):
    """One column; null means that it says nothing about this record."""

    name: str
    kind: Kind


#: Columns with one value in a whole file.
FILE_COLUMNS: Final = (
    Column("schema_version", Kind.SMALL),
    Column("writer", Kind.TEXT),
    Column("lane_epoch", Kind.INTEGER),
)
ORDINAL: Final = Column("ordinal", Kind.INTEGER)
#: The columns of a record, in the order of the tuples that the tracker makes.
RECORD_COLUMNS: Final = (
    Column("time", Kind.INSTANT),
    Column("event", Kind.TEXT),
    Column("inbound", Kind.TEXT),
    Column("arrival_epoch", Kind.INTEGER),
    Column("arrival", Kind.INTEGER),
    Column("queue", Kind.TEXT),
    Column("group", Kind.TEXT),
    Column("group_seq", Kind.INTEGER),
    Column("epoch", Kind.INTEGER),
    Column("consumer", Kind.TEXT),
    Column("incarnation", Kind.TEXT),
    Column("seq", Kind.INTEGER),
    Column("attempt", Kind.SMALL),
    Column("calls", Kind.SMALL),
    Column("dispatch_id", Kind.BYTES),
    Column("size", Kind.INTEGER),
    Column("cost", Kind.INTEGER),
    Column("received_at", Kind.INSTANT),
    Column("dispatched_at", Kind.INSTANT),
    Column("committed_at", Kind.INSTANT),
    Column("confirmed_at", Kind.INSTANT),
    Column("wait_cause", Kind.TEXT),
    Column("reason", Kind.TEXT),
    Column("messages", Kind.INTEGER),
    Column("waiting", Kind.INTEGER),
    Column("in_flight", Kind.INTEGER),
    Column("detail", Kind.TEXT),
    Column("type", Kind.TEXT),
)
COLUMNS: Final = (*FILE_COLUMNS, ORDINAL, *RECORD_COLUMNS)


class Event(StrEnum):
    """Records that the ledger makes itself; what the dispatcher tells of itself has its log's words."""

    LANE_STARTED = "lane_started"
    LANE_CHANGED = "lane_changed"
    LANE_ENDED = "lane_ended"
    RECEIVED = "received"
    DISPATCHED = "dispatched"
    SETTLED = "settled"
    FAILED = "failed"
    TAKEN_BACK = "taken_back"
    READ_BACK = "read_back"
    PARKED = "parked"
    DEAD_LETTERED = "dead_lettered"
    DROPPED = "dropped"
    MOVED = "moved"
    PURGED = "purged"
    DEDUPLICATED = "deduplicated"
    ACKED_AGAIN = "acked_again"
    VANISHED = "vanished"
    CLOSED = "closed"
    OWNER_CHANGED = "owner_changed"
    CONSUMER_JOINED = "consumer_joined"
    CONSUMER_TAKEN_BACK = "consumer_taken_back"
    GROUP_PARKED = "group_parked"
    SAMPLED = "sampled"
    RECORDS_DROPPED = "records_dropped"
    TOLD_AGAIN = "told_again"


#: Ends of a hand-over: records with everything that is known of it.
HAND_OVER_ENDS: Final = frozenset({Event.SETTLED, Event.FAILED, Event.TAKEN_BACK})


#: Why notes of messages were dropped, so that anything may have happened meanwhile: the process that writes
#: could not keep up, or it ended, with all that it had in no file.
NO_ROOM: Final = "no room"
ENDED: Final = "ended"


class WaitCause(StrEnum):
    """What a message waited for last before it was handed over."""

    RETRY = "retry"  # it was handed over before
    PARKED = "parked"  # it was in a parking queue
    PAUSED = "paused"  # an operator had paused its group or the lane
    GROUP = "group"  # others of its group were out
    WINDOW = "window"  # its consumer had its whole prefetch
    CONSUMER = "consumer"  # nobody was there
    TURN = "turn"  # everything else: other queues' turns, unconfirmed copies, a recovery
