"""Where the files are: a directory, or whatever `pyarrow.fs` reaches by a URL.

A file is written under a dotted name and renamed, so that readers see whole ones only. A store that has no
rename shows an object when all of it is there.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from typing import BinaryIO, Final, NamedTuple
from urllib.parse import quote

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from dispatcher.errors import ConfigurationError
from dispatcher.ledger.schema import COLUMNS, FILE_SUFFIX, METADATA_PREFIX, ColumnKind

#: The distinct values of these are few, or come in runs.
_DICTIONARY: Final = [column.name for column in COLUMNS if column.kind is ColumnKind.TEXT]
#: These rise slowly.
_DELTAS: Final = {
    column.name: "DELTA_BINARY_PACKED"
    for column in COLUMNS
    if column.kind in (ColumnKind.INSTANT, ColumnKind.INTEGER) and column.name != "lane_epoch"
}
#: Object stores: a name may have slashes in it, and that is all.
_WITHOUT_FOLDERS: Final = {"s3", "gcs", "abfs"}
#: What the store or the disk answers when something is wrong.
FAILURES: Final = (OSError, pa.ArrowException)


class StoredFile(NamedTuple):
    """A file of the ledger as the store lists it."""

    path: str
    size: int
    written_at_s: float
    is_whole: bool  # else a dotted one, which a crash may have left


class FormerFile(NamedTuple):
    """How far the ledger of a leadership goes."""

    writer: str
    ordinal: int  # of its last record
    commit: int  # the last one that it tells of


class Store:
    """One ledger's place. Raises ConfigurationError for a URL that nothing can be made of; every other
    method raises one of FAILURES."""

    def __init__(self, path: str) -> None:
        try:
            if "://" in path:
                self._files, self._base = pafs.FileSystem.from_uri(path)
            else:
                self._files, self._base = pafs.LocalFileSystem(), os.path.abspath(path)
        except (*FAILURES, ValueError) as problem:
            raise ConfigurationError(f"ledger.path: {first_line(problem)}") from None
        self._is_local = isinstance(self._files, pafs.LocalFileSystem)

    def write(self, lane: str, date: str, name: str, table: pa.Table) -> int:
        """Add a whole file to that lane and day; returns its size in bytes."""
        sink = pa.BufferOutputStream()
        pq.write_table(
            table, sink, compression="zstd", use_dictionary=_DICTIONARY, column_encoding=_DELTAS,
            row_group_size=max(1, len(table)),
        )  # fmt: skip
        content = sink.getvalue()
        self._put(f"{self._base}/lane={quote(lane, safe='')}/date={date}", name + FILE_SUFFIX, content)
        return int(content.size)

    def _put(self, folder: str, name: str, content: pa.Buffer) -> None:
        if not self._is_local:
            if self._files.type_name not in _WITHOUT_FOLDERS:
                self._files.create_dir(folder, recursive=True)
            with self._files.open_output_stream(f"{folder}/{name}") as stream:
                stream.write(content)
            return
        hidden = f"{folder}/.{name}"
        try:
            with _created(folder, hidden) as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(hidden, f"{folder}/{name}")
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(hidden)
            raise

    def try_out(self) -> None:
        """Write something and delete it again. Raises ConfigurationError."""
        name = f".probe-{uuid.uuid4().hex}"
        try:
            self._put(self._base, name, pa.py_buffer(b"?"))
            self.delete(f"{self._base}/{name}")
        except FAILURES as problem:
            raise ConfigurationError(
                f"ledger.path: can't write to {self._base}: {first_line(problem)}"
            ) from None

    def files(self) -> list[StoredFile]:
        """Everything that a ledger has written here, of all lanes, oldest first."""
        selector = pafs.FileSelector(self._base, allow_not_found=True, recursive=True)
        found = []
        for info in self._files.get_file_info(selector):
            if info.type is pafs.FileType.File and "/lane=" in info.path and info.extension == "parquet":
                whole = not info.base_name.startswith(".")
                found.append(StoredFile(info.path, info.size, info.mtime_ns / 1e9, whole))
        return sorted(found, key=lambda file: (file.written_at_s, file.path))

    def last_ordinal(self, writer: str) -> int:
        """Of this writer's records here; 0: there are none."""
        names = [file.path for file in self.files() if file.is_whole and f"/{writer}-" in file.path]
        if not names:
            return 0
        told = self._metadata(max(names, key=lambda path: path.rpartition("/")[2]))
        return int(told[f"{METADATA_PREFIX}last_ordinal".encode()])

    def last_of(self, lane: str, lane_epoch: int) -> FormerFile | None:
        """How far the files of that leadership go; None: it has none here, or two writers were it."""
        folder = f"{self._base}/lane={quote(lane, safe='')}"
        days = self._files.get_file_info(pafs.FileSelector(folder, allow_not_found=True))
        for day in sorted((day.path for day in days), reverse=True):
            listed = self._files.get_file_info(pafs.FileSelector(day, allow_not_found=True))
            names = [file.base_name for file in listed if file.base_name.startswith(f"{lane_epoch}-")]
            if not names:
                continue
            told = self._metadata(f"{day}/{max(names)}")
            writer, ordinal, commit = (
                told.get(f"{METADATA_PREFIX}{name}".encode(), b"0").decode()
                for name in ("writer", "last_ordinal", "last_commit")
            )
            is_one = all(name.startswith(f"{writer}-") for name in names)
            return FormerFile(writer, int(ordinal), int(commit)) if is_one and int(commit) else None
        return None

    def _metadata(self, path: str) -> dict[bytes, bytes]:
        """A file's own, which names its writer and how far it goes."""
        with self._files.open_input_file(path) as file:
            metadata: dict[bytes, bytes] = pq.read_schema(file).metadata
        return metadata

    def delete(self, path: str) -> None:
        """Delete a file; another dispatcher may have done it before. An empty day's folder goes too."""
        with contextlib.suppress(FileNotFoundError):
            self._files.delete_file(path)
        if self._is_local and "/date=" in path:
            with contextlib.suppress(OSError):
                os.rmdir(os.path.dirname(path))


def _created(folder: str, hidden: str) -> BinaryIO:
    """A new file in a folder that another dispatcher may delete at this moment because it is empty."""
    os.makedirs(folder, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        return open(hidden, "wb")
    os.makedirs(folder, exist_ok=True)
    return open(hidden, "wb")


def first_line(problem: BaseException) -> str:
    """What a store said, on one line."""
    if isinstance(problem, OSError) and problem.strerror:
        return problem.strerror
    text = str(problem).strip()
    return text.splitlines()[0] if text else type(problem).__name__
