"""The relay benchmark runs with one command, measures every contender, and leaves nothing behind."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bench.relay import plot
from bench.relay.__main__ import arguments, races
from bench.relay.contenders import Exclusive, Shovel
from bench.relay.meter import Meter
from bench.relay.report import Results, write_json
from bench.relay.rounds import Latency, Throughput
from bench.relay.shapes import ZIPF, Shape
from dispatcher.nodes import Management, Servers

ROOT = Path(__file__).parents[2]
CONTENDERS = (
    "dispatcher, exclusive", "dispatcher, sequenced", "dispatcher, exclusive, single copies",
    "dispatcher, sequenced, single copies", "Shovel", "Shovel, automatic acks", "naive aio-pika",
    "no relay",
)  # fmt: skip


class Ended(NamedTuple):
    pid: int
    returncode: int
    stdout: str
    stderr: str


def _bench(servers: Servers, *options: str) -> Ended:
    with subprocess.Popen(
        [sys.executable, "-m", "bench.relay", *options], cwd=ROOT, env=servers.as_environment(),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        stdout, stderr = process.communicate()
    return Ended(process.pid, process.returncode, stdout, stderr)


def _measured(servers: Servers, file: Path, *options: str) -> tuple[Ended, Any]:
    """A run that ended well, and what it wrote to this file: one round."""
    ended = _bench(servers, "--rounds", "1", *options, "--json", str(file))
    assert ended.returncode == 0, ended.stderr
    return ended, json.loads(file.read_text())


@pytest.mark.slow
def test_every_contender_is_measured(servers: Servers, tmp_path: Path) -> None:
    # More messages than the prefetch of all consumers: those that ack must do it.
    small = ("--messages", "3000", "--seconds", "1", "--rate", "200")
    ended, document = _measured(servers, tmp_path / "results.json", *small)
    rows = {row["contender"]: row for row in document["results"]}
    assert tuple(rows) == CONTENDERS
    for name in CONTENDERS[:-1]:
        assert rows[name]["messages_per_s"] > 0
        assert f"round 1: {name}:" in ended.stdout
    for name in CONTENDERS:
        assert 0 < rows[name]["p50_ms"] <= rows[name]["p99_ms"]
    assert rows["Shovel"]["to_shovel"] == rows["Shovel, automatic acks"]["to_shovel_auto"] == 1.0
    assert rows["dispatcher, exclusive"]["own_cpu_us"] is not None  # so few messages say nothing about it
    assert rows["no relay"]["added_p50_ms"] == 0
    assert document["machine"]["cores"] > 0
    vhosts = [vhost["name"] for vhost in Management(servers.management_url).request("vhosts")]
    # Another test may measure on these servers at the same time.
    assert not [name for name in vhosts if name.startswith(f"bench-relay-{ended.pid}-")]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--contenders", "exclusive,nobody"), "unknown: nobody"),
        (("--messages", "0"), "must be at least 1"),
        (("--groups", "10,0"), "--groups"),
        (("--groups", "many"), "--groups"),
        (("--spread", "even"), "--spread: unknown: even"),
    ],
)
def test_wrong_options_are_named(
    options: tuple[str, str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        arguments([*options])
    assert problem in capsys.readouterr().err.splitlines()[-1]


def test_a_dispatcher_is_measured_with_every_number_of_groups() -> None:
    options = arguments(["--groups", "1,50", "--spread", "zipf"])
    measured = races([Exclusive, Shovel], options)
    assert [name for name, _, _ in measured] == [
        "dispatcher, exclusive, 1 groups by Zipf", "dispatcher, exclusive, 50 groups by Zipf", "Shovel",
    ]  # fmt: skip
    assert [shape for _, _, shape in measured] == [Shape(1, ZIPF), Shape(50, ZIPF), Shape(1, ZIPF)]


def test_messages_are_spread_over_their_groups() -> None:
    assert Shape(3).group_numbers(7) == [0, 1, 2, 0, 1, 2, 0]
    by_zipf = Shape(100, ZIPF).group_numbers(20_000)
    assert by_zipf == Shape(100, ZIPF).group_numbers(20_000)
    counted = Counter(by_zipf)
    assert set(counted) == set(range(100))
    # The first gets 1/5.19 of all, twice as many as the second and ten times as many as the tenth.
    assert 3_500 < counted[0] < 4_200
    assert 1.7 < counted[0] / counted[1] < 2.3
    assert 8 < counted[0] / counted[9] < 12.5


def test_servers_that_do_not_answer_end_it_in_one_line() -> None:
    nowhere = Servers(
        "amqp://guest:guest@127.0.0.1:9/", "http://guest:guest@127.0.0.1:9", "redis://127.0.0.1:9"
    )
    ended = _bench(nowhere)
    assert ended.returncode == 1
    assert ended.stderr.startswith("bench.relay: ")
    assert ended.stderr.count("\n") == 1


def test_rows_are_medians_and_compared_with_shovel_and_no_relay() -> None:
    results = Results()
    for rate in (10.0, 30.0, 20.0):
        results.add("shovel", Throughput(1, rate, None, 5.0, None))
        results.add("auto", Throughput(1, 5 * rate, None, 5.0, None))
        results.add("ours", Throughput(1, 2 * rate, rate, 1.0, None))
    results.latencies = {"ours": Latency(3.0, 9.0, 40.0), "none": Latency(1.0, 2.0, None)}
    shovel, auto, ours, none = results.rows("shovel", "auto", "none")
    assert (shovel["messages_per_s"], shovel["to_shovel"], shovel["own_cpu_us"]) == (20.0, 1.0, None)
    assert (auto["to_shovel"], auto["to_shovel_auto"]) == (5.0, 1.0)
    assert (ours["messages_per_s"], ours["to_shovel"], ours["own_cpu_us"]) == (40.0, 2.0, 20.0)
    assert ours["to_shovel_auto"] == 0.4
    assert (ours["added_p50_ms"], ours["added_p99_ms"]) == (2.0, 7.0)
    assert none["messages_per_s"] is None


def test_a_ratio_is_that_of_the_rounds_and_has_its_spread() -> None:
    results = Results()
    for slow in (1.0, 0.25, 0.5):
        results.add("shovel", Throughput(1, 100.0 * slow, None, 5.0, None))
    for rate in (150.0, 50.0, 80.0):
        results.add("ours", Throughput(1, rate, 1.0, 1.0, None))
    shovel, ours = results.rows("shovel", "auto", "none")
    assert (ours["to_shovel"], ours["to_shovel_range"]) == (1.6, [1.5, 2.0])
    assert (shovel["to_shovel"], shovel["to_shovel_range"]) == (1.0, [1.0, 1.0])
    assert (ours["to_shovel_auto"], ours["to_shovel_auto_range"]) == (None, None)


@pytest.mark.slow
def test_the_inbound_queue_can_be_a_quorum_queue(servers: Servers, tmp_path: Path) -> None:
    small = ("--messages", "500", "--seconds", "0", "--contenders", "exclusive", "--inbound", "quorum")
    ended, document = _measured(servers, tmp_path / "results.json", *small)
    assert "quorum inbound queue" in " ".join(ended.stdout.split())
    assert document["machine"]["dispatcher"] == "interpreted"


@pytest.mark.slow
def test_each_of_two_processes_leads_a_shard(servers: Servers, tmp_path: Path) -> None:
    """Else the run does not end. It waits for that before each measurement, most of its time."""
    small = ("--messages", "500", "--seconds", "0", "--contenders", "two-processes")
    _, document = _measured(servers, tmp_path / "results.json", *small)
    row = document["results"][0]
    assert (row["contender"], row["messages_per_s"] > 0) == (
        "dispatcher, exclusive, 2 shards in 2 processes",
        True,
    )


def test_the_meter_counts_from_the_first_to_the_last() -> None:
    meter = Meter(3)
    meter.arrived([b"1"])
    assert not meter.done.is_set()
    meter.arrived([b"2", b"3"])
    assert meter.done.is_set()
    assert meter.rate > 0


def test_results_become_a_picture(tmp_path: Path) -> None:
    results = Results()
    results.add("Shovel", Throughput(1, 10_000.0, None, 5.0, None))
    results.add("dispatcher, exclusive", Throughput(1, 21_000.0, 20.0, 5.0, None))
    files = []
    for inbound in ("classic", "quorum"):
        file = tmp_path / f"{inbound}.json"
        write_json(file, {}, results.rows("Shovel", "auto", "none"), {"inbound": inbound})
        files.append(str(file))
    pictures = [tmp_path / "one.svg", tmp_path / "two.svg"]
    for picture in pictures:
        assert plot.main([*files, str(picture)]) == 0
    text = pictures[0].read_text()
    assert text == pictures[1].read_text()
    for expected in ("21,000  2.10 × Shovel", "from a classic queue", "from a quorum queue"):
        assert expected in text


def test_results_that_are_not_there_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plot.main([str(tmp_path / "none.json"), str(tmp_path / "picture.svg")]) == 1
    assert "none.json" in capsys.readouterr().err
