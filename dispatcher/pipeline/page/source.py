"""A finished report's tables, read with pyarrow; of big ones only the columns and rows that are needed."""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from dispatcher.errors import ConfigurationError
from dispatcher.pipeline.report_folder import LOCK, SUMMARY, refuse_newer

ReportRow = dict[str, Any]
#: Every run writes them.
_NEEDED: Final = (
    "files", "gaps", "violations", "groups", "timeline", "hot_groups", "holders", "fairness",
    "consumer_stats", "cost_model",
)  # fmt: skip


class Source:
    """The tables of one report. Every method raises ConfigurationError for a file that can't be read."""

    def __init__(self, folder: Path, summary: ReportRow) -> None:
        self.folder, self.summary = folder, summary
        self._open: dict[str, Any] = {}

    def has(self, name: str) -> bool:
        """Whether there is such a table: some are there only on request."""
        return self._dataset(name) is not None

    def has_column(self, name: str, column: str) -> bool:
        """Whether there is such a table, and has it: some columns are younger than their tables."""
        table = self._dataset(name)
        return table is not None and column in table.schema.names

    def rows(self, name: str, columns: Sequence[str] = (), where: Any = None) -> list[ReportRow]:
        """All rows of a small table, or some; none if there is no such table."""
        found = self._table(name, columns, where)
        return found.to_pylist() if found is not None else []

    def first(
        self, name: str, count: int, columns: Sequence[str] = (), where: Any = None
    ) -> tuple[list[ReportRow], int]:
        """Some `count` rows, and how many there are."""
        table = self._dataset(name)
        if table is None:
            return [], 0
        with self._clear_errors(name):
            head = table.head(count, columns=self._known(name, columns), filter=where)
            return head.to_pylist(), table.count_rows(filter=where)

    def counted(self, name: str, by: Sequence[str], where: Any) -> Counter[tuple[Any, ...]]:
        """How many rows have which values."""
        found = self.summed(name, by, (), where)
        return Counter({tuple(row[each] for each in by): row["rows"] for row in found})

    def summed(self, name: str, by: Sequence[str], sums: Sequence[str], where: Any = None) -> list[ReportRow]:
        """Sums of columns by others, and how many `rows` they are of; only a part of the table is in memory
        at a time."""
        found: dict[tuple[Any, ...], ReportRow] = {}
        wanted = [([], "count_all"), *((each, "sum") for each in sums)]
        for part in self.parts(name, [*by, *sums], where):
            for row in part.group_by(list(by)).aggregate(wanted).to_pylist():
                key = tuple(row[each] for each in by)
                nothing = dict(zip(by, key, strict=True)) | dict.fromkeys(("rows", *sums), 0)
                total = found.setdefault(key, nothing)
                total["rows"] += row["count_all"]
                for each in sums:
                    total[each] += row[f"{each}_sum"] or 0
        return list(found.values())

    def highest(self, name: str, by: str, count: int, where: Any = None) -> list[ReportRow]:
        """The rows with the highest values of a column."""
        best: pa.Table | None = None
        for part in self.parts(name, None, where):
            both = part if best is None else pa.concat_tables([best, part])
            best = both.take(pc.select_k_unstable(both, count, sort_keys=[(by, "descending")]))
        return best.to_pylist() if best is not None else []

    def parts(self, name: str, columns: Sequence[str] | None, where: Any) -> Iterator[pa.Table]:
        """A large table, or some columns and rows of it, part by part; nothing if there is no such table."""
        table = self._dataset(name)
        if table is not None:
            with self._clear_errors(name):
                ahead = {"batch_readahead": 2, "fragment_readahead": 1}
                for batch in table.to_batches(columns=columns and list(columns), filter=where, **ahead):
                    if batch.num_rows:
                        yield pa.Table.from_batches([batch])

    def _table(self, name: str, columns: Sequence[str] = (), where: Any = None) -> pa.Table | None:
        table = self._dataset(name)
        if table is None:
            return None
        with self._clear_errors(name):
            return table.to_table(columns=self._known(name, columns), filter=where)

    def _known(self, name: str, columns: Sequence[str]) -> list[str] | None:
        """Those that the table has: others may come from a newer version."""
        names = self._dataset(name).schema.names
        return [each for each in columns if each in names] if columns else None

    def _dataset(self, name: str) -> Any:
        if name not in self._open:
            path = self.folder / name
            self._open[name] = None
            if path.is_dir() and any(path.rglob("*.parquet")):
                with self._clear_errors(name):
                    # A lane's folder may look like a number.
                    lanes = ds.partitioning(pa.schema([("lane", pa.string())]), flavor="hive")
                    self._open[name] = ds.dataset(path, format="parquet", partitioning=lanes)
        return self._open[name]

    @contextlib.contextmanager
    def _clear_errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as problem:
            first = str(problem).partition("\n")[0][:300]
            raise ConfigurationError(
                f"{self.folder / name}: can't be read ({first}): run `dispatcher pipeline run` again"
            ) from None


@contextlib.contextmanager
def open_report(folder: Path) -> Iterator[Source]:
    """A finished report, which no run replaces meanwhile. Raises ConfigurationError."""
    with contextlib.ExitStack() as held:
        with contextlib.suppress(FileNotFoundError, PermissionError, NotADirectoryError):  # a copy, perhaps
            lock = held.enter_context((folder / LOCK).open())
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigurationError(
                    f"{folder}: a run writes its report there: wait until it has ended"
                ) from None
        yield Source(folder, _summary(folder))


def _summary(folder: Path) -> ReportRow:
    refuse_newer(folder)
    try:
        found = json.loads((folder / SUMMARY).read_bytes())
    except FileNotFoundError:
        whole = "the run that wrote it did not end" if folder.is_dir() else "there is no such directory"
        raise ConfigurationError(
            f"{folder}: is no whole report ({whole}): make one with `dispatcher pipeline run`"
        ) from None
    except (OSError, ValueError) as problem:
        raise ConfigurationError(f"{folder / SUMMARY}: can't be read: {problem}") from None
    lacking = [name for name in _NEEDED if not (folder / name).is_dir()]
    if lacking:
        raise ConfigurationError(
            f"{folder}: has no table {lacking[0]}: it was made by another version; run the pipeline again"
        )
    if not isinstance(found, dict) or not {"verdict", "lanes", "ledger"} <= found.keys():
        raise ConfigurationError(f"{folder / SUMMARY}: is not the summary of a report")
    return found


def judged(facts: ReportRow) -> str:
    """The verdict of a lane or of the whole ledger: kept, violated, unknown, or nothing, where no group was
    handed over. `facts` has `verdict` and the numbers of `groups`."""
    if facts["verdict"] == "kept" and not facts["groups"]["kept"]:
        return "nothing"
    return str(facts["verdict"])


def equals(column: str, value: Any) -> Any:
    """A condition for `where`."""
    return pc.field(column) == value
