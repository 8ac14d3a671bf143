"""The files of a ledger: which can be read, which can't, and why, told by their names and footers alone."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from types import MappingProxyType
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from dispatcher.errors import ConfigurationError
from dispatcher.ledger.schema import COLUMNS, FILE_SUFFIX, METADATA_PREFIX, SCHEMA_VERSION, ColumnKind, Event

#: How many footers are read at a time: an object store takes tens of milliseconds for each.
_READERS: Final = 16
_FOLDERS: Final = re.compile(r"(?:.*/)?lane=([^/]*)/date=([0-9]{4}-[0-9]{2}-[0-9]{2})/[^/]*")
NAME: Final = re.compile(r"(([0-9]+)-[0-9a-f]{8})-([0-9]{12,})")
_TYPES: Final = {
    ColumnKind.INSTANT: pa.timestamp("us", tz="UTC"),
    ColumnKind.INTEGER: pa.int64(),
    ColumnKind.SMALL: pa.int32(),
    ColumnKind.TEXT: pa.string(),
    ColumnKind.BYTES: pa.binary(),
}
_KINDS: Final = {column.name: column.kind for column in COLUMNS}


class LedgerFile(NamedTuple):
    """A whole file: records `first` to `last` of one writer, and over what times (µs) they reach."""

    path: str
    folder: str  # the lane that its folder names
    lane: str
    writer: str
    lane_epoch: int
    first: int
    last: int
    first_us: int = 0
    last_us: int = 0
    epoch_max: int = 0  # of the groups' epochs; 0: it has none

    @property
    def date(self) -> str:
        """As its folder has it."""
        return self.path.rsplit("/", 2)[-2].removeprefix("date=")


class BadFile(NamedTuple):
    """A file that is not read. `writer`, `lane_epoch` and `first` are those of its name, if it has the form
    of one of the ledger's."""

    path: str
    lane: str | None
    problem: str
    writer: str | None
    lane_epoch: int | None
    first: int | None


#: Of a file: its size, and when it was written (ns).
Stamp = tuple[int, int]


class Found(NamedTuple):
    """The contents of a ledger's folder. `remarks` are about files that are read all the same."""

    root: str
    files: list[LedgerFile]
    bad: list[BadFile]
    remarks: list[str]
    stamps: Mapping[str, Stamp] = MappingProxyType({})

    def of_dates(self, dates: Collection[str]) -> Found:
        """With no other files than these dates'."""
        return self._replace(files=[file for file in self.files if file.date in dates])


def find_files(
    path: str,
    first_day: date | None = None,
    last_day: date | None = None,
    known: Mapping[str, tuple[Stamp, LedgerFile]] = MappingProxyType({}),
) -> Found:
    """Judge all files whose folders are of these days, both included; those that are `known`, by their paths,
    and have not changed since are not opened.

    Raises ConfigurationError when there is no such place, or nothing in it that could be read.
    """
    store, root = open_ledger(path)
    try:
        listed = store.get_file_info(fs.FileSelector(root, recursive=True))
    except OSError as problem:
        raise ConfigurationError(f"{path}: can't be read: {str(problem).splitlines()[0]}") from None
    stamps = {
        info.path: (info.size, info.mtime_ns or 0) for info in listed
        if info.type is fs.FileType.File and not info.base_name.startswith((".", "_"))
        and _is_within(info.path, first_day, last_day)
    }  # fmt: skip
    if not stamps:
        days = " of these days" if first_day or last_day else ""
        raise ConfigurationError(
            f"{path}: has no files of a ledger{days} (`lane=…/date=…/*{FILE_SUFFIX}`); "
            "`ledger.path` of the dispatcher's configuration says where it writes them"
        )

    def judged_now(path: str) -> LedgerFile | BadFile:
        stamp, file = known.get(path, (None, None))
        return file if file is not None and stamp == stamps[path] else judge(store, path)

    with ThreadPoolExecutor(_READERS) as readers:
        judged = list(readers.map(judged_now, sorted(stamps)))
    files = [each for each in judged if isinstance(each, LedgerFile)]
    bad = [each for each in judged if isinstance(each, BadFile)]
    if not files:
        raise ConfigurationError([f"{each.path}: {each.problem}" for each in bad[:10]] + [
            f"{path}: none of its {len(bad):,} files can be read"
        ])  # fmt: skip
    return Found(root, files, bad, list(_remarks(files)), stamps)


def open_ledger(path: str) -> tuple[fs.FileSystem, str]:
    """The file system and the folder that a path or URL names. Raises ConfigurationError."""
    try:
        if "://" in path:
            store, root = fs.FileSystem.from_uri(path)
        else:
            store, root = fs.LocalFileSystem(), path
        kind = store.get_file_info(root).type
    except (OSError, ValueError, pa.ArrowException) as problem:
        raise ConfigurationError(f"{path}: {str(problem).splitlines()[0]}") from None
    if kind is fs.FileType.NotFound:
        raise ConfigurationError(f"{path}: there is no such directory; name the one that `ledger.path` names")
    if kind is not fs.FileType.Directory:
        raise ConfigurationError(f"{path}: is no directory; name the one that has the folders `lane=…`")
    return store, root


def _is_within(path: str, first_day: date | None, last_day: date | None) -> bool:
    folders = _FOLDERS.fullmatch(path)
    if folders is None:
        return True  # not ours; told, whatever its day
    try:
        day = date.fromisoformat(folders[2])
    except ValueError:
        return True
    return (first_day is None or day >= first_day) and (last_day is None or day <= last_day)


def judge(store: fs.FileSystem, path: str) -> LedgerFile | BadFile:
    """What a file is, told by its name and its footer."""
    base, folders = path.rsplit("/", 1)[-1], _FOLDERS.fullmatch(path)
    name = NAME.fullmatch(base.removesuffix(FILE_SUFFIX))
    folder = unquote(folders[1]) if folders else None

    def bad(problem: str) -> BadFile:
        if name is None or folder is None:
            return BadFile(path, folder, problem, None, None, None)
        return BadFile(path, folder, problem, name[1], int(name[2]), int(name[3]))

    if folder is None or not base.endswith(FILE_SUFFIX):
        return bad("is no file of a ledger, and left out")
    try:
        with store.open_input_file(path) as file:
            if file.size() == 0:
                return bad("is empty: its records are missing")
            footer = pq.ParquetFile(file)
            problem = _why_not(footer.schema_arrow, footer.metadata.num_rows)
            return bad(problem) if problem else _read_footer(path, folder, footer)
    except (OSError, pa.ArrowException) as problem:
        return bad(f"is truncated or no Parquet file: {str(problem).splitlines()[0][:120]}")


def _facts(schema: pa.Schema) -> dict[str, str]:
    metadata = schema.metadata or {}
    return {
        key.decode(errors="replace").removeprefix(METADATA_PREFIX): value.decode(errors="replace")
        for key, value in metadata.items()
        if key.startswith(METADATA_PREFIX.encode())
    }


def _read_footer(path: str, folder: str, footer: pq.ParquetFile) -> LedgerFile:
    facts = _facts(footer.schema_arrow)
    times, epochs = _bounds(footer, "time"), _bounds(footer, "epoch")
    return LedgerFile(
        path, folder, facts["lane"], facts["writer"], int(facts["lane_epoch"]), int(facts["first_ordinal"]),
        int(facts["last_ordinal"]), times[0], times[1], epochs[1],
    )  # fmt: skip


def _bounds(file: pq.ParquetFile, column: str) -> tuple[int, int]:
    """The least and the largest value, by the footer's statistics if it has them; 0 where all are null."""
    names, metadata = file.metadata.schema.names, file.metadata
    if column not in names:
        return 0, 0
    chunks = [metadata.row_group(n).column(names.index(column)) for n in range(metadata.num_row_groups)]
    known = [each.statistics for each in chunks if each.is_stats_set]
    if len(known) < len(chunks) or any(not each.has_min_max and each.num_values for each in known):
        found = pc.min_max(file.read([column]).column(0).cast(pa.int64())).as_py()
        return found["min"] or 0, found["max"] or 0
    bounds = [bound for each in known if each.has_min_max for bound in (each.min_raw, each.max_raw)]
    return min(bounds, default=0), max(bounds, default=0)


def _why_not(schema: pa.Schema, rows: int) -> str:
    """Why a file with this footer can't be read; empty: it can."""
    facts = _facts(schema)
    version = facts.get("schema_version", "")
    if not version.isdecimal():
        return "is a foreign Parquet file without a ledger's metadata, and left out"
    if int(version) > SCHEMA_VERSION:
        return f"has schema version {version}, newer than {SCHEMA_VERSION}: update the dispatcher to read it"
    wanted = {"lane", "writer", "lane_epoch", "first_ordinal", "last_ordinal"}
    if missing := sorted(wanted - facts.keys()):
        return f"lacks {', '.join(missing)} in its metadata"
    try:
        counted = int(facts["last_ordinal"]) - int(facts["first_ordinal"]) + 1
        int(facts["lane_epoch"])
    except ValueError:
        return "has metadata that are no numbers"
    if counted != rows:
        return f"holds {rows:,} records where its metadata say {counted:,}"
    wrong = [field.name for field in schema if field.name in _KINDS and not _fits(field)]
    lacks = sorted({"ordinal", "time", "event", "writer"} - set(schema.names))
    return f"has columns that are not the ledger's: {', '.join(wrong + lacks)}" if wrong or lacks else ""


def _fits(field: Any) -> bool:
    kind: pa.DataType = field.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(kind == _TYPES[_KINDS[field.name]])


def _remarks(files: list[LedgerFile]) -> Iterator[str]:
    """Remarks about strange files that do no harm."""
    renamed = {(each.folder, each.lane): each for each in files if each.folder != each.lane}
    for folder, lane in sorted(renamed):
        count = sum((each.folder, each.lane) == (folder, lane) for each in files)
        yield f"the folder of lane {folder} has files of lane {lane} ({count:,}): counted as that one's"


def first_end(path: str, files: list[LedgerFile]) -> int | None:
    """When the first event happened that these files of a writer tell of, in their order, in µs. A record of
    a hand-over that has not ended has the time at which it began."""
    store, _ = open_ledger(path)
    for file in sorted(files, key=lambda file: file.first):
        table = pq.read_table(file.path, columns=["time", "event"], filesystem=store, partitioning=None)
        is_begun = pc.is_in(table["event"], pa.array([Event.DISPATCHED, Event.RECEIVED]))
        times = table["time"].filter(pc.invert(is_begun))
        if len(times):
            return int(pc.min(times.cast(pa.int64())).as_py())
    return None
