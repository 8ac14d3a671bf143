"""A stream's folder is one stream's, of one ledger; what a kill has left half done is finished, or goes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from dispatcher.cli import app
from dispatcher.errors import ConfigurationError
from dispatcher.pipeline.live_folder import ALERTS, IDENTITY, live_folder

LEDGER = "file:///ledger"


def refusal(path: Path, checkpoint: Path | None = None, ledger: str = LEDGER) -> str:
    with pytest.raises(ConfigurationError) as refused, live_folder(path, checkpoint, ledger):
        pass
    (problem,) = refused.value.problems
    return problem


def written(path: Path, *numbers: int, checkpoint: Path | None = None) -> None:
    with live_folder(path, checkpoint, LEDGER) as folder:
        for number in numbers:
            (folder.begin(number) / ALERTS).write_text(f"alerts of {number}")
            folder.commit(number)


def test_a_folder_is_one_streams_of_one_ledger(tmp_path: Path) -> None:
    live = tmp_path / "live"
    written(live, 0)
    with live_folder(live, None, LEDGER):
        assert "another stream writes there" in refusal(live)
    assert "is the stream of file:///ledger, not of file:///other" in refusal(live, ledger="file:///other")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.txt").write_text("years of work")
    assert "has other things in it (thesis.txt)" in refusal(tmp_path / "thesis")
    assert "can't be written to" in refusal(tmp_path / "thesis" / "thesis.txt")


def test_tables_and_checkpoint_belong_together(tmp_path: Path) -> None:
    one, other, checkpoint = tmp_path / "one", tmp_path / "other", tmp_path / "checkpoint"
    written(one, 0, checkpoint=checkpoint)
    written(one, 1, checkpoint=checkpoint)
    assert "is not the checkpoint of the tables" in refusal(one)
    assert "is not the checkpoint of the tables" in refusal(other, checkpoint)
    (tmp_path / "sparks").mkdir()
    (tmp_path / "sparks" / "offsets").mkdir()
    assert "is no checkpoint of a stream" in refusal(tmp_path / "third", tmp_path / "sparks")
    shutil.rmtree(checkpoint)
    assert "is not the checkpoint of the tables" in refusal(one, checkpoint)


def test_what_another_version_made_is_refused(tmp_path: Path) -> None:
    written(tmp_path, 0)
    for folder in (tmp_path, tmp_path / "checkpoint"):
        identity = json.loads((folder / IDENTITY).read_text()) | {"version": 2}
        (folder / IDENTITY).write_text(json.dumps(identity))
    assert "was made by version 2 of the stream, and this is 1" in refusal(tmp_path)
    (tmp_path / IDENTITY).write_text("{")
    assert f"{IDENTITY}: can't be read" in refusal(tmp_path)


def test_a_batch_is_there_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    written(tmp_path, *range(5))
    assert [each.name for each in sorted((tmp_path / "batches").iterdir())] == [
        f"{number:012d}" for number in (2, 3, 4)
    ]
    assert len(list((tmp_path / "alerts").iterdir())) == 5
    with live_folder(tmp_path, None, LEDGER) as folder:
        assert folder.last == 4
        (folder.begin(5) / ALERTS).write_text("half")
    with live_folder(tmp_path, None, LEDGER) as folder:
        assert folder.last == 4
        assert not list(folder.begin(5).iterdir())
        (folder.begin(5) / ALERTS).write_text("alerts of 5")
    # Killed after the rename: it is whole, and not shown.
    (tmp_path / "batches" / ".000000000005").rename(tmp_path / "batches" / "000000000005")
    with live_folder(tmp_path, None, LEDGER) as folder:
        assert folder.last == 5
        assert not folder.is_told(5)
        folder.told(5)
        assert folder.is_told(5)
    assert (tmp_path / "current" / ALERTS).read_text() == "alerts of 5"
    assert (tmp_path / "alerts" / "000000000005.parquet").read_text() == "alerts of 5"


def test_alerts_outlive_a_batch_that_was_killed(tmp_path: Path) -> None:
    def raised(at: int, *names: str) -> pa.Table:
        return pa.table({"id": names, "raised_at": [at] * len(names)})

    with live_folder(tmp_path, None, LEDGER) as folder:
        folder.begin(0)
        assert folder.raise_alerts(0, raised(1, "a")) == raised(1, "a")
    with live_folder(tmp_path, None, LEDGER) as folder:
        folder.begin(0)
        both = pa.concat_tables([raised(1, "a"), raised(2, "b")])
        assert folder.raise_alerts(0, raised(2, "b", "a")) == both
        folder.commit(0)
        assert folder.raise_alerts(1, raised(3)) == raised(3)
        folder.begin(1)
        folder.commit(1)
    assert pq.read_table(tmp_path / "alerts" / "000000000000.parquet") == both
    assert sorted(each.name for each in (tmp_path / "alerts").iterdir()) == ["000000000000.parquet"]
    assert not list((tmp_path / "batches").glob(".*"))


def test_bad_options_are_refused_in_a_line(tmp_path: Path) -> None:
    def said(*options: str) -> str:
        command = [
            "pipeline",
            "stream",
            "--input",
            str(tmp_path / "none"),
            "--output",
            str(tmp_path / "live"),
        ]
        result = CliRunner().invoke(app, [*command, *options])
        assert result.exit_code in (1, 2)
        assert "Traceback" not in result.output
        return " ".join(result.output.replace("│", " ").split())

    assert "there is no such directory" in said()
    for option in ("--trigger", "--forget-after", "--keep"):
        assert "must be above 0" in said(option, "0")
    assert "a duration such as 500ms" in said("--trigger", "soon")
    assert "greater than or equal to 1" in said("--batch-files", "0")
    assert not (tmp_path / "live").exists()
