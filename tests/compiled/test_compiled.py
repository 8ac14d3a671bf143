"""Both forms of the dispatcher, compiled and interpreted, do the same. Making the compiled one tests that
mypyc takes the hot modules at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dispatcher import __version__
from dispatcher.nodes.servers import Servers

ROOT = Path(__file__).parents[2]
SEEDS = "1..16"
#: Of the core, the clauses, the codecs, and what the dispatcher serves by HTTP.
TESTS = (
    "tests/core", "tests/spec", "tests/redis_store/test_journal_codec.py",
    "tests/amqp/test_connection.py", "tests/amqp/test_connection_fuzz.py", "tests/amqp/test_decoder.py",
    "tests/amqp/test_fidelity.py", "tests/amqp/test_fingerprint.py", "tests/amqp/test_grouping.py",
    "tests/amqp/test_identity.py", "tests/amqp/test_parked.py", "tests/amqp/test_pricing.py",
    "tests/amqp/test_properties.py", "tests/amqp/test_reclaimed.py", "tests/amqp/test_relay.py",
    "tests/amqp/test_transfer.py", "tests/amqp/test_wire.py",
    "tests/service/test_ack_window.py", "tests/service/test_confirms.py", "tests/service/test_resends.py",
    "tests/http/test_api.py::test_every_answer_is_as_the_document_says",
    "tests/http/test_api.py::test_events_push_what_a_get_answers_and_what_has_changed",
    "tests/service/test_process.py::test_it_serves_probes_and_metrics",
)  # fmt: skip


def python(folder: Path, *arguments: str, **variables: str) -> str:
    """What Python says with the dispatcher of this folder, and with these variables."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    result = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder, env=environment | {"PYTHONPATH": str(folder)} | variables,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-10_000:] + result.stderr[-2_000:]
    return result.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)  # the first test makes it
def test_the_version_says_which_form_runs(compiled: Path) -> None:
    assert python(compiled, "-m", "dispatcher", "--version") == f"dispatcher {__version__} (compiled)\n"
    assert python(ROOT, "-m", "dispatcher", "--version") == f"dispatcher {__version__} (interpreted)\n"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_hot_module_is_compiled(compiled: Path, compiling) -> None:  # type: ignore[no-untyped-def]
    names = [path.removesuffix(".py").replace("/", ".") for path in compiling.hot_modules(ROOT)]
    assert len(names) > 100
    origins = python(
        compiled, "-c",
        f"from importlib import import_module\nfor name in {names}: print(import_module(name).__file__)",
    ).split()  # fmt: skip
    assert [origin for origin in origins if not origin.endswith(".so")] == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_core_clauses_codecs_and_http(compiled: Path, servers: Servers) -> None:
    said = python(
        compiled, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS, **servers.as_environment()
    )
    assert " passed" in said


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_both_forms_decide_alike_on_the_simulators_events(compiled: Path) -> None:
    seen = [python(folder, "-m", "tests.sim.digests", SEEDS, "--jobs", "1") for folder in (compiled, ROOT)]
    assert seen[0].splitlines() == seen[1].splitlines()
    assert len(seen[0].splitlines()) == 16
