"""The profile says where the dispatcher's CPU time goes: its layers exist, and cover the whole."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from bench.profile.__main__ import arguments, table
from bench.profile.layers import LAYERS, REST, by_layer, layer_of
from dispatcher.nodes import Servers

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "dispatcher"


def test_layers_are_made_of_files_that_exist() -> None:
    for parts in LAYERS.values():
        for part in parts:
            assert (PACKAGE / part).exists(), part


def test_every_file_that_a_message_passes_has_a_layer() -> None:
    hot = runpy.run_path(str(ROOT / "scripts" / "compile.py"))["HOT"]
    files = {
        str(path.relative_to(PACKAGE)) for pattern in hot for path in ROOT.glob(pattern)
    } - {"errors.py"}  # fmt: skip
    assert len(files) > 50
    assert not [file for file in files if layer_of(file) == REST]


def test_a_file_belongs_to_the_first_layer_that_names_it() -> None:
    assert layer_of("redis_store/codec.py") == "journal"
    assert layer_of("redis_store/store.py") == "Redis client"
    assert layer_of("wire/bundle.py") == "outbox and copies"
    assert layer_of("core/parking/queue.py") == "core step"
    assert layer_of("http/server.py") == layer_of("") == layer_of("core.py") == REST


def test_the_layers_together_are_the_whole() -> None:
    shares = by_layer({"core/lane.py": 2, "core/drr.py": 1, "amqp/link.py": 4, "": 1})
    assert [*shares] == [*LAYERS, REST]
    assert sum(shares.values()) == 1
    assert (shares["core step"], shares["sockets"], shares[REST]) == (3 / 8, 1 / 2, 1 / 8)


def test_an_earlier_run_stands_beside_the_new_one() -> None:
    now = {"sockets": 1.0, "core step": 6.5}
    alone = table(now, None).splitlines()
    assert alone == ["| layer | µs |", "| --- | --- |", "| sockets | 1.0 |", "| core step | 6.5 |",
                     "| together | 7.5 |"]  # fmt: skip
    both = table(now, {"sockets": 2.0, "core step": 7.0}).splitlines()
    assert both[3:] == ["| core step | 7.0 | 6.5 |", "| together | 9.0 | 7.5 |"]


def test_options_that_make_no_sense_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        arguments(["--messages", "0"])
    assert "at least 1" in capsys.readouterr().err


@pytest.mark.slow
def test_a_dispatcher_at_work_is_profiled(servers: Servers, tmp_path: Path) -> None:
    first, file = tmp_path / "first.json", tmp_path / "profile.json"
    first.write_text(json.dumps({"layers_us": {"core step": 12.0}}))
    options = ("--messages", "20000", "--json", str(file), "--before", str(first))
    ended = subprocess.run(
        [sys.executable, "-m", "bench.profile", *options],
        cwd=ROOT, env=servers.as_environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    measured = json.loads(file.read_text())
    layers = measured["layers_us"]
    assert sum(layers.values()) == pytest.approx(measured["cpu_s"] / 20_000 * 1e6)
    assert layers["core step"] > layers[REST]
    assert "| core step | 12.0 |" in ended.stdout
