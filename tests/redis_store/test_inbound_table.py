"""Inbound queues that come, go and move in the configuration, and what the journal still says of them."""

from __future__ import annotations

import pytest

from dispatcher.core.parking.orders import GroupParked, Relocated, Relocating, TermNeeded
from dispatcher.core.queue_ids import UNKNOWN_INBOUND, parking_id
from dispatcher.core.records import (
    DeadLetterPending,
    Discharged,
    IncarnationEnded,
    JournalReset,
    OpenEntry,
    ProvenAcks,
    Record,
    SettledEntries,
    SettledRange,
    Vanished,
)
from dispatcher.errors import ConfigurationError
from dispatcher.redis_store.inbounds import UNKNOWN_STORED, InboundTable
from tests.redis_store.samples import dispatched, entry

#: high is stored as 0, low as 1, gone as 2.
STORED = ["high", "low", "gone"]


def opened(seq: int, inbound: int, incarnation: int = 1) -> OpenEntry:
    return entry(dispatched(seq, inbound, incarnation))


def arrival(seq: int) -> tuple[int, int]:
    return dispatched(seq).message.arrival


def translated(records: list[Record], configured: list[str] | None = None) -> list[Record]:
    return of(InboundTable(STORED, configured or ["low", "high"]), records)


def of(table: InboundTable, records: list[Record]) -> list[Record]:
    """As one commit for each record."""
    return [found for each in table.translate([[record] for record in records], "journal") for found in each]


def test_positions_follow_the_configuration() -> None:
    table = InboundTable(STORED, ["low", "gone", "high"])
    assert table.to_stored[:3] == [1, 2, 0]
    records: list[Record] = [
        opened(1, inbound=0), Discharged(1, arrival(2)), Vanished(2, arrival(3)), ProvenAcks(1, 4),
        SettledEntries(0, True, ()), DeadLetterPending(2, arrival(5), bytes(16), None, 1, "x"),
    ]  # fmt: skip
    found = [record.inbound for record in of(table, records) if hasattr(record, "inbound")]
    assert found == [2, 0, 1, 0, 2, 1]


def test_parking_queues_have_indexes_of_their_own() -> None:
    table = InboundTable([*STORED, "park.1", "park.2"], ["low"], ["park.1", "park.2"])
    first, second = parking_id(0), parking_id(1)
    assert [table.to_stored[index] for index in (0, first, second)] == [1, 3, 4]
    moving = Relocating(1, arrival(1), bytes(16), b"g", 1, 4, bytes(16), 0)
    records: list[Record] = [
        GroupParked(b"g", 4, 0),
        moving,
        TermNeeded(3, bytes(16), 7),
        opened(2, inbound=4),
    ]
    found = of(table, records)
    assert [r.queue for r in found if isinstance(r, GroupParked | TermNeeded)] == [second, first]
    assert found[1] == moving._replace(inbound=0, target=second)
    assert found[3] == opened(2, inbound=second)


def test_a_move_out_of_a_queue_that_was_removed_is_unfinished() -> None:
    moving = Relocating(2, arrival(1), bytes(16), b"g", 0, 3, bytes(16), 0)
    table = InboundTable([*STORED, "park.1"], ["low", "high"], ["park.1"])
    with pytest.raises(ConfigurationError, match="unfinished messages of 'gone'"):
        of(table, [moving])
    of(table, [moving, Relocated(2, arrival(1))])


def test_an_inbound_queue_is_no_parking_queue() -> None:
    with pytest.raises(ConfigurationError, match="names 'low' as a parking queue"):
        translated([GroupParked(b"g", 1, 0)])


def test_what_only_a_consumer_told_us_stays_unknown() -> None:
    assert InboundTable(STORED, ["low"]).to_stored[UNKNOWN_INBOUND] == UNKNOWN_STORED
    record = opened(1, UNKNOWN_STORED)
    assert translated([record]) == [record._replace(inbound=UNKNOWN_INBOUND)]


@pytest.mark.parametrize(
    "end",
    [
        [SettledRange(1, 1, 1)],
        [DeadLetterPending(2, arrival(1), bytes(16), b"g", 1, "poison"), Discharged(2, arrival(1))],
        [Vanished(2, arrival(1))],
        [JournalReset()],
    ],
    ids=["settled", "buried", "vanished", "reset"],
)
def test_finished_entries_of_a_removed_queue_are_left_out(end: list[Record]) -> None:
    kept: list[Record] = [JournalReset()] if end == [JournalReset()] else []
    assert translated([opened(1, inbound=2), *end, SettledEntries(2, True, ()), ProvenAcks(2, 1)]) == kept


@pytest.mark.parametrize(
    "open_records",
    [
        [opened(1, inbound=2)],
        [opened(1, inbound=2), IncarnationEnded(1)],
        [opened(1, inbound=2), DeadLetterPending(2, arrival(1), bytes(16), b"g", 1, "poison")],
        [opened(1, inbound=2), SettledRange(1, 2, 5)],
        # Settled for its first consumer's death is no settle: it was handed over again.
        [opened(1, 2), opened(1, 2, incarnation=8)._replace(seq=3), SettledRange(1, 1, 1)],
    ],
    ids=["dispatched", "taken back", "ending", "another's settle", "dispatched again"],
)
def test_open_entries_of_a_removed_queue_name_it(open_records: list[Record]) -> None:
    with pytest.raises(ConfigurationError, match=r"^journal: has unfinished messages of 'gone', .* inbound"):
        translated(open_records)


def test_a_settled_range_keeps_only_numbers_that_the_core_knows() -> None:
    records: list[Record] = [opened(seq, inbound=2 if seq in (1, 4, 5) else 1) for seq in range(1, 9)]
    assert translated([*records, SettledRange(1, 1, 8)])[5:] == [SettledRange(1, 2, 3), SettledRange(1, 6, 8)]


def test_a_range_as_wide_as_numbers_go_is_no_work() -> None:
    wide = SettledRange(1, 0, 2**64 - 1)
    assert translated([opened(5, inbound=2), wide]) == [SettledRange(1, 0, 4), SettledRange(1, 6, 2**64 - 1)]


def test_a_number_outside_the_table_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="names inbound queue number 3"):
        translated([opened(1, inbound=3)])
