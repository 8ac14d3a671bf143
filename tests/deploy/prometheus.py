"""Prometheus' programs: those of this machine, or Debian's, unpacked and not installed."""

from __future__ import annotations

import fcntl
import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml

FOLDER = Path(__file__).parents[2] / ".local" / "prometheus"
PACKAGE = "prometheus"


@cache
def program(name: str) -> Path:
    """`prometheus` or `promtool`. Skips the test where it is missing and apt has no package of it."""
    found = shutil.which(name)
    if found is not None:
        return Path(found)
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run in several processes
        unpacked = FOLDER / "usr" / "bin" / name
        if not unpacked.exists():
            _unpack()
    if not unpacked.exists():
        pytest.skip(f"needs {name}, of the package {PACKAGE}")
    return unpacked


def _unpack() -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        return
    for command in (
        ["apt-get", "-q", "download", PACKAGE],
        ["sh", "-c", f"dpkg-deb -x {PACKAGE}_*.deb . && rm {PACKAGE}_*.deb"],
    ):
        if subprocess.run(command, cwd=FOLDER, capture_output=True, check=False).returncode != 0:
            return


class Prometheus:
    """A server that scrapes."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1"

    def answers(self) -> bool:
        try:
            return bool(self.ask("up"))
        except OSError:
            return False

    def ask(self, expression: str) -> list[dict[str, Any]]:
        """The result of an instant query."""
        with urlopen(f"{self._url}/query?{urlencode({'query': expression})}", timeout=60) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return found

    def rules(self) -> list[dict[str, Any]]:
        """All alert rules as Prometheus has read and evaluated them."""
        with urlopen(f"{self._url}/rules", timeout=60) as answer:
            groups = json.load(answer)["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]


@contextmanager
def scraping(folder: Path, target: str, rules: Path) -> Iterator[Prometheus]:
    """A Prometheus on loopback that scrapes `target` (host:port) each second, as the job `dispatcher`, and
    evaluates these rules."""
    document = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": [{"job_name": "dispatcher", "static_configs": [{"targets": [target]}]}],
    }
    configuration = folder / "prometheus.yml"
    configuration.write_text(yaml.safe_dump(document))
    port = _free_port()
    command = [
        program("prometheus"), f"--config.file={configuration}", f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            yield Prometheus(port)
        finally:
            process.terminate()
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
