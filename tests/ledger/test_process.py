"""The ledger of a dispatcher that runs as a process: its death, its metrics, and how it is tried out."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from dispatcher.cli import app
from tests.ledger import reading
from tests.service.conftest import Starter
from tests.service.harness import ROOT, Bench, lane
from tests.waiting import eventually, wait_until

PROGRAM = "from dispatcher.cli import main; main()"


async def test_a_killed_leader_leaves_no_end_and_the_next_one_names_it(
    bench: Bench, dispatcher_process: Starter, tmp_path: Path
) -> None:
    folder = tmp_path / "ledger"
    changes = {"ledger": {"path": str(folder), "file_age": "100ms"}}
    first = dispatcher_process("one", changes=changes, orders=lane())
    first.ready()
    consumer = await bench.joined("c1", hold=True)
    client = await bench.client()
    for number in range(3):
        client.send("in", b"%d" % number, "g")
    await consumer.has(3)
    await eventually(
        lambda: len(reading.records(folder, "dispatched")) == 3, what="all that is in hand to be told"
    )
    first.kill9()
    second = dispatcher_process("two", changes=changes, orders=lane())
    await asyncio.to_thread(second.ready)
    consumer.release()
    await eventually(lambda: len(reading.records(folder, "settled")) == 3, what="the settles")
    metric = 'dispatcher_ledger_records_total{lane="orders"}'
    numbers = dict(line.rsplit(" ", 1) for line in second.get("/metrics")[1].splitlines() if line[0] != "#")
    assert float(numbers[metric]) > 0
    assert float(numbers[metric.replace("_total", "_dropped_total")]) == 0
    assert second.terminate()[0] == 0
    former, latter = reading.records(folder, "lane_started")
    assert json.loads(latter["detail"])["former_epoch"] == former["lane_epoch"]
    ended = reading.one(reading.records(folder, "lane_ended"))
    assert (ended["writer"], ended["reason"]) == (latter["writer"], None)
    key = ("incarnation", "seq", "arrival_epoch", "arrival")
    of_former = [r for r in reading.records(folder, "dispatched") if r["writer"] == former["writer"]]
    settled = reading.records(folder, "settled")
    assert [[r[k] for k in key] for r in of_former] == [[r[k] for k in key] for r in settled]


def test_check_and_run_say_what_is_missing(dispatcher_process: Starter, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    changes = {"ledger": {"path": str(tmp_path / "file" / "ledger")}}
    process = dispatcher_process("one", changes=changes, orders=lane())
    assert process.exited() == 1
    line = f"ledger.path: can't write to {tmp_path}/file/ledger: Not a directory"
    assert f"dispatcher: {line}" in process.log()
    result = CliRunner().invoke(app, ["check", "-c", str(process.config)])
    assert line in result.output.replace("\n", " ")
    without = f"import sys; sys.modules['pyarrow'] = None; {PROGRAM}"
    checked = subprocess.run(
        [sys.executable, "-c", without, "check", "-c", process.config],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    line = "ledger: needs pyarrow, which is not installed: pip install 'rabbitmq-group-dispatcher[ledger]'"
    assert line in checked.stdout.replace("\n", " ")


def test_a_ledger_that_can_be_written_to_is_fine(dispatcher_process: Starter, tmp_path: Path) -> None:
    changes = {"ledger": {"path": str(tmp_path / "ledger")}}
    process = dispatcher_process("one", changes=changes, orders=lane())
    process.ready()
    result = CliRunner().invoke(app, ["check", "-c", str(process.config)])
    assert f"ledger: can be written to {tmp_path}/ledger" in result.output
    wait_until(lambda: process.logged("lane_led"))
    assert process.terminate()[0] == 0
    found = reading.records(tmp_path / "ledger")
    assert (found[0]["event"], found[-1]["event"]) == ("lane_started", "lane_ended")
