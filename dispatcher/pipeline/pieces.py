"""Tables that are computed from each date's files alone, and kept: hand-overs that one record tells as a
whole, and all records that say something else. Tables that need several dates are made from these, so that
old files of a ledger are not read again (`memory`).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Final
from uuid import uuid4

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from dispatcher.pipeline.at_once import at_once
from dispatcher.pipeline.few_rows import FEW, PARTS, few, together
from dispatcher.pipeline.gaps import Gap, Window
from dispatcher.pipeline.hand_overs import (
    ENDS,
    KEY,
    about_hand_overs,
    hand_over_lanes,
    hand_overs,
    shared,
    spans,
    what_is_told,
    whole,
)
from dispatcher.pipeline.leaderships import RecordedLeadership, extents, fact, leaderships
from dispatcher.pipeline.ledger_files import Found
from dispatcher.pipeline.ledger_reading import fact_rows, read_records, within
from dispatcher.pipeline.lifecycle import (
    UNDECIDED,
    WAITING,
    block,
    block_number,
    block_of,
    is_about,
    lifecycle,
    with_durations,
)
from dispatcher.pipeline.memory import Memory, digest, pieces_of
from dispatcher.pipeline.report_folder import AUDITED, HAND_OVERS, KEPT, RECORDS, ReportFolder

DATE: Final = "date"
#: In the place of a date: what the records of several ones tell together.
ACROSS: Final = "across"


def stand_alone(found: Found) -> bool:
    """Whether no record is in the files of two dates, as after a file was copied into another folder."""
    reached: dict[tuple[str, str], dict[str, int]] = {}
    for file in sorted(found.files, key=lambda file: (file.lane, file.writer, file.first)):
        dates = reached.setdefault((file.lane, file.writer), {})
        if any(last >= file.first for date, last in dates.items() if date != file.date):
            return False
        dates[file.date] = max(file.last, dates.get(file.date, 0))
    return True


class Pieces:
    """Keeps pieces in the report's folder, and computes those that are missing.

    `computed` are the dates whose files are read, `reused` the others. Where dates can't be told apart all
    hand-overs are computed together, from all files. So are those of hand-over lanes: what becomes of a
    hand-over is told much later there.
    """

    def __init__(
        self, spark: SparkSession, folder: ReportFolder, ledger: str, found: Found, window: Window
    ) -> None:
        self._spark, self._folder, self._ledger, self._found = spark, folder, ledger, found
        self.window, self._memory = window, Memory.load(folder.path, window)
        if not self._memory.pieces and not self._memory.made:  # what another version has kept, too
            shutil.rmtree(folder.path / KEPT, ignore_errors=True)
        self._is_apart = stand_alone(found)
        if not self._is_apart:
            self._memory.clear()
        self.computed = self._memory.forget_changed(found)
        self._new = pieces_of(found.of_dates({*self.computed}))
        self._ledgers: dict[tuple[str, ...], DataFrame] = {}
        self.leaderships = self._leaderships()
        self.reused = sorted(self._memory.pieces)
        self._persisted: list[DataFrame] = []
        self._hands: DataFrame | None = None
        self._across: dict[str, dict[str, str]] = {"days": {}, "blocks": {}}
        self._queues_across: set[tuple[str, str | None]] = set()
        records = self._read_ledger()
        hands = self._whole(records)
        self._schemas = {RECORDS: records.schema, HAND_OVERS: hands.schema}
        at_once(lambda: self._write_whole(hands), lambda: self._write_rest(records))
        self.all_records = self.read(RECORDS) if self._is_apart else self._read_ledger()
        #: Records of the window, but for the ends of hand-overs that one record tells of.
        self.records = within(self.all_records, window)

    def _leaderships(self) -> list[RecordedLeadership]:
        for row in fact_rows(self._read_ledger(), DATE):
            self._new[row.pop(DATE)].facts.append(row)
        pieces = [*self._memory.pieces.values(), *self._new.values()]
        facts = [fact(told) for piece in pieces for told in piece.facts]
        found = leaderships(self._found, facts, extents(self._found))
        self._lanes = hand_over_lanes(found)
        if self._lanes != self._memory.lanes:
            for date, piece in self._memory.pieces.items():
                self._new[date] = replace(piece, id=uuid4().hex)
            self._memory.clear()
            self._memory.lanes = self._lanes
            self.computed = sorted(self._new)
        return found

    def _read_ledger(self) -> DataFrame:
        """What the files of the dates to compute have."""
        dates = tuple(self.computed)
        if dates not in self._ledgers:
            found = read_records(self._spark, self._ledger, self._found.of_dates({*dates}))
            self._ledgers[dates] = self._in_one_part(found)
        return self._ledgers[dates]

    def _in_one_part(self, table: DataFrame) -> DataFrame:
        """Where results are in one part, the input is too: then no parts exchange anything."""
        return table.coalesce(1) if self._is_in_one_part() else table

    def _is_in_one_part(self) -> bool:
        return bool(self._spark.conf.get(PARTS) == "1")

    def _whole(self, records: DataFrame) -> DataFrame:
        if self._lanes:
            records = records.where(~F.col("lane").isin(self._lanes))
        return with_durations(whole(within(records, self.window), DATE))

    def _write_whole(self, hands: DataFrame) -> None:
        self._folder.keep(HAND_OVERS, DATE, self.reused)
        if self._is_apart and self.computed:
            self._folder.add(HAND_OVERS, hands, DATE, "lane")

    def _write_rest(self, records: DataFrame) -> None:
        """All records but ends that tell everything."""
        if self._is_apart:
            self._folder.keep(RECORDS, DATE, self.reused)
            if self.computed:
                self._folder.add(RECORDS, self._without_whole(records), DATE)

    def _without_whole(self, records: DataFrame) -> DataFrame:
        is_whole = F.col("event").isin(ENDS) & F.col("dispatched_at").isNotNull()
        is_whole &= F.col("seq").isNotNull() & F.col("incarnation").isNotNull()
        if self._lanes:
            is_whole &= ~F.col("lane").isin(self._lanes)
        return records.where(~F.coalesce(is_whole, F.lit(False)))

    def write_hand_overs(self, gaps: list[Gap]) -> None:
        across = None
        if self._is_apart and not self._are_told_again():
            across = self._told_by_several(gaps)
        if across is None:
            self._is_apart = False
            self._memory.clear()
            self.computed, self.reused = sorted({file.date for file in self._found.files}), []
            self._folder.keep(HAND_OVERS, DATE, [])
            records = within(self._read_ledger(), self.window)
            across = hand_overs(self._spark, records, self.leaderships, gaps, persist=self._persist)
        across = with_durations(across).withColumn(DATE, F.lit(ACROSS))
        self._folder.add(HAND_OVERS, across, DATE, "lane")
        self._release()
        if self._is_in_one_part():  # each stage needs them, and to open their files takes longer than to read
            self._hands = self.read(HAND_OVERS).persist(StorageLevel.MEMORY_AND_DISK)
        self._remember()

    def _are_told_again(self) -> bool:
        """Whether two leaderships tell of the same numbers of an incarnation: an end may be told twice as a
        whole then, and dates can't be told apart."""
        if len(self.leaderships) == len({each.lane for each in self.leaderships}):
            return False
        return not shared(spans(self.read(HAND_OVERS))).isEmpty()

    def _told_by_several(self, gaps: list[Gap]) -> DataFrame | None:
        """The hand-overs that need more than one date. None: an end is told as a part before it is told as a
        whole, so that dates can't be told apart."""
        loose = self._persist(about_hand_overs(self.records))
        keys = self._persist(loose.select(*KEY).distinct())
        are_few = self._is_in_one_part() or keys.count() <= FEW
        told = self.read(HAND_OVERS).join(few(keys) if are_few else keys, [*KEY], "left_semi")
        told = self._persist(told.select(*KEY, F.struct("turn", "ordinal").alias("at")))
        if are_few:  # then to exchange them takes longer than one core takes for all
            loose, told = loose.coalesce(1), told.coalesce(1)
        parts = loose.where(F.col("event").isin(ENDS)).join(told, [*KEY])
        early = (
            parts.where(F.struct("turn", "ordinal") < F.col("at")).select(F.lit(True).alias("is")).limit(1)
        )
        loose = self._persist(loose.join(told, [*KEY], "left_anti"))
        kinds = loose.select(what_is_told().alias("told")).distinct()
        found = together({"early": early, "told": kinds})
        if found["early"].num_rows:
            return None
        if are_few:
            loose = loose.coalesce(1)
        told_of = found["told"]["told"].to_pylist()
        return hand_overs(self._spark, self.records, self.leaderships, gaps, loose, told=told_of)

    def _persist(self, table: DataFrame) -> DataFrame:
        """Keep the table until the results made from it are written. It must go then: Spark would take it for
        equal-looking tables of the next run, which would be wrong."""
        self._persisted.append(table.persist(StorageLevel.DISK_ONLY))
        return table

    def _release(self) -> None:
        while self._persisted:
            self._persisted.pop().unpersist()

    def _remember(self) -> None:
        """Which days, blocks and queues each piece reaches over, and what the hand-overs across dates are
        like."""
        hands = self.read(HAND_OVERS)
        across = hands.where(F.col(DATE) == ACROSS)
        columns = [name for name in across.columns if name != DATE]
        hashed = F.xxhash64(*columns).cast("decimal(20,0)").alias("hash")
        rows = across.select(*_numbered(), hashed)
        if self._is_apart:
            mine = F.col(DATE).isin(self.computed)
            never = F.lit(None).cast("timestamp")
            about = self.all_records.where(is_about() & mine).withColumn("ended_at", never)
            for found in hands.where(mine), about:
                rows = rows.unionByName(found.select(*_numbered()), allowMissingColumns=True)
        counted = (
            rows.groupBy(DATE, "lane", "inbound", "on", "arrival_epoch", "nth")
            .agg(F.count("*").alias("rows"), F.sum("hash").alias("hashes"))
            .select(DATE, "lane", "inbound", F.col("on").cast("string"), block_of("nth"), "rows", "hashes")
            .collect()
        )
        found_in: dict[str, tuple[set[str], set[str], set[tuple[str, str | None]]]] = {
            date: (set(), set(), set()) for date in self._new
        }
        for date, lane, inbound, day, part, *_ in counted:
            if date == ACROSS:
                self._queues_across.add((lane, inbound))
                continue
            days, blocks, queues = found_in[date]
            days |= {day} - {None}
            blocks.add(part)
            queues.add((lane, inbound))
        if self._is_apart:
            for date, piece in self._new.items():
                days, blocks, queues = found_in[date]
                piece.days, piece.blocks = sorted(days), sorted(blocks)
                piece.queues = [list(queue) for queue in sorted(queues, key=str)]
            self._memory.pieces.update(self._new)
        self._memory.save()
        self._digest_across([tuple(row)[3:] for row in counted if row[0] == ACROSS])

    def _digest_across(self, counted: list[tuple[Any, ...]]) -> None:
        """By day and block: how many there are, and the sum of their hashes."""
        alone = "" if self._is_apart else uuid4().hex  # of all dates together nothing is used again
        for day, block_name, *counts in sorted(counted, key=str):
            for name, part in ("days", day), ("blocks", block_name):
                if part is not None:
                    former = self._across[name].get(part, "")
                    self._across[name][part] = digest([former, *counts, alone])

    # -- the audit's --

    @property
    def is_apart(self) -> bool:
        """Whether dates can be told apart, so that results for some may be used again."""
        return self._is_apart

    @property
    def queues(self) -> dict[str, list[str | None]]:
        """By lane, the inbound queues of all hand-overs."""
        told = {(lane, inbound) for piece in self._memory.pieces.values() for lane, inbound in piece.queues}
        found: dict[str, list[str | None]] = {}
        for lane, inbound in sorted(told | self._queues_across, key=str):
            found.setdefault(lane, []).append(inbound)
        return found

    @property
    def audited(self) -> str | None:
        """The folder of what the last audit has kept, if all that it has judged is still the same."""
        pieces, audited = self._memory.pieces, self._memory.audited
        are_there = all(date in pieces and pieces[date].id == id for date, id in audited.items())
        return self._memory.audit or None if self._is_apart and audited and are_there else None

    @property
    def unaudited(self) -> list[str]:
        """The dates that the last audit has not judged."""
        return sorted(self._memory.pieces.keys() - self._memory.audited.keys())

    def begin_audit(self) -> str:
        """A folder for what this audit keeps; until `keep_audit` the former one's counts."""
        name = uuid4().hex
        (self._folder.path / AUDITED / name).mkdir(parents=True)
        return name

    def keep_audit(self, name: str) -> None:
        """From now on all pieces are judged."""
        with self._memory.lock:
            self._memory.audit = name
            self._memory.audited = {date: piece.id for date, piece in self._memory.pieces.items()}
            self._memory.save()
        for each in (self._folder.path / AUDITED).iterdir():
            if each.name != name:
                shutil.rmtree(each)

    # -- parts of tables that are made of some pieces only --

    def remake(
        self,
        table: str,
        places: str,
        make: Callable[[list[str]], DataFrame],
        more: Mapping[str, str] | None = None,
        spread: Mapping[str, Collection[str]] | None = None,
    ) -> list[str]:
        """Make parts of a table again if what they are made of has changed, and delete those that are no
        more; returns them. `places`: `days` or `blocks`, as the table's folders are; `more`: what else a part
        depends on; `spread`: in which parts of the table each place is, where these are others."""
        wanted = self._digests(places, more)
        if spread is not None:
            parts = {part: sorted(place for place in wanted if part in spread[place])
                     for place in wanted for part in spread[place]}  # fmt: skip
            wanted = {part: digest(wanted[place] for place in found) for part, found in parts.items()}
        todo = sorted(self._memory.outdated(table, wanted))
        key = places.removesuffix("s")
        self._folder.keep(table, key, wanted.keys() - todo)
        found = make(todo)
        self._schemas[table] = found.schema
        if todo:
            self._folder.add(table, found, key)
        self._memory.remember(table, {part: wanted[part] for part in todo})
        return todo

    def parts(self, places: str) -> list[str]:
        """All that there are: `days` or `blocks`."""
        return sorted(self._digests(places, None))

    def _digests(self, places: str, more: Mapping[str, str] | None) -> dict[str, str]:
        ids: dict[str, list[str]] = {part: [] for part in self._across[places]}
        for piece in self._memory.pieces.values():
            for part in getattr(piece, places):
                ids.setdefault(part, []).append(piece.id)
        return {
            part: digest([*sorted(found), self._across[places].get(part), (more or {}).get(part)])
            for part, found in ids.items()
        }

    def write_lifecycle(self) -> dict[str, dict[str, int]]:
        """Blocks of messages whose fate depends on the leader are made again when the leader changes. Returns
        how many messages each lane has, by outcome."""
        lead = digest((each.lane, each.turn, each.ended is None) for each in self.leaderships)
        waiting = self._memory.made.get(WAITING, {})

        def made(blocks: list[str]) -> DataFrame:
            hands, records = self.hand_overs("blocks", blocks), self.about(blocks)
            are_few = True if self._is_in_one_part() else None
            found = lifecycle(hands, records, self.leaderships, self._persist, are_few)
            return found.withColumn("block", block())

        todo = self.remake("lifecycle", "blocks", made, dict.fromkeys(waiting, lead))
        self._release()
        outcomes: dict[str, dict[str, int]] = {}
        now: set[str] = set()
        for lane, part, outcome, count in (
            self.read("lifecycle").groupBy("lane", "block", "outcome").count().collect()
        ):
            of_lane = outcomes.setdefault(lane, {})
            of_lane[outcome] = of_lane.get(outcome, 0) + count
            if outcome in UNDECIDED and part in todo:
                now.add(part)
        with self._memory.lock:
            self._memory.made[WAITING] = dict.fromkeys((waiting.keys() - todo) | now, "")
        wanted = self._digests("blocks", dict.fromkeys(self._memory.made[WAITING], lead))
        self._memory.remember("lifecycle", {part: wanted[part] for part in todo})
        return outcomes

    def hand_overs(self, places: str, parts: Collection[str]) -> DataFrame:
        """Those of these parts."""
        found = self.read(HAND_OVERS).where(F.col(DATE).isin(self._dates(places, parts)))
        if self._are_all(places, parts):
            return found
        place = dict(zip(("days", "blocks"), _places(), strict=True))[places]
        return found.where(place.isin([*parts]))

    def about(self, blocks: Collection[str]) -> DataFrame:
        """The records about messages of these blocks that no consumer has."""
        records = self.records.where(is_about())
        if self._is_apart:
            records = records.where(F.col(DATE).isin(self._dates("blocks", blocks)))
        return records if self._are_all("blocks", blocks) else records.where(block().isin([*blocks]))

    def _are_all(self, places: str, parts: Collection[str]) -> bool:
        """To look at each row for its part takes as long as reading it."""
        known = {part for piece in self._memory.pieces.values() for part in getattr(piece, places)}
        return self._is_apart and {*parts} >= known | self._across[places].keys()

    def _dates(self, places: str, parts: Collection[str]) -> list[str]:
        wanted = {*parts}
        return [
            ACROSS,
            *(d for d, piece in self._memory.pieces.items() if wanted & {*getattr(piece, places)}),
        ]

    def let_go(self) -> None:
        """What is kept until the end of a run. Spark would take it for the equal-looking table of the next
        run, which would be wrong."""
        if self._hands is not None:
            self._hands.unpersist()

    def read(self, name: str) -> DataFrame:
        """A table of the report."""
        if name == HAND_OVERS and self._hands is not None:
            return self._hands
        return self._in_one_part(self._folder.read(self._spark, name, self._schemas.get(name)))


def _numbered() -> list[Column | str]:
    """What `_places` are the names of: to name them takes longer than to read the rows."""
    nth = block_number().alias("nth")
    return [DATE, "lane", "inbound", F.to_date("ended_at").alias("on"), "arrival_epoch", nth]


def _places() -> tuple[Column, Column]:
    return F.date_format("ended_at", "yyyy-MM-dd").alias("day"), block().alias("block")
