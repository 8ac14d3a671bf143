"""`workers`: one command starts several replicas, supervises them, and ends with them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from dispatcher.nodes.ports import free_ports
from dispatcher.service.workers import PAUSE_S_MAX, Worker, _Place
from dispatcher.settings import parse
from tests.service.conftest import Starter
from tests.service.harness import ROOT, START_S, STOP_S_MAX, Bench, DispatcherProcess, lane, log_records
from tests.service.worker_program import REFUSED
from tests.waiting import TIMEOUT_S, eventually, wait_until

#: Until a lane is given to another replica, on a busy machine.
SPREAD_S = 2 * TIMEOUT_S


def pids(records: list[dict[str, Any]]) -> dict[int, int]:
    """The latest process of each worker, by its number."""
    return {each["number"]: each["pid"] for each in records if each.get("event") == "worker_started"}


def is_there(pid: int) -> bool:
    """Whether it runs: a process whose parent has ended may stay as a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class Workers:
    """A dispatcher with two of them."""

    def __init__(self, process: DispatcherProcess, port: int) -> None:
        self.process = process
        self._port = port

    def pids(self) -> dict[int, int]:
        return pids(self.process.logged("worker_started"))

    def both(self) -> dict[int, int]:
        """When both have started."""

        def have_started() -> bool:
            return {each["worker"] for each in self.process.logged("dispatcher_started")} == {1, 2}

        wait_until(have_started, START_S, f"both to start: {self.process.log()[-2000:]}")
        return self.pids()

    def started_anew(self, second: int) -> None:
        """Kill the second worker, and wait for the next one."""
        os.kill(second, signal.SIGKILL)

        def has_started() -> bool:
            return [each["worker"] for each in self.process.logged("dispatcher_started")].count(2) == 2

        wait_until(has_started, START_S, "another one in its place")

    def get(self, number: int, path: str) -> str:
        """What this worker answers; nothing while it is away."""
        url = f"http://127.0.0.1:{self._port + number - 1}{path}"
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
                return str(answer.read().decode())
        except urllib.error.URLError:
            return ""

    def led(self) -> dict[int, list[str]]:
        """The lanes that each leads."""
        ready = {number: self.get(number, "/readyz").splitlines() for number in (1, 2)}
        return {n: [line.split(":")[0] for line in lines if "leading" in line] for n, lines in ready.items()}

    def share(self) -> bool:
        """Whether each leads one lane."""
        return [len(lanes) for lanes in self.led().values()] == [1, 1]


Start = Callable[..., Workers]


@pytest.fixture
def start(dispatcher_process: Starter) -> Iterator[Start]:
    """`start()`: lanes `a` and `b`, two workers."""
    made: list[Workers] = []

    def begin(port: int | None = None, program: str = "dispatcher", **changes: Any) -> Workers:
        port = port or two_ports()
        changes = {"workers": 2, "http": {"listen": f"127.0.0.1:{port}"}} | changes
        process = dispatcher_process(program=program, changes=changes, a=lane("in-a"), b=lane("in-b"))
        made.append(Workers(process, port))
        return made[-1]

    yield begin
    for workers in made:
        workers.process.close()
        wait_until(lambda workers=workers: not any(map(is_there, workers.pids().values())))


def two_ports() -> int:
    """The first of two in a row on which nobody listens."""
    while True:
        near = sorted(free_ports(400))
        for port, following in pairwise(near):
            if following == port + 1:
                return port


async def test_each_leads_a_lane_and_one_that_is_killed_comes_back(start: Start, bench: Bench) -> None:
    workers = start()
    first = await asyncio.to_thread(workers.both)
    await eventually(workers.share, SPREAD_S, "a lane for each")
    client = await bench.client()
    consumers = {name: await bench.joined("c1", name) for name in ("a", "b")}
    for name, consumer in consumers.items():
        client.send(f"in-{name}", b"1", "g")
        await consumer.has(1)
    for number, (name,) in workers.led().items():

        def settled(number: int = number, name: str = name) -> bool:
            return f'dispatcher_settled_total{{lane="{name}"}} 1.0' in workers.get(number, "/metrics")

        await eventually(settled, what="its own metrics")

    os.kill(first[2], signal.SIGKILL)
    for name, consumer in consumers.items():
        client.send(f"in-{name}", b"2", "g")
        await consumer.has(2)
    await eventually(lambda: workers.pids()[2] != first[2], what="another one in its place")
    (ended,) = workers.process.logged("worker_ended")
    assert (ended["number"], ended["pid"], ended["code"]) == (2, first[2], -signal.SIGKILL)
    assert workers.pids()[1] == first[1]
    await eventually(workers.share, SPREAD_S, "a lane for each again")
    assert [len(consumer.received) for consumer in consumers.values()] == [2, 2]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_all_of_them(start: Start, number: int) -> None:
    workers = start()
    both = workers.both()
    os.kill(workers.process.pid, number)
    assert workers.process.exited(STOP_S_MAX) == 0
    assert not any(map(is_there, both.values()))
    assert [each["worker"] for each in sorted_by_worker(workers.process.logged("dispatcher_stopped"))] == [
        1,
        2,
    ]


def sorted_by_worker(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(records, key=lambda record: record["worker"])


def test_no_process_leaves_a_core_dump(start: Start, tmp_path: Path) -> None:
    """Passwords would be in it."""
    workers = start(ledger={"path": str(tmp_path / "ledger")})
    both = workers.both()
    supervisor = workers.process.pid
    writers = [each for worker in both.values() for each in children(worker)]
    assert len(writers) == 2
    for process in (supervisor, *both.values(), *writers):
        assert resource.prlimit(process, resource.RLIMIT_CORE) == (0, 0)


def test_workers_end_with_their_supervisor(start: Start) -> None:
    """In order, also if that one was killed."""
    workers = start()
    both = workers.both()
    workers.process.kill9()
    wait_until(lambda: not any(map(is_there, both.values())))
    assert [each["worker"] for each in sorted_by_worker(workers.process.logged("dispatcher_stopped"))] == [
        1,
        2,
    ]


def test_a_changed_file_is_read_by_all(start: Start) -> None:
    workers = start()
    workers.both()
    file = workers.process.config
    file.write_text(file.read_text().replace("200ms", "300ms"))
    os.kill(workers.process.pid, signal.SIGHUP)

    def told() -> list[dict[str, Any]]:
        return sorted_by_worker(workers.process.logged("configuration_reloaded"))

    wait_until(lambda: len(told()) == 2, what="both to read it")
    assert [(each["worker"], each["lanes"]) for each in told()] == [
        (number, {"a": "changed", "b": "changed"}) for number in (1, 2)
    ]


def test_one_that_is_started_anew_reads_the_file_as_it_is_then(start: Start) -> None:
    workers = start()
    both = workers.both()
    file = workers.process.config
    file.write_text(file.read_text().replace("200ms", "300ms"))
    workers.started_anew(both[2])
    os.kill(workers.process.pid, signal.SIGHUP)

    def told() -> dict[int, dict[str, str]]:
        return {each["worker"]: each["lanes"] for each in workers.process.logged("configuration_reloaded")}

    wait_until(lambda: len(told()) == 2, what="both to read it")
    assert told() == {1: {"a": "changed", "b": "changed"}, 2: {"a": "unchanged", "b": "unchanged"}}
    assert workers.pids()[1] == both[1]


@pytest.mark.parametrize("wrong", [True, False])
def test_one_that_is_started_anew_takes_over_nothing_that_is_refused(start: Start, wrong: bool) -> None:
    """Else two workers led a lane under two prefixes."""
    workers = start()
    both = workers.both()
    file = workers.process.config
    changed = yaml.safe_load(file.read_text()) | {"prefix": "another"}
    file.write_text("lanes: {}" if wrong else yaml.safe_dump(changed))
    workers.started_anew(both[2])
    (refused,) = workers.process.logged("configuration_refused")
    assert refused["worker"] == 2
    assert refused["problems"][0].startswith("lanes: " if wrong else "prefix: can't change")
    (ended,) = workers.process.logged("worker_ended")
    assert ended["pid"] == both[2]

    def lanes() -> list[str]:
        return sorted(lane for led in workers.led().values() for lane in led)

    wait_until(lambda: lanes() == ["a", "b"], SPREAD_S, "one leader for each lane")


@contextlib.contextmanager
def second_held_at_start(workers: Workers) -> Iterator[int]:
    """Kill it. The next one waits where it reads the file, until the block ends."""
    both = workers.both()
    file = workers.process.config
    text = file.read_text()
    file.unlink()
    os.mkfifo(file)
    os.kill(both[2], signal.SIGKILL)

    def opened() -> int | None:
        with contextlib.suppress(OSError):  # nobody reads
            return os.open(file, os.O_WRONLY | os.O_NONBLOCK)
        return None

    with open(wait_until(opened, what="the next one to read"), "w") as held:
        others = file.with_suffix(".others")
        others.write_text(text)
        others.rename(file)
        # It reads before the supervisor tells its id.
        yield wait_until(lambda: {workers.pids()[2]} - {both[2]}, what="the next one's id").pop()
        held.write(text)


def wait_until_pending(pid: int, number: signal.Signals) -> None:
    """It has come, and waits to be handled."""

    def pending() -> bool:
        return number in signals_of(pid, "ShdPnd")

    wait_until(pending, what=f"{number.name} at {pid}")


def signals_of(pid: int, kind: str) -> set[int]:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == kind:
            return {number for number in range(1, 65) if int(value, 16) >> number - 1 & 1}
    return set()


def test_one_that_starts_keeps_a_reload_for_later(start: Start) -> None:
    workers = start()
    with second_held_at_start(workers) as second:
        os.kill(workers.process.pid, signal.SIGHUP)
        wait_until_pending(second, signal.SIGHUP)

    def told() -> set[int]:
        return {each["worker"] for each in workers.process.logged("configuration_reloaded")}

    wait_until(lambda: told() == {1, 2}, START_S, "both to read the file")
    assert workers.pids()[2] == second


def test_sigterm_while_one_starts_ends_all_in_order(start: Start) -> None:
    workers = start()
    with second_held_at_start(workers) as second:
        os.kill(workers.process.pid, signal.SIGTERM)
        wait_until_pending(second, signal.SIGTERM)
    assert workers.process.exited(STOP_S_MAX) == 0


def test_ctrl_c_while_one_starts_ends_all_in_order(start: Start) -> None:
    """A terminal sends it to all of them."""
    workers = start()
    with second_held_at_start(workers) as second:
        for pid in (second, workers.pids()[1], workers.process.pid):
            os.kill(pid, signal.SIGINT)
        wait_until_pending(second, signal.SIGTERM)  # the supervisor's
    assert workers.process.exited(STOP_S_MAX) == 0


def test_a_reload_while_the_ledger_opens_waits(dispatcher_process: Starter, tmp_path: Path) -> None:
    one = dispatcher_process(changes={"ledger": {"path": str(tmp_path / "ledger")}}, orders=lane())
    (writer,) = wait_until(lambda: children(one.pid), START_S, "the ledger's process")
    os.kill(writer, signal.SIGSTOP)  # the dispatcher waits for it
    os.kill(one.pid, signal.SIGHUP)
    os.kill(writer, signal.SIGCONT)
    wait_until(lambda: one.logged("configuration_reloaded"), START_S, "it to read the file")
    blocked = signals_of(writer, "SigBlk")  # it began with those that the dispatcher had blocked
    assert not {signal.SIGHUP, signal.SIGTERM, signal.SIGINT} & blocked


def test_signals_that_come_when_one_has_stopped_change_nothing(start: Start) -> None:
    """systemd and a terminal signal all processes; the supervisor does once more."""
    workers = start(program="tests.service.signalled_at_exit")
    workers.both()
    os.kill(workers.process.pid, signal.SIGTERM)
    assert workers.process.exited(STOP_S_MAX) == 0
    assert len(workers.process.logged("signalled")) == 3  # the supervisor, too


def test_what_refuses_them_is_said_once(start: Start) -> None:
    workers = start(lanes={"a": {"inbound": [{"queue": "nowhere"}]}})
    assert workers.process.exited() == 1
    assert workers.process.log().count("there is no queue 'nowhere'") == 1
    assert list(workers.pids()) == [1]


def test_one_that_can_not_start_ends_the_others(start: Start) -> None:
    port = two_ports()
    with socket.create_server(("127.0.0.1", port + 1)):
        one = start(port)
        assert one.process.exited() == 1
    assert f"can't listen on 127.0.0.1:{port + 1}" in one.process.log()
    assert not any(map(is_there, one.pids().values()))


def test_one_worker_is_the_process_itself(dispatcher_process: Starter) -> None:
    one = dispatcher_process(changes={"workers": 1}, orders=lane())
    one.ready()
    assert children(one.pid) == []
    assert not any("worker" in record for record in log_records(one.log()))


@pytest.mark.parametrize(
    ("listen", "number", "expected"),
    [
        ("127.0.0.1:8642", 1, "127.0.0.1:8642"),
        ("[::1]:8642", 3, "[::1]:8644"),
        ("0.0.0.0:0", 2, "0.0.0.0:0"),
    ],
)
def test_each_listens_on_a_port_of_its_own(listen: str, number: int, expected: str) -> None:
    written = parse(f"http: {{listen: '{listen}'}}\nlanes: {{a: {{inbound: [{{queue: q}}]}}}}", {})
    settings = Worker(number, None).settings(written)  # type: ignore[arg-type]
    assert settings.http.listen == expected
    assert settings.lanes == written.lanes


# -- the supervisor alone --


class Supervised:
    """The program of `worker_program`."""

    def __init__(self, folder: Path, *arguments: object) -> None:
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "tests.service.worker_program", *map(str, arguments)],
                cwd=ROOT, stdout=log, stderr=log,
            )  # fmt: skip

    def logged(self, event: str) -> list[dict[str, Any]]:
        return [each for each in log_records(self._log.read_text()) if each.get("event") == event]

    def pids(self) -> dict[int, int]:
        return pids(self.logged("worker_started"))


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[Callable[..., Supervised]]:
    made: list[Supervised] = []

    def begin(*arguments: object) -> Supervised:
        made.append(Supervised(tmp_path, *arguments))
        return made[-1]

    yield begin
    for one in made:
        one.popen.kill()
        one.popen.wait()
        for pid in one.pids().values():
            if is_there(pid):
                os.kill(pid, signal.SIGKILL)


Begin = Callable[..., Supervised]


def test_the_code_of_one_that_does_not_start_is_the_supervisors(supervised: Begin) -> None:
    one = supervised(3, 30, "refuse")
    assert one.popen.wait(TIMEOUT_S) == REFUSED
    assert {each["code"] for each in one.logged("worker_not_started")} == {REFUSED}
    assert not any(map(is_there, one.pids().values()))


def test_one_that_does_not_stop_is_killed(supervised: Begin) -> None:
    one = supervised(2, 0.3, "start")
    wait_until(lambda: len(one.pids()) == 2)
    os.kill(one.pids()[2], signal.SIGSTOP)
    one.popen.terminate()
    assert one.popen.wait(TIMEOUT_S) == 1
    assert not any(map(is_there, one.pids().values()))


def test_what_a_worker_leaves_behind_is_no_zombie(supervised: Begin) -> None:
    """In a container it is given to process 1."""
    one = supervised(1, 30, "orphan")
    first = wait_until(lambda: one.pids().get(1))
    (left,) = wait_until(lambda: children(first))
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{left}").exists())
    assert one.popen.poll() is None


def test_without_a_process_for_it_a_worker_starts_later(supervised: Begin) -> None:
    one = supervised(2, 30, "crowded")

    def pauses() -> list[float]:
        return [each["again_in_s"] for each in one.logged("worker_not_forked")]

    wait_until(lambda: len(pauses()) >= 2)
    assert pauses()[:2] == [0.2, 0.4]
    one.popen.send_signal(signal.SIGUSR1)  # now there are some
    wait_until(lambda: len(one.pids()) == 2)
    one.popen.terminate()
    assert one.popen.wait(TIMEOUT_S) == 0


def test_pauses_grow_while_workers_die(supervised: Begin) -> None:
    one = supervised(2, 30, "fail")

    def pauses() -> list[float]:
        return [each["again_in_s"] for each in one.logged("worker_ended") if each["number"] == 1]

    wait_until(lambda: len(pauses()) >= 3)
    assert pauses()[:3] == [0.2, 0.4, 0.8]
    assert one.popen.poll() is None


def test_a_pause_is_short_again_after_a_long_run() -> None:
    place = _Place(1, 1.0)
    for _ in range(8):
        place.ended()
    assert place.pause_s == PAUSE_S_MAX
    place.began_s -= PAUSE_S_MAX + 1
    assert place.ended() == 1.0
