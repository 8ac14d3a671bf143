"""Lanes of which something is missing, each with the verdicts that are right."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dispatcher.ledger.rows import arrow_schema, row
from tests.pipeline.ledgers import MS, START_US, HandOver, Leader, Numbers, in_order

SECOND = 1_000 * MS
#: By group.
Verdicts = dict[str, str]


def killed(folder: Path) -> Verdicts:
    """Leader 7 was killed; leader 8 goes on, on a host whose clock is an hour behind."""
    numbers, leader = Numbers(), Leader(folder, "killed")
    goes_on, over = in_order("goes-on", 6), in_order("over", 2, first=10)
    held = HandOver("held", 20, "i2", dispatched=START_US + MS)
    known = HandOver("known", 21, "i2", dispatched=START_US + MS)
    ahead = HandOver("parked", 30, "i2", START_US + MS, START_US + 2 * MS)
    parked = HandOver("parked", 31, "i2", dispatched=START_US + 3 * MS)
    late = START_US - 3_600 * SECOND
    for each in [*goes_on, *over, held, known, ahead, parked]:
        numbers.number(each)
    for each in goes_on[3:]:
        each.dispatched, each.ended = each.dispatched + late - START_US, late + 10 * SECOND
    leader.hand(*goes_on[:3], *over, ahead)
    leader.tell(held.begun(), known.begun(), parked.begun())
    leader.close()
    second = Leader(folder, "killed", 8, 7, late)
    known.ended = late + SECOND
    second.tell(known.over(by_another_leader=True))
    # As earlier versions told it: the second number in the parking queue, and no inbound queue.
    there = parked.values() | {"inbound": None, "arrival": 2, "queue": "park.1"}
    second.tell(row(late + SECOND, "settled", **there))
    second.hand(*goes_on[3:])
    # It may have been settled before: another consumer has the group now.
    second.hand(numbers.number(HandOver("held", 22, "i3", dispatched=late + SECOND, ended=late + 2 * SECOND)))
    second.end()
    return {"goes-on": "kept", "over": "unknown", "held": "unknown", "known": "unknown", "parked": "unknown"}


def told_again(folder: Path) -> Verdicts:
    """Leader 7 was killed; leader 8 has read in the journal what happened until then."""
    numbers, leader = Numbers(), Leader(folder, "told-again")
    over, held, lost = [
        numbers.number(HandOver(group, n, "i1", START_US + n * MS, START_US + 9 * MS))
        for n, group in enumerate(("over", "held", "lost"), 1)
    ]  # fmt: skip
    leader.hand(over)
    leader.tell(held.begun(), lost.begun())
    leader.close()
    later = START_US + 60 * SECOND
    second = Leader(folder, "told-again", 8, 7, later)
    moved = [numbers.number(HandOver("moved", n, f"i{n}")) for n in (11, 12)]
    returned = [numbers.number(HandOver("returned", n, "i3", outcome="taken_back")) for n in (13, 14)]
    begun, parked = (numbers.number(HandOver(name, 15, "i1")) for name in ("begun", "parked"))
    second.tell_again(
        leader, (held, None, 23), (moved[0], 21, 22), (moved[1], 22, 25), (returned[0], 21, 24),
        (returned[1], 21, 24), (begun, 24, None), (over, 18, 19),
    )  # fmt: skip
    nowhere = parked.values() | {"inbound": None, "arrival_epoch": None, "arrival": None, "queue": "park.1"}
    second.tell(row(later, "settled", **nowhere, detail='{"commits":[21,22]}'))
    second.tell(row(later, "settled", **begun.values()))
    new = Numbers(numbers.seqs, epoch=8 << 20)
    for group, arrivals in {"held": [22], "moved": [23], "returned": [13, 14], "begun": [25]}.items():
        second.hand(*(
            new.number(HandOver(group, n, "i4", later + n * MS, later + (n + 1) * MS, attempt=1 + (n < 20)))
            for n in arrivals
        ))  # fmt: skip
    second.end()
    return dict.fromkeys(("over", "held", "moved", "returned", "begun"), "kept") | dict.fromkeys(
        ("lost", "parked"), "unknown"
    )


def told_in_part(folder: Path) -> Verdicts:
    """The journal begins behind the end of the former leader's files; or its last file is gone since."""
    numbers, leader = Numbers(), Leader(folder, "told-in-part")
    leader.hand(*(numbers.number(each) for each in in_order("g", 3)))
    leader.close()
    second = Leader(folder, "told-in-part", 8, 7, START_US + SECOND)
    second.tell_again(leader, missing=1)
    new = Numbers(numbers.seqs, epoch=8 << 20)
    second.hand(new.number(*in_order("h", 1, first=9, since=START_US + 2 * SECOND)))
    second.close()
    third = Leader(folder, "told-in-part", 9, 8, START_US + 3 * SECOND)
    second.files.leave_out(second.files.last, 1)
    third.tell_again(second)
    third.end()
    return {"g": "unknown", "h": "unknown"}


def missing_file(folder: Path) -> Verdicts:
    """Of three files the second one was deleted."""
    numbers, leader = Numbers(), Leader(folder, "missing-file")
    across, hidden = in_order("across", 6), in_order("hidden", 9, first=10)
    for each in across[3:]:
        each.dispatched, each.ended = each.dispatched + 2 * SECOND, START_US + 3 * SECOND
    for each in [*across, *hidden]:
        numbers.number(each)
    leader.hand(*across[:3], *hidden[:3])
    leader.close()
    for each in hidden[3:6]:
        each.dispatched, each.ended = each.dispatched + SECOND, START_US + SECOND + 100 * MS
    leader.hand(*hidden[3:6])
    leader.close()
    for each in hidden[6:]:
        each.dispatched, each.ended = each.dispatched + SECOND, START_US + 2 * SECOND
    leader.hand(*across[3:], *hidden[6:])
    leader.end()
    _, second, _ = sorted((folder / "lane=missing-file").rglob("*.parquet"))
    second.unlink()
    return {"across": "kept", "hidden": "unknown"}


def return_missing(folder: Path) -> Verdicts:
    """The missing file tells that i1's were taken back, and that an operator released what had failed."""
    numbers, leader = Numbers(), Leader(folder, "return-missing")

    def hand(group: str, arrival: int, at: int, incarnation: str = "i1", attempt: int = 1) -> HandOver:
        began = START_US + at * SECOND
        return numbers.number(HandOver(
            group, arrival, incarnation, began, began + SECOND // 2, attempt=attempt
        ))  # fmt: skip

    held = [hand("held", 1, 0), hand("held", 2, 0), hand("released", 1, 0)]
    leader.tell(*(each.begun() for each in held))
    leader.close()
    leader.hand(hand("else", 1, 1))
    leader.close()
    again = [hand("held", 1, 2, "i2", 2), hand("held", 2, 2, "i2", 2)]
    leader.hand(*again, hand("released", 2, 2), hand("released", 1, 3, attempt=2))
    leader.end()
    _, second, _ = sorted((folder / "lane=return-missing").rglob("*.parquet"))
    second.unlink()
    return {"held": "unknown", "released": "unknown"}


def no_ledger(folder: Path) -> Verdicts:
    numbers, leader = Numbers(), Leader(folder, "no-ledger")
    hands = [numbers.number(each) for each in in_order("g", 4)]
    leader.hand(*hands[:2])
    leader.end()
    second = Leader(folder, "no-ledger", 9, 8, START_US + SECOND)
    for each in hands[2:]:
        each.dispatched, each.ended = START_US + 2 * SECOND, START_US + 3 * SECOND
    second.hand(*hands[2:], numbers.number(*in_order("new", 1, first=9, since=START_US + 2 * SECOND)))
    second.end()
    return {"g": "kept", "new": "unknown"}


def dropped(folder: Path) -> Verdicts:
    """Records found no room for a second; what is settled then has lost its name, but for its number."""
    numbers, leader = Numbers(), Leader(folder, "dropped")
    before, held = numbers.number(*in_order("before", 1)), numbers.number(*in_order("held", 1, first=9))
    leader.hand(before)
    leader.tell(held.begun())
    leader.close()
    leader.now_us = START_US + 2 * SECOND
    leader.tell(row(
        START_US + 2 * SECOND, "records_dropped", messages=5, reason="no room",
        detail=json.dumps({"since_us": START_US + SECOND}),
    ))  # fmt: skip
    leader.tell(row(START_US + 3 * SECOND, "settled", consumer="c-i1", incarnation="i1", seq=held.seq))
    later = HandOver("later", 7, "i2", dispatched=START_US + 3 * SECOND, ended=START_US + 4 * SECOND)
    leader.hand(numbers.number(later))
    leader.end()
    return {"before": "unknown", "held": "unknown", "later": "unknown"}


def ended(folder: Path) -> Verdicts:
    """The process that writes was killed: what it had in no file has no record, and the next one goes on."""
    numbers, leader = Numbers(), Leader(folder, "ended")
    hands = [numbers.number(each) for each in in_order("g", 3)]
    leader.hand(hands[0])
    leader.close()
    leader.files.leave_out(leader.files.last, 4)
    leader.now_us = START_US + 2 * SECOND
    leader.tell(row(
        leader.now_us, "records_dropped", messages=4, reason="ended",
        detail=json.dumps({"since_us": START_US + SECOND}),
    ))  # fmt: skip
    later = HandOver("later", 7, "i2", dispatched=START_US + 3 * SECOND, ended=START_US + 4 * SECOND)
    leader.hand(numbers.number(later))
    leader.end()
    return {"g": "unknown", "later": "unknown"}


def twice(folder: Path) -> Verdicts:
    """A file is there twice, and a consumer settled its last message once more for the next leader."""
    numbers, leader = Numbers(), Leader(folder, "twice")
    hands = [numbers.number(each) for each in in_order("g", 3)]
    leader.hand(*hands)
    leader.end("Redis was lost")
    (file,) = (folder / "lane=twice").rglob("*.parquet")
    shutil.copy(file, file.with_name("copy-of-" + file.name))
    second = Leader(folder, "twice", 8, 7, START_US + SECOND)
    second.tell(row(START_US + 2 * SECOND, "settled", **hands[-1].values()))
    second.end()
    return {"g": "kept"}


def boundaries(folder: Path) -> Verdicts:
    """Retention has deleted the first file, and the lane goes on."""
    numbers, leader = Numbers(), Leader(folder, "boundaries", former_epoch=6)
    hands = [numbers.number(each) for each in in_order("g", 6)]
    for start in (0, 3):
        leader.hand(*hands[start : start + 3])
        leader.close()
    first, _ = sorted((folder / "lane=boundaries").rglob("*.parquet"))
    first.unlink()
    return {"g": "kept"}


def bad_files(folder: Path) -> Verdicts:
    """A lane whose second leadership left nothing that can be read, beside files of others."""
    numbers, leader = Numbers(), Leader(folder, "bad")
    hands = [numbers.number(each) for each in in_order("g", 3)]
    leader.hand(*hands[:2])
    leader.end()
    Leader(folder, "bad", 8, 7, START_US + SECOND).end()
    third = Leader(folder, "bad", 9, 8, START_US + 2 * SECOND)
    hands[2].dispatched, hands[2].ended = START_US + 2 * SECOND, START_US + 3 * SECOND
    third.hand(hands[2])
    third.end()
    day = next((folder / "lane=bad").iterdir())
    _, second, last = sorted(day.iterdir())
    second.write_bytes(second.read_bytes()[:-40])
    newer = arrow_schema({"schema_version": "2", "lane": "bad", "writer": "9-x", "lane_epoch": "9"})
    pq.write_table(newer.empty_table(), last.with_name("10-0000000a-000000000001.parquet"))
    last.with_name("10-0000000a-000000000002.parquet").write_bytes(b"")
    pq.write_table(pa.table({"a": [1]}), day / "theirs.parquet")
    (day / "notes.txt").write_text("whatever")
    (day / ".half.parquet").write_bytes(b"half")
    return {"g": "unknown"}


def renamed(folder: Path) -> Verdicts:
    numbers, leader = Numbers(), Leader(folder, "new-name")
    leader.hand(*(numbers.number(each) for each in in_order("g", 3)))
    leader.end()
    (folder / "lane=new-name").rename(folder / "lane=007")
    return {"g": "kept"}


def clock_back(folder: Path) -> Verdicts:
    """The leader's clock was set back while it had something in hand."""
    numbers, leader = Numbers(), Leader(folder, "clock-back")
    hands = [numbers.number(each) for each in [*in_order("g", 3), *in_order("h", 2, first=9)]]
    hands[2].ended = hands[2].dispatched - SECOND
    leader.hand(*hands)
    leader.end()
    return {"g": "unknown", "h": "kept"}


def told_by_both(folder: Path) -> Verdicts:
    """Two leaders, before and after midnight, tell the end of one hand-over, each with all its times."""
    numbers, leader = Numbers(), Leader(folder, "told-by-both")
    midnight = START_US + 10 * SECOND
    hands = [numbers.number(each) for each in in_order("g", 3, since=midnight - 5 * MS)]
    leader.hand(*hands)
    leader.end()
    second = Leader(folder, "told-by-both", 8, 7, midnight + MS)
    hands[-1].ended = midnight + 2 * MS
    second.hand(hands[-1])
    second.end()
    return {"g": "kept"}


def settled_twice(folder: Path) -> Verdicts:
    """Of one group a message was settled, and then handed over once more; the other one failed before."""
    numbers, leader = Numbers(), Leader(folder, "settled-twice")
    hands = [
        HandOver("again", 1), HandOver("again", 1, attempt=2), HandOver("again", 3),
        HandOver("released", 11, outcome="failed"), HandOver("released", 11, attempt=2),
        HandOver("released", 12),
    ]  # fmt: skip
    for n, hand in enumerate(hands):
        hand.dispatched, hand.ended = START_US + n * MS, START_US + n * MS + MS // 2
        leader.hand(numbers.number(hand))
    leader.end()
    return {"again": "unknown", "released": "kept"}


def headless(folder: Path) -> Verdicts:
    """An epoch of this leader has no number 1; one of a former leader began before the ledger does."""
    numbers, leader = Numbers(), Leader(folder, "headless")
    former = Numbers(epoch=6 << 20)
    for n in 1, 2:
        former.number(HandOver("older", n, "i9"))
    numbers.number(HandOver("headless", 11))
    leader.hand(
        *(numbers.number(each) for each in in_order("headless", 2, first=12)),
        *(former.number(each) for each in in_order("older", 2, first=3, incarnation="i9")),
    )
    leader.end()
    return {"headless": "unknown", "older": "kept"}


CASES = {
    "settled-twice": settled_twice, "headless": headless,
    "killed": killed, "told-again": told_again, "told-in-part": told_in_part, "missing-file": missing_file,
    "return-missing": return_missing, "no-ledger": no_ledger, "dropped": dropped, "ended": ended,
    "twice": twice, "boundaries": boundaries, "bad": bad_files, "new-name": renamed,
    "clock-back": clock_back, "told-by-both": told_by_both,
}  # fmt: skip
