"""The change history of a git repository, as change-data-capture of its tree.

Along the first-parent history, oldest commit first, one change per file: the row is the path, its value
mode and object id. Everything is read with git's plumbing output, in which paths may hold any byte.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dispatcher.demo.workload import RowChange, Workload, repeated
from dispatcher.errors import DispatcherError

#: Of the environment, what would make git look at another repository than the one that is meant.
_NOT_INHERITED: Final = (
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_NAMESPACE",
)
#: Whatever the user has configured: every change of a file, and nothing but that.
_LOG_OPTIONS: Final = (
    "--first-parent", "-m", "--root", "--reverse", "--raw", "-z", "--no-abbrev", "--no-renames",
    "--no-ext-diff", "--no-textconv", "--no-show-signature", "--ignore-submodules=none", "-O/dev/null",
    "--format=%H",
)  # fmt: skip


class NoHistory(DispatcherError):
    """There is no history to replay; the text says why."""


@dataclass(frozen=True, slots=True)
class GitHistory:
    """Everything that happened to the files up to one commit."""

    commit: str
    commits: int
    changes: list[RowChange]


def read_workload(repository: Path, minimum: int) -> Workload:
    """The history of `repository` up to HEAD, repeated when it has fewer changes than `minimum`.

    The rows to be reached come from `git ls-tree -r` of that commit. Raises NoHistory.
    """
    history = read_history(repository)
    try:
        changes, times = repeated(history.changes, minimum)
    except ValueError as error:  # grafts can make a history that isn't one
        raise NoHistory(f"{repository}: {error}") from None
    title = f"{len(history.changes):,} changes of files in {history.commits:,} commits of {repository}"
    if times > 1:
        title += f", which is little: replayed {times} times, all files being deleted in between"
    source = f"git ls-tree -r {history.commit[:12]}"
    return Workload(title, source, changes, read_tree(repository, history.commit))


def read_history(repository: Path) -> GitHistory:
    """Raises NoHistory when there is none, or only a part of it (a shallow clone)."""
    if shutil.which("git") is None:
        raise NoHistory("git is not installed")
    if _git(repository, "rev-parse", "--is-shallow-repository").strip() == b"true":
        raise NoHistory(f"{repository} is a shallow clone; `git fetch --unshallow` gets its history")
    commit = _git(repository, "rev-parse", "--verify", "HEAD^{commit}").decode().strip()
    log = _git(repository, "log", *_LOG_OPTIONS, commit)
    commits = 0
    changes = []
    for change in _changes(log):
        if change is None:
            commits += 1
        else:
            changes.append(change)
    if not changes:
        raise NoHistory(f"the history of {repository} changes no file")
    return GitHistory(commit, commits, changes)


def read_tree(repository: Path, commit: str) -> dict[bytes, bytes]:
    """Mode and object id of every path of a commit."""
    rows = {}
    for entry in _git(repository, "ls-tree", "-r", "-z", "--full-tree", commit).split(b"\0"):
        if entry:
            about, _, path = entry.partition(b"\t")
            mode, _, object_id = about.split(b" ")
            rows[path] = mode + b" " + object_id
    return rows


def _changes(log: bytes) -> Iterator[RowChange | None]:
    """The changes in `git log --raw -z`; None at the begin of each commit.

    Each commit is its id; each change is a field `:modes ids status`, then a field with the path.
    """
    fields = iter(log.split(b"\0"))
    for field in fields:
        field = field.lstrip(b"\n")
        if field.startswith(b":"):
            old_mode, new_mode, old_id, new_id, _ = field[1:].split(b" ")
            path = next(fields)
            yield RowChange(path, path, _row(old_mode, old_id), _row(new_mode, new_id))
        elif field:
            yield None


def _row(mode: bytes, object_id: bytes) -> bytes:
    return mode + b" " + object_id if object_id.strip(b"0") else b""


def _git(repository: Path, *arguments: str) -> bytes:
    environment = {key: value for key, value in os.environ.items() if key not in _NOT_INHERITED}
    command = ["git", "--no-replace-objects", "-C", str(repository), *arguments]
    result = subprocess.run(
        command, env={**environment, "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"},
        stdin=subprocess.DEVNULL, capture_output=True, check=False,
    )  # fmt: skip
    if result.returncode:
        why = result.stderr.decode(errors="replace").strip().partition("\n")[0]
        raise NoHistory(f"{repository}: {why.removeprefix('fatal: ') or 'git failed'}")
    return result.stdout
