"""The change history of a git repository: every change, in order, whatever the files are called."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dispatcher.demo.git_history import NoHistory, read_history, read_tree, read_workload
from dispatcher.demo.workload import RowChange, replayed
from tests.demo.repository import Repository

ODD_NAMES = (
    b"with space", b"tab\there", b"new\nline", b"\nfirst", b'quote"s', b"back\\slash", b":100644 000000",
    b"-dash", b"caf\xc3\xa9", b"not utf-8 \xff\xfe", b"deep/er/still", b"*?[a]", b"0" * 40,
)  # fmt: skip


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repository")


def _check(repository: Repository) -> list[RowChange]:
    """The changes, after a look whether they lead to the tree of HEAD."""
    history = read_history(repository.path)
    assert replayed(history.changes) == read_tree(repository.path, "HEAD")
    return history.changes


def test_odd_file_names_arrive_byte_for_byte(repository: Repository) -> None:
    for name in ODD_NAMES:
        repository.write(name, "one")
    repository.commit()
    for name in ODD_NAMES:
        repository.write(name, "two")
    repository.commit()
    changes = _check(repository)
    assert {change.group for change in changes} == set(ODD_NAMES)
    assert len(changes) == 2 * len(ODD_NAMES)


def test_each_change_names_what_was_there_before(repository: Repository) -> None:
    for text in ("one", "two", "three"):
        repository.write(b"file", text)
        repository.commit()
    first, second, third = _check(repository)
    assert first.old == b""
    assert second.old == first.new
    assert third.old == second.new
    assert first.new.startswith(b"100644 ")


def test_deletions_mode_changes_and_links(repository: Repository) -> None:
    repository.write(b"gone", "x")
    repository.write(b"script", "#!/bin/sh\n")
    repository.write(b"becomes a link", "x")
    repository.commit()
    os.unlink(repository.path / "gone")
    os.chmod(repository.path / "script", 0o755)
    os.unlink(repository.path / "becomes a link")
    os.symlink("script", repository.path / "becomes a link")
    repository.commit()
    later = {change.key: change for change in _check(repository)[3:]}
    assert later[b"gone"].new == b""
    script = later[b"script"]
    assert script.old.replace(b"100644", b"100755") == script.new
    assert later[b"becomes a link"].new.startswith(b"120000 ")


def test_a_renamed_file_is_one_deleted_and_one_new(repository: Repository) -> None:
    repository.git("config", "diff.renames", "copies")
    repository.write(b"before", "the same text\n" * 20)
    repository.commit()
    repository.git("mv", "before", "after")
    repository.commit()
    changes = {(change.key, bool(change.old), bool(change.new)) for change in _check(repository)}
    assert changes == {(b"before", False, True), (b"before", True, False), (b"after", False, True)}


def test_a_merge_is_what_it_changed_for_its_first_parent(repository: Repository) -> None:
    repository.write(b"main", "one")
    repository.commit()
    repository.git("checkout", "-q", "-b", "side")
    for text in ("one", "two"):
        repository.write(b"side", text)
        repository.commit()
    repository.git("checkout", "-q", "main")
    repository.write(b"main", "two")
    repository.commit()
    repository.git("merge", "-q", "--no-ff", "side", "-m", "merge")
    changes = _check(repository)
    assert [change.key for change in changes] == [b"main", b"main", b"side"]
    assert read_history(repository.path).commits == 3


def test_commits_without_a_change_and_submodules(repository: Repository) -> None:
    repository.commit("empty")
    repository.git("update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},sub")
    repository.git("commit", "-q", "-m", "a submodule")
    repository.git("commit", "-q", "--allow-empty", "-m", "empty again")
    repository.git("config", "diff.ignoreSubmodules", "all")
    (change,) = _check(repository)
    assert change == RowChange(b"sub", b"sub", b"", b"160000 " + b"1" * 40)
    assert read_history(repository.path).commits == 3


def test_the_users_settings_change_nothing(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "core.quotePath": "true", "color.ui": "always", "log.showRoot": "false", "log.showSignature": "true",
        "diff.orderFile": "/nowhere", "diff.noprefix": "true", "log.date": "iso", "format.pretty": "fuller",
    }.items():  # fmt: skip
        repository.git("config", name, value)
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    repository.write(b"caf\xc3\xa9", "x")
    repository.commit()
    assert [change.key for change in _check(repository)] == [b"caf\xc3\xa9"]


def test_a_short_history_is_repeated_and_says_so(repository: Repository) -> None:
    repository.write(b"kept", "x")
    repository.write(b"gone", "x")
    repository.commit()
    os.unlink(repository.path / "gone")
    repository.commit()
    workload = read_workload(repository.path, 100)
    assert len(workload.changes) >= 100
    assert replayed(workload.changes) == workload.expected == read_tree(repository.path, "HEAD")
    assert "replayed 26 times" in workload.title
    assert "git ls-tree -r" in workload.source


def test_a_long_history_is_not_repeated(repository: Repository) -> None:
    repository.write(b"file", "x")
    repository.commit()
    workload = read_workload(repository.path, 1)
    assert len(workload.changes) == 1
    assert "replayed" not in workload.title


def test_a_shallow_clone_has_no_history(repository: Repository, tmp_path: Path) -> None:
    for text in ("one", "two"):
        repository.write(b"file", text)
        repository.commit()
    clone = tmp_path / "clone"
    repository.git("clone", "-q", "--depth", "1", f"file://{repository.path}", str(clone))
    with pytest.raises(NoHistory, match="shallow clone"):
        read_history(clone)


def test_without_history_the_reason_is_said(repository: Repository, tmp_path: Path) -> None:
    with pytest.raises(NoHistory, match="single revision"):
        read_history(repository.path)
    repository.commit("empty")
    with pytest.raises(NoHistory, match="changes no file"):
        read_history(repository.path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with pytest.raises(NoHistory, match="not a git repository"):
        read_history(elsewhere)
