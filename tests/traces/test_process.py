"""Traces of a process: each key of the section, and what it says without the extra."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from dispatcher.errors import ConfigurationError
from dispatcher.settings import TraceSettings, parse
from tests.service.clients import text
from tests.service.conftest import Starter
from tests.service.harness import ROOT, Bench, DispatcherProcess, lane
from tests.traces.collector import collecting
from tests.waiting import eventually

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SAMPLED = f"00-{TRACE}-00f067aa0ba902b7-01"
WITHOUT = "import sys; sys.modules['opentelemetry'] = None; from dispatcher.cli import main; main()"
MISSING = (
    "traces: needs OpenTelemetry, which is not installed: pip install 'rabbitmq-group-dispatcher[traces]'"
)


async def two_messages(bench: Bench, start: Starter, **traces: Any) -> DispatcherProcess:
    """A producer traces the first of two messages; both are settled."""
    process = start("one", changes={"traces": traces}, orders=lane())
    process.ready()
    client = await bench.client()
    client.send("in", b"1", "g", text("traceparent", SAMPLED))
    client.send("in", b"2", "g")
    consumer = await bench.joined("c1")
    await consumer.has(2)
    return process


async def test_spans_come_to_the_collector_under_the_service_name(
    bench: Bench, dispatcher_process: Starter
) -> None:
    with collecting() as collector:
        await two_messages(bench, dispatcher_process, endpoint=collector.url, service_name="sidecar")
        await eventually(lambda: len(collector.spans()) == 2, what="the spans")
    assert set(collector.paths) == {"/v1/traces"}
    assert collector.services() == {"sidecar"}
    first = collector.spans()[0]
    assert (first.name, first.trace_id.hex()) == ("dispatch orders", TRACE)


async def test_only_what_others_trace_is_traced_with_a_sample_of_0(
    bench: Bench, dispatcher_process: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-token=secret")
    with collecting() as collector:
        process = await two_messages(bench, dispatcher_process, endpoint=f"{collector.url}/otlp/", sample=0)
        await eventually(lambda: bench_is_empty(process))
        assert process.terminate()[0] == 0, "the last spans are sent"
        assert [span.trace_id.hex() for span in collector.spans()] == [TRACE]
    assert set(collector.paths) == {"/otlp"}
    assert set(collector.tokens) == {"secret"}
    assert collector.services() == {"dispatcher"}


def bench_is_empty(process: DispatcherProcess) -> bool:
    return 'dispatcher_settled_total{lane="orders"} 2.0' in process.get("/metrics")[1]


async def test_a_collector_that_is_away_stops_nothing_and_is_told(
    bench: Bench, dispatcher_process: Starter
) -> None:
    with collecting() as collector:
        collector.status = 401
        process = await two_messages(bench, dispatcher_process, endpoint=collector.url)
        await eventually(lambda: collector.paths)
        await eventually(lambda: "401" in process.log(), what="a line in the log")
    url = collector.url  # nobody listens there now
    other = dispatcher_process("two", changes={"traces": {"endpoint": url}}, orders=lane())
    assert process.terminate()[0] == 0
    other.ready()
    client = await bench.client()
    client.send("in", b"3", "g")
    await bench.joined("c2")
    await eventually(lambda: 'settled_total{lane="orders"} 1.0' in other.get("/metrics")[1])
    code, seconds = other.terminate(20)
    assert code == 0
    assert seconds < 10


async def test_a_collector_that_hangs_does_not_keep_the_process(
    bench: Bench, dispatcher_process: Starter
) -> None:
    with collecting() as collector:
        collector.answers.clear()
        process = await two_messages(bench, dispatcher_process, endpoint=collector.url)
        await eventually(lambda: collector.paths, what="spans that it does not answer")
        code, seconds = process.terminate()
    assert code == 0
    assert seconds < 8
    assert process.logged("traces_not_finished")


def test_check_and_run_say_that_the_extra_is_missing(dispatcher_process: Starter) -> None:
    process = dispatcher_process("one", changes={"traces": {}}, orders=lane())
    process.ready()
    for command in ("check", "run"):
        result = subprocess.run(
            [sys.executable, "-c", WITHOUT, command, "-c", process.config],
            capture_output=True, text=True, cwd=ROOT, timeout=60,
        )  # fmt: skip
        assert MISSING in (result.stdout + result.stderr).replace("\n", " ")
        assert result.returncode == 1
    checked = subprocess.run(
        [sys.executable, "-m", "dispatcher", "check", "-c", process.config],
        capture_output=True, text=True, cwd=ROOT, timeout=60,
    )  # fmt: skip
    assert "traces: go to http://localhost:4318/v1/traces" in checked.stdout


def test_without_the_section_nothing_of_it_is_loaded_or_needed(tmp_path: Path) -> None:
    program = "import sys; sys.modules['opentelemetry'] = None; import dispatcher.service.process"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)
    program = "import sys; sys.modules['opentelemetry'] = None; import dispatcher.client.traces"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert "pip install 'rabbitmq-group-dispatcher[traces]'" in result.stderr


def settings(**traces: Any) -> TraceSettings:
    document = {"traces": traces, "lanes": {"orders": {"inbound": [{"queue": "in"}]}}}
    found = parse(yaml.safe_dump(document), {"SHARE": "0.25"}).traces
    assert found is not None
    return found


def test_the_section_is_read() -> None:
    assert settings() == TraceSettings(
        endpoint="http://localhost:4318", sample=1.0, service_name="dispatcher"
    )
    assert settings(sample="${SHARE}").sample == 0.25
    assert settings(endpoint="https://otlp.example.com/otlp/v1/traces").traces_url.endswith(
        "com/otlp/v1/traces"
    )
    none = parse("traces: null\nlanes: {orders: {inbound: [{queue: in}]}}", {})
    assert none.traces is None


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"sample": 1.5}, "traces.sample: must be a number from 0 to 1"),
        ({"sample": True}, "traces.sample: must be a number from 0 to 1"),
        ({"sample": "half"}, "traces.sample: must be a number from 0 to 1"),
        ({"endpoint": "localhost:4317"}, "must be a URL that begins with http:// or https://"),
        ({"service_name": ""}, "traces.service_name: must not be empty"),
        ({"service": "x"}, "traces.service"),
    ],
)
def test_what_is_wrong_is_named(wrong: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        settings(**wrong)
    assert problem in str(refused.value)
