"""What a new leader does first: raise the lane epoch, then read all that the lane's keys hold."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Final

from dispatcher.core.effects import Snapshot
from dispatcher.core.records import Record
from dispatcher.core.tables import OwnerRow
from dispatcher.errors import ConfigurationError
from dispatcher.redis_store import tables
from dispatcher.redis_store.codec import decode
from dispatcher.redis_store.connection import RedisConnection
from dispatcher.redis_store.inbounds import UNKNOWN_STORED, InboundTable
from dispatcher.redis_store.scripts import LEAD, LaneKeys, evaluate

#: Journal entries per read: some megabytes at most, far from what would hold up Redis' other clients.
_ENTRIES_PER_READ: Final = 500
#: Rows per read of a table.
_ROWS_PER_READ: Final = 5_000


@dataclass(frozen=True, slots=True)
class Leadership:
    """What makes a writer the lane's leader, and where its chain of commits begins."""

    epoch: int
    leader: str  # as the scripts compare it
    ordinal: int  # of the last commit before
    complete: bool  # Redis is known to hold everything that was ever committed
    inbounds: InboundTable


async def take_lead(
    connection: RedisConnection,
    keys: LaneKeys,
    now_ms: int,
    inbounds: Sequence[str],
    parking: Sequence[str] = (),
) -> Leadership:
    """Fence every leader before. Raises ConfigurationError, StoreUnavailable."""
    token = uuid.uuid4().hex  # two leaders of one second, after Redis was emptied, still differ
    epoch, ordinal, run_id, stored_names = await connection.call(
        *evaluate(LEAD, keys, now_ms // 1000, token, *inbounds, *parking)
    )
    names = tables.read_names(stored_names, f"Redis: field inbounds of {keys.meta}")
    if len(names) > UNKNOWN_STORED:
        raise ConfigurationError(
            f"Redis: the lane has had {len(names)} inbound queues, more than its journal can number; "
            f"stop the lane, let its inbound queues run empty and delete the keys {keys.meta}, {keys.journal}"
        )
    return Leadership(
        epoch=int(epoch),
        leader=f"{int(epoch)} {token}",
        ordinal=int(ordinal),
        complete=bool(run_id) and run_id.decode() == connection.run_id,
        inbounds=InboundTable(names, inbounds, parking),
    )


async def read_snapshot(connection: RedisConnection, keys: LaneKeys, leadership: Leadership) -> Snapshot:
    """All that is stored, with the configured inbound positions.

    Nothing changes meanwhile: every writer before was fenced, and the leader does not write yet. Raises
    ConfigurationError (formats, queues that are no longer configured), StoreUnavailable.
    """
    journal = await _read_journal(connection, keys)
    origin = f"Redis: the journal {keys.journal}"
    commits = list(leadership.inbounds.translate((records for _, records in journal), origin))
    owners: dict[bytes, OwnerRow] = {}
    row_of_owner = partial(_row, keys.owners)
    await _read_rows(
        connection, keys.owners, lambda rows: owners.update(tables.read_owners(rows, row_of_owner))
    )
    incarnations = await read_table(connection, keys.incarnations)
    results = await read_table(connection, keys.commands)
    flags = await read_table(connection, keys.flags)
    sequences = await read_table(connection, keys.sequences)
    uuids = await connection.call("LRANGE", keys.command_order, 0, -1)
    commands = {uuid: results[uuid] for uuid in uuids if uuid in results}
    return Snapshot(
        lane_epoch=leadership.epoch,
        complete=leadership.complete,
        broker_restarted=False,
        records=list(chain.from_iterable(commits)),
        commits=_numbers(journal, commits),
        owners=owners,
        incarnations={
            tables.read_number(number, _row(keys.incarnations, number)): tables.read_incarnation(
                row, _row(keys.incarnations, number)
            )
            for number, row in incarnations.items()
        },
        commands={
            tables.to_text(uuid, _row(keys.commands, uuid)): tables.read_json(row, _row(keys.commands, uuid))
            for uuid, row in commands.items()
        },
        operator_rows={key: tables.read_json(row, _row(keys.flags, key)) for key, row in flags.items()},
        sequences={
            group: tables.read_number(last, _row(keys.sequences, group)) for group, last in sequences.items()
        },
    )


def _numbers(journal: list[tuple[int, list[Record]]], commits: list[list[Record]]) -> list[tuple[int, int]]:
    """Each commit's number, and how many records it has; nothing where some belong to no queue any more."""
    both = list(zip(journal, commits, strict=True))
    if any(len(records) != len(kept) for (_, records), kept in both):
        return []
    return [(number, len(kept)) for (number, _), kept in both]


async def _read_journal(connection: RedisConnection, keys: LaneKeys) -> list[tuple[int, list[Record]]]:
    """What each commit wrote, by its number."""
    journal: list[tuple[int, list[Record]]] = []
    page = _ask_for_page(connection, keys, "-")
    try:
        while entries := await page:
            page = _ask_for_page(connection, keys, "(" + entries[-1][0].decode())
            await asyncio.sleep(0)  # it is on its way while these are decoded
            for entry_id, fields in entries:
                origin = f"Redis: entry {entry_id.decode()} of the journal {keys.journal}"
                journal.append((int(entry_id.partition(b"-")[0]), decode(fields[1], origin)))
    finally:
        page.cancel()
    return journal


def _ask_for_page(connection: RedisConnection, keys: LaneKeys, start: str) -> asyncio.Task[Any]:
    call = connection.call("XRANGE", keys.journal, start, "+", "COUNT", _ENTRIES_PER_READ)
    return asyncio.get_running_loop().create_task(call)


async def read_table(connection: RedisConnection, key: str) -> dict[bytes, bytes]:
    """All fields of a hash."""
    rows: dict[bytes, bytes] = {}

    def take(page: list[bytes]) -> None:
        pairs = iter(page)
        rows.update(zip(pairs, pairs, strict=True))

    await _read_rows(connection, key, take)
    return rows


async def _read_rows(connection: RedisConnection, key: str, take: Callable[[list[bytes]], None]) -> None:
    """Let `take` have all fields of a hash and their values, in turns; some may come twice."""
    page = _ask_for_rows(connection, key, b"0")
    try:
        while True:
            cursor, fields = await page
            if cursor == b"0":
                take(fields)
                return
            page = _ask_for_rows(connection, key, cursor)
            await asyncio.sleep(0)  # it is on its way while these are read
            take(fields)
    finally:
        page.cancel()


def _ask_for_rows(connection: RedisConnection, key: str, cursor: bytes) -> asyncio.Task[Any]:
    call = connection.call("HSCAN", key, cursor, "COUNT", _ROWS_PER_READ)
    return asyncio.get_running_loop().create_task(call)


def _row(key: str, field: bytes) -> str:
    return f"Redis: row {field!r} of {key}"
