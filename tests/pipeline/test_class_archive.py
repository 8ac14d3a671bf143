"""Spark's classes are kept in a file for later starts; what is in its way costs the file, never a start."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pyspark
import pytest

from dispatcher.nodes.java import ensure_java
from dispatcher.pipeline.class_archive import class_archive

(ARCHIVE,) = Path(pyspark.__file__).parent.glob("jars/scala-library-*.jar")
#: A small program in one of Spark's archives: Java takes seconds to keep what Spark loads at its start.
PROGRAM = "scala.util.Properties"
SOME = ("-cp", f"{ARCHIVE}", PROGRAM)
#: Java makes no file for a list of archives that has a folder with something in it.
NONE = ("-cp", f"{ARCHIVE.parent}:{ARCHIVE}", PROGRAM)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's."""
    ensure_java(print)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "rabbitmq-group-dispatcher"


def java(options: str, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    program = Path(os.environ["JAVA_HOME"], "bin/java") if "JAVA_HOME" in os.environ else "java"
    command = [program, *shlex.split(options), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def start(arguments: Sequence[str] = SOME) -> str:
    """Of Java, until it ends; returns what it was told."""
    with class_archive(is_of_use=True, may_make=True) as archive:
        process = java(archive.options, arguments)
        with archive.kept(process):
            process.communicate()
    return archive.options.partition("=")[0]


def told(*, may_make: bool = True) -> str:
    """What the next start of Java would be told."""
    with class_archive(is_of_use=True, may_make=may_make) as archive:
        return archive.options.partition("=")[0]


def test_the_second_start_makes_the_file_and_later_ones_use_it(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told(may_make=False) == ""
    assert not cache.exists(), "only a run makes it"
    assert [told(), start(), told()] == ["", "-XX:ArchiveClassesAtExit", "-XX:SharedArchiveFile"]
    assert [line.partition(":")[0] for line in capsys.readouterr().err.splitlines()] == [
        "keeping Spark classes for later starts"
    ]
    (file,) = cache.glob("*.jsa")
    with class_archive(is_of_use=True, may_make=False) as archive:
        assert archive.options == f"-XX:SharedArchiveFile={file}"
    loaded = java(f"{archive.options} -Xlog:class+load", SOME).communicate()[0].decode()
    assert f"{PROGRAM} source: shared objects file (top)" in loaded
    with class_archive(is_of_use=False, may_make=True) as archive:
        assert archive.options == "", "Java is there"


def test_of_two_at_once_one_makes_it(cache: Path) -> None:
    told()
    with (
        class_archive(is_of_use=True, may_make=True) as one,
        class_archive(is_of_use=True, may_make=True) as two,
    ):
        assert one.options.startswith("-XX:ArchiveClassesAtExit=")
        assert two.options == ""
    assert not list(cache.glob("*.jsa"))


def test_what_java_could_not_make_is_not_tried_again(cache: Path) -> None:
    assert [told(), start(NONE), told()] == ["", "-XX:ArchiveClassesAtExit", ""]
    (file,) = cache.glob("*.jsa")
    assert file.stat().st_size == 0


def test_a_java_that_was_killed_says_nothing_of_the_file(cache: Path) -> None:
    told()
    with class_archive(is_of_use=True, may_make=True) as archive:
        process = java(archive.options, SOME)
        process.kill()
        process.communicate()
        with archive.kept(process):
            pass
    assert not list(cache.glob("*.jsa"))
    assert told() == "-XX:ArchiveClassesAtExit"


@pytest.mark.parametrize("name", ["SPARK_HOME", "SPARK_CONF_DIR", "HADOOP_CONF_DIR"])
def test_another_list_of_archives_has_no_file(
    name: str, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    monkeypatch.setenv(name, "/opt")
    assert [told(), told()] == ["", ""]
    assert not cache.exists()


def test_without_a_place_or_with_another_java_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told()
    for place in "/dev/null", str(tmp_path / "a:b"), str(tmp_path / "a b"):
        monkeypatch.setenv("XDG_CACHE_HOME", place)
        with class_archive(is_of_use=True, may_make=True) as archive:
            assert archive.options == ""
    (tmp_path / "java" / "bin").mkdir(parents=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    with class_archive(is_of_use=True, may_make=True) as archive:
        assert archive.options == ""


def test_files_that_no_start_used_for_long_are_removed(cache: Path) -> None:
    told()
    old, recent = cache / "spark-old.jsa", cache / "spark-recent.jsa"
    for file in old, recent:
        file.touch()
    os.utime(old, (0, 0))
    with class_archive(is_of_use=True, may_make=True):
        pass
    assert not old.exists()
    assert recent.exists()
