"""A process that is forked is one as any other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forking
from tests.waiting import wait_until

CONFIG = "rabbitmq: {url: amqp://nowhere}"
#: Starts one, and ends.
STARTS = """
import sys
from tests import forking

with open(sys.argv[1], "wb") as output:
    print(forking.start("timeit", ["-s", "import time", "time.sleep(600)"], output).pid)
"""


def test_it_has_its_own_arguments_environment_and_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAME", "value")
    said = []
    for code in "print(os.environ['NAME'])", "raise KeyError":
        file = tmp_path / "said"
        with file.open("wb") as output:
            process = forking.start("timeit", ["-n1", "-r1", "-s", "import os", code], output)
        said.append((process.wait(60), file.read_text().partition("\n")[0]))
    assert said == [(0, "value"), (1, "Traceback (most recent call last):")]


def test_it_is_waited_for_and_killed(tmp_path: Path) -> None:
    with (tmp_path / "said").open("wb") as output:
        process = forking.start("timeit", ["-s", "import time", "time.sleep(600)"], output)
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.kill()
    assert process.wait(60) == process.returncode == process.poll() == -signal.SIGKILL
    process.terminate()  # nobody else's process has its id


def test_it_ends_with_who_started_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STARTS, str(tmp_path / "said")],
        cwd=forking.ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip

    def is_gone() -> bool:
        try:
            os.kill(int(done.stdout), 0)
        except ProcessLookupError:
            return True
        return False

    wait_until(is_gone)


def test_a_dispatcher_that_is_forked_says_what_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "said"
    (tmp_path / "c.yaml").write_text(CONFIG)
    with file.open("wb") as output:
        process = forking.start("dispatcher", ["run", "-c", str(tmp_path / "c.yaml")], output)
    assert process.wait(60) == 1
    assert "lanes" in file.read_text()
