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


class ColumnKind(StrEnum):
    """What a column holds."""

    INSTANT = "timestamp"  # µs since 1970, UTC
    INTEGER = "int64"
    SMALL = "int32"
    TEXT = "string"
    BYTES = "binary"


class Column(NamedTuple):
    """One column; null means that it says nothing about this record."""

    name: str
    kind: ColumnKind


#: Columns with one value in a whole file.
FILE_COLUMNS: Final = (
    Column("schema_version", ColumnKind.SMALL),
    Column("writer", ColumnKind.TEXT),
    Column("lane_epoch", ColumnKind.INTEGER),
)
ORDINAL: Final = Column("ordinal", ColumnKind.INTEGER)
#: The columns of a record, in the order of the tuples that the tracker makes.
RECORD_COLUMNS: Final = (
    Column("time", ColumnKind.INSTANT),
    Column("event", ColumnKind.TEXT),
    Column("inbound", ColumnKind.TEXT),
    Column("arrival_epoch", ColumnKind.INTEGER),
    Column("arrival", ColumnKind.INTEGER),
    Column("queue", ColumnKind.TEXT),
    Column("group", ColumnKind.TEXT),
    Column("group_seq", ColumnKind.INTEGER),
    Column("epoch", ColumnKind.INTEGER),
    Column("consumer", ColumnKind.TEXT),
    Column("incarnation", ColumnKind.TEXT),
    Column("seq", ColumnKind.INTEGER),
    Column("attempt", ColumnKind.SMALL),
    Column("calls", ColumnKind.SMALL),
    Column("dispatch_id", ColumnKind.BYTES),
    Column("size", ColumnKind.INTEGER),
    Column("cost", ColumnKind.INTEGER),
    Column("received_at", ColumnKind.INSTANT),
    Column("dispatched_at", ColumnKind.INSTANT),
    Column("committed_at", ColumnKind.INSTANT),
    Column("confirmed_at", ColumnKind.INSTANT),
    Column("wait_cause", ColumnKind.TEXT),
    Column("reason", ColumnKind.TEXT),
    Column("messages", ColumnKind.INTEGER),
    Column("waiting", ColumnKind.INTEGER),
    Column("in_flight", ColumnKind.INTEGER),
    Column("detail", ColumnKind.TEXT),
    Column("type", ColumnKind.TEXT),
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


#: Why an owner changes: another consumer had free capacity, and the group waited for room at its owner.
STOLEN: Final = "stolen"


class WaitCause(StrEnum):
    """What a message waited for last before it was handed over."""

    RETRY = "retry"  # it was handed over before
    PARKED = "parked"  # it was in a parking queue
    PAUSED = "paused"  # an operator had paused its group or the lane
    GROUP = "group"  # others of its group were out
    WINDOW = "window"  # its consumer had its whole prefetch
    CONSUMER = "consumer"  # no consumer was there
    TURN = "turn"  # everything else: other queues' turns, unconfirmed copies, a recovery
