"""What the journal says of a leader that is gone, in the words of the ledger."""

from __future__ import annotations

import json
from typing import Any

from dispatcher.core.operations.operation import PURGED_BY
from dispatcher.core.queue_ids import parking_id
from dispatcher.core.records import (
    DeadLetterPending,
    Discharged,
    IncarnationEnded,
    JournalReset,
    OpenEntry,
    Record,
    SettledEntries,
    SettledRange,
    Vanished,
)
from dispatcher.ledger.backfill import Backfill
from dispatcher.ledger.hand_overs import Names
from dispatcher.ledger.rows import PLACES, Row
from dispatcher.ledger.store import FormerFile
from dispatcher.ledger.wire import decode_journal, encode_journal

PRINT = bytes(16)
WHO = {1: ("c1", "i1"), 2: ("c2", "i2")}


def opened(arrival: int, incarnation: int, seq: int, group_seq: int = 1, attempt: int = 1) -> OpenEntry:
    return OpenEntry(0, (7, arrival), PRINT, incarnation, seq, b"g", group_seq, 99, attempt)


def told(
    journal: list[tuple[int, list[Record]]], commit: int, who: dict[int, tuple[str, str]] = WHO
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The records behind a commit that the former leader's files have, and what the last one says."""
    again = Backfill(Names(["in"], ("park.1",)), who)
    for number, records in journal:
        again.read(number, decode_journal(encode_journal(records)))
    *rows, last = again.rows(5, FormerFile("7-00000000", 30, commit))
    return [shown(row) for row in rows], json.loads(shown(last)["detail"])


def shown(row: Row) -> dict[str, Any]:
    return {name: row[place] for name, place in PLACES.items() if row[place] is not None}


def commits(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(r["event"], r["incarnation"], r["seq"], *json.loads(r["detail"])["commits"]) for r in rows]


def test_hand_overs_have_the_commits_that_began_and_ended_them() -> None:
    rows, facts = told([
        (10, [JournalReset(), opened(1, 1, 1), SettledEntries(0, False, (((7, 9), PRINT),))]),
        (11, [opened(2, 1, 2, 2)]), (12, [SettledRange(1, 1, 2), opened(3, 2, 1, 3)]),
        (14, [IncarnationEnded(2)]),
        (15, [opened(3, 1, 3, 1, attempt=2)]),
    ], 10)  # fmt: skip
    assert commits(rows) == [
        ("settled", "i1", 1, None, 12), ("settled", "i1", 2, 11, 12), ("taken_back", "i2", 1, 12, 14),
        ("dispatched", "i1", 3, 15, None),
    ]  # fmt: skip
    assert facts == {"writer": "7-00000000", "ordinal": 30, "commits": [11, 15], "missing": 0}
    names = ("inbound", "arrival_epoch", "arrival", "group", "group_seq", "epoch", "consumer", "attempt")
    assert [rows[-1][name] for name in names] == ["in", 7, 3, "g", 1, 99, "c1", 2]
    assert {row["time"] for row in rows} == {5}
    assert not any("dispatched_at" in row for row in rows)


def test_what_the_former_leader_told_is_not_told_again() -> None:
    journal: list[tuple[int, list[Record]]] = [
        (10, [JournalReset()]), (11, [opened(1, 1, 1)]), (12, [SettledRange(1, 1, 1)]),
        (13, [opened(2, 1, 2, 2)]),
    ]  # fmt: skip
    assert commits(told(journal, 11)[0]) == [("settled", "i1", 1, 11, 12), ("dispatched", "i1", 2, 13, None)]
    rows, facts = told(journal, 13)
    assert rows == []
    assert facts["missing"] == 0


def test_commits_that_a_checkpoint_has_swept_away_are_missing() -> None:
    journal: list[tuple[int, list[Record]]] = [
        (10, [opened(5, 1, 1)]),
        (20, [JournalReset(), opened(1, 1, 1)]),
    ]
    rows, facts = told(journal, 15)
    assert rows == []
    assert facts["missing"] == 4
    assert told(journal, 19)[1]["missing"] == 0


def test_a_consumer_without_a_name_is_something_missing() -> None:
    journal: list[tuple[int, list[Record]]] = [
        (10, [JournalReset()]),
        (11, [opened(1, 3, 1), SettledRange(3, 1, 1)]),
    ]
    assert told(journal, 10)[1]["missing"] == 1


def test_failures_and_what_became_of_them() -> None:
    stopped = opened(4, 0, 0)  # its group stops: in nobody's hands
    rows, _ = told([
        (10, [JournalReset(), opened(1, 1, 1), opened(2, 1, 2), opened(3, 2, 1), opened(4, 2, 2)]),
        (11, [DeadLetterPending(0, (7, 1), PRINT, b"g", 1, "no such customer", 3), stopped]),
        (12, [Discharged(0, (7, 1))]),
        (13, [Vanished(0, (7, 3)), DeadLetterPending(0, (7, 8), PRINT, b"g", 0, PURGED_BY + "by-me")]),
        (14, [Discharged(0, (7, 8))]),
    ], 10)  # fmt: skip
    assert commits(rows[:3]) == [
        ("failed", "i1", 1, None, 11), ("failed", "i2", 2, None, 11), ("vanished", "i2", 1, None, 13),
    ]  # fmt: skip
    assert (rows[0]["reason"], rows[0]["calls"]) == ("no such customer", 3)
    assert [(r["event"], r["arrival"], r["reason"]) for r in rows[3:]] == [
        ("dead_lettered", 1, "no such customer"), ("purged", 8, "by-me"),
    ]  # fmt: skip


def test_a_parked_original_is_known_by_its_parking_queue_alone() -> None:
    parked = opened(1, 1, 1)._replace(inbound=parking_id(0))
    (row,), _ = told([(10, [JournalReset()]), (11, [parked, SettledRange(1, 1, 1)])], 10)
    assert row["queue"] == "park.1"
    assert "inbound" not in row
    assert "arrival" not in row


def test_a_copy_with_other_numbers_is_the_same_hand_over() -> None:
    rows, _ = told(
        [
            (10, [JournalReset()]),
            (11, [opened(1, 1, 1, 5)]),
            (12, [opened(1, 1, 1, 2)]),
            (13, [SettledRange(1, 1, 1)]),
        ],
        10,
    )
    assert commits(rows) == [("settled", "i1", 1, 11, 13)]
    assert rows[0]["group_seq"] == 2
