"""The program as a process: exit codes, one line on stderr, never a traceback; and its help."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from dispatcher import __version__
from dispatcher.cli import app
from tests.cli.conftest import Responder
from tests.waiting import wait_until


def dispatcher(
    *arguments: str, stdout: Any = subprocess.PIPE, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dispatcher", *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "TERM": "dumb", **environment},
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["groups"],
        ["groups", "list"],
        ["groups", "list", "orders", "--limit", "0"],
        ["groups", "list", "orders", "--sort", "size"],
        ["groups", "list", "orders", "--state", "lost"],
        ["groups", "show", "orders"],
        ["status", "--timeout", "5"],
        ["status", "--timeout", "0"],
        ["status", "--watch", "--json"],
        ["groups", "list", "orders", "--watch", "--json"],
        ["rebalance", "orders", "--to", "c-1"],
        ["rebalance", "orders", "--reset", "--group", "g", "--to", "c-1"],
        ["demo", "--orders", "0"],
        ["demo", "--git", "/does/not/exist"],
        ["demo", "--git", "/tmp", "--orders", "5"],
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, arguments, prog_name="dispatcher")
    assert isinstance(result.exception, SystemExit), "else there would be a traceback"
    assert result.exit_code == 2
    assert "Value error" not in result.stderr


@pytest.mark.parametrize("command", ["run", "check", "status"])
def test_a_bad_configuration_is_exit_code_1_with_a_line_per_problem(tmp_path: Path, command: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text('lanes: {a: {inbound: [{queue: q, weight: 0}], top_up: true}}\nprefix: "${NOT_SET_HERE}"')
    result = dispatcher(command, "-c", str(file))
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        "dispatcher: prefix: the environment variable NOT_SET_HERE is not set (line 2: '${NOT_SET_HERE}')",
        "dispatcher: lanes.a.inbound[0].weight: must be a positive integer (line 1: 0)",
        "dispatcher: lanes.a.top_up: only works with policy: sequenced (line 1: true)",
    ]


def test_a_missing_file_and_an_unknown_lane(config_file: Path) -> None:
    result = dispatcher("status", DISPATCHER_CONFIG="/does/not/exist.yaml")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == (
        "dispatcher: /does/not/exist.yaml: No such file or directory; "
        "name the file with -c FILE or DISPATCHER_CONFIG\n"
    )
    result = dispatcher("status", "order", DISPATCHER_CONFIG=str(config_file))
    assert result.returncode == 1
    assert result.stderr == (
        "dispatcher: lanes.order: there is no such lane in the configuration (it has orders, bills)\n"
    )


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("amqp://u:hunter2@127.0.0.1:9/", "can't be reached (Connection refused)"),
        ("amqp://u:hunter2@no-such-host.invalid/", "can't be reached ("),
        ("amqps://u:hunter2@{host}/", "does not answer in TLS ("),
        ("amqp://u:hunter2@{host}/", "user 'u' is refused (wrong user or password in rabbitmq.url)"),
        ("amqp://guest:guest@{host}/no-such-vhost", "user 'guest' can't use vhost 'no-such-vhost': "),
    ],
)
def test_a_broker_that_can_not_be_used_is_one_line(
    tmp_path: Path, servers: Any, url: str, expected: str
) -> None:
    file = tmp_path / "dispatcher.yaml"
    url = url.format(host=servers.amqp_url.rpartition("@")[2].rstrip("/"))
    file.write_text(f"rabbitmq: {{url: '{url}'}}\nlanes: {{a: {{inbound: [{{queue: q}}]}}}}")
    result = dispatcher("groups", "list", "a", "-c", str(file))
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("dispatcher: RabbitMQ at ")
    assert expected in result.stderr
    assert result.stderr.count("\n") == 1
    assert "hunter2" not in result.stderr


def test_a_result_and_a_refusal(config_file: Path, responder: Responder) -> None:
    responder.answer = {"consumers": []}
    result = dispatcher("consumers", "list", "orders", "--json", "-c", str(config_file))
    assert (result.returncode, json.loads(result.stdout), result.stderr) == (0, {"consumers": []}, "")
    responder.answer = "nothing to rebalance"
    result = dispatcher("rebalance", "orders", "-c", str(config_file))
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "dispatcher: nothing to rebalance\n"


def test_what_a_terminal_can_not_show_is_escaped(config_file: Path, responder: Responder) -> None:
    responder.answer = {"group": "日本", "verdict": "Nothing waits"}
    command = ("groups", "why", "orders", "日本", "-c", str(config_file))
    shown = dispatcher(*command, PYTHONIOENCODING="latin-1")
    assert (shown.returncode, shown.stdout.splitlines()[0]) == (0, r"\u65e5\u672c: Nothing waits")
    as_json = dispatcher(*command, "--json", PYTHONIOENCODING="latin-1")
    assert (as_json.returncode, json.loads(as_json.stdout)["group"]) == (0, "日本")


def test_run_logs_at_the_level_and_in_the_format_that_are_asked_for(tmp_path: Path) -> None:
    file, log = tmp_path / "dispatcher.yaml", tmp_path / "log"
    file.write_text(
        'rabbitmq: {url: "amqp://127.0.0.1:1/"}\nredis: {url: "redis://127.0.0.1:1/"}\n'
        'http: {listen: "127.0.0.1:0"}\nlanes: {a: {inbound: [{queue: q}]}}\n'
    )
    options = ("--log-format", "text", "--log-level", "warning", "-c", str(file))
    with log.open("w") as stderr:
        process = subprocess.Popen([sys.executable, "-m", "dispatcher", "run", *options], stderr=stderr)
    try:
        wait_until(lambda: "lane_interrupted" in log.read_text())
    finally:
        process.kill()
        process.wait()
    assert "http_listening" not in log.read_text(), "it is of the level info, and comes before"
    assert not any(line.startswith("{") for line in log.read_text().splitlines())


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("dispatcher s", {"status", "sim"}),
        ("dispatcher groups li", {"list"}),
        ("dispatcher groups list --sor", {"--sort"}),
    ],
)
def test_a_shell_completes_commands_and_options(words: str, offered: set[str]) -> None:
    last = str(len(words.split()) - 1)
    result = dispatcher(_DISPATCHER_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=last)
    assert {line.split("\t")[0] for line in result.stdout.splitlines()} == offered


@pytest.mark.parametrize("command", [["status", "orders"], ["groups", "list", "orders"]])
def test_watch_shows_it_again_until_it_is_interrupted(
    config_file: Path, responder: Responder, command: list[str]
) -> None:
    terminal, end = os.openpty()
    responder.answers = [{"lane": "orders", "total": 7}] * 2
    responder.answer = None
    process = subprocess.Popen(
        [sys.executable, "-m", "dispatcher", *command, "--watch", "--timeout", "1s", "-c", str(config_file)],
        stdout=end, stderr=subprocess.PIPE, env={**os.environ, "TERM": "xterm"},
    )  # fmt: skip
    try:
        wait_until(lambda: len(responder.received) >= 4, timeout_s=60)
        process.send_signal(signal.SIGINT)
        _, complaints = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
        os.close(end)
    assert process.returncode == 0
    assert b"no dispatcher answered" in complaints, "and it went on"
    shown = os.read(terminal, 100_000)
    os.close(terminal)
    assert shown.count(b"\x1b[2J") >= 2, "each time in the place of the one before"


def test_json_has_printable_characters_only(config_file: Path, responder: Responder) -> None:
    responder.answer = {"group": "日本", "verdict": "\x9b2J\x7f\u2028"}
    shown = dispatcher(
        "groups", "why", "orders", "g", "--json", "-c", str(config_file), PYTHONIOENCODING="utf-8"
    )
    assert all(line.isprintable() for line in shown.stdout.split("\n"))
    assert "日本" in shown.stdout
    assert json.loads(shown.stdout)["verdict"] == responder.answer["verdict"]


def test_a_full_disk_behind_its_output_is_one_line(config_file: Path, responder: Responder) -> None:
    responder.answer = {"consumers": []}
    for option in ((), ("--json",)):
        with Path("/dev/full").open("w") as full:
            result = dispatcher("consumers", "list", "orders", *option, "-c", str(config_file), stdout=full)
        assert result.returncode == 1
        assert result.stderr == ("dispatcher: the output can't be written: No space left on device\n")


def test_version_and_schema() -> None:
    assert dispatcher("--version").stdout == f"dispatcher {__version__} (interpreted)\n"
    Draft202012Validator.check_schema(json.loads(dispatcher("config", "schema").stdout))


def commands(group: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        yield f"{path}{name}", command
        if hasattr(command, "commands"):
            yield from commands(command, f"{path}{name} ")


def test_the_list_of_commands_says_what_each_says_of_itself() -> None:
    listed = " ".join(dispatcher("--help", COLUMNS="200").stdout.replace("│", " ").split())
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        first = " ".join(command.help.partition("\n\n")[0].split())
        assert f" {name} {first} " in listed


@pytest.mark.parametrize(("path", "command"), list(commands(typer.main.get_command(app))))
def test_help_is_complete(path: str, command: Any) -> None:
    assert command.help
    for parameter in command.params:
        assert parameter.help, f"{path} {parameter.name}"
