"""`dispatcher check` finds every obstacle at once, and leaves nothing behind."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pika
import pytest
import yaml

from dispatcher.cli.check_findings import Findings, Level
from dispatcher.cli.check_management import _check_inbound, _check_parking
from dispatcher.nodes.servers import Servers
from dispatcher.service.queue_kinds import HAS_PRIORITIES, unusable
from dispatcher.service.topology import parking_arguments, parking_queues
from dispatcher.wire.protocol import LaneNames
from tests.cli.conftest import Run, as_user
from tests.conftest import Vhost


@contextmanager
def channel(vhost: Vhost) -> Iterator[Any]:
    with pika.BlockingConnection(pika.URLParameters(vhost.amqp_url)) as connection:
        yield connection.channel()


@pytest.fixture
def inbound(vhost: Vhost) -> None:
    with channel(vhost) as declaring:
        declaring.queue_declare("orders.high", durable=True)


def names_on(vhost: Vhost) -> tuple[set[str], set[str]]:
    queues = {queue["name"] for queue in vhost.management(f"queues/{vhost.name}")}
    return queues, {exchange["name"] for exchange in vhost.management(f"exchanges/{vhost.name}")}


def levels(run: Run, *arguments: str) -> dict[str, list[str]]:
    """Findings by level."""
    result = run("check", "--json", *arguments)
    found: dict[str, list[str]] = {"ok": [], "note": [], "warning": [], "problem": []}
    for finding in json.loads(result.stdout)["findings"]:
        found[finding["level"]].append(finding["text"])
    assert result.exit_code == (1 if found["problem"] else 0)
    assert result.stderr.count("\n") == (1 if found["problem"] else 0)
    return found


@pytest.mark.usefixtures("inbound")
def test_all_is_well(run: Run, vhost: Vhost) -> None:
    before = names_on(vhost)
    result = run("check")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "problem" not in result.stdout
    assert "lanes.orders.inbound[0].queue: 'orders.high' is there, 0 messages ready" in result.stdout
    assert (
        "lanes.bills.inbound[0].queue: there is no queue 'bills' yet; the dispatcher declares it"
        in result.stdout
    )
    version = vhost.management("overview")["rabbitmq_version"]
    assert result.stdout.count(f"RabbitMQ {version}") == 1
    assert "redis: connected to" in result.stdout
    (note,) = [line for line in result.stdout.splitlines() if "consumer_timeout" in line]
    assert len(note) <= 80
    assert names_on(vhost) == before


@pytest.mark.usefixtures("inbound")
def test_servers_of_redis_in_a_list(run: Run, config_file: Path) -> None:
    """One server under two names is one master."""
    written = yaml.safe_load(config_file.read_text())
    url = written["redis"]["url"]
    written["redis"] = {"urls": [url, url.replace("127.0.0.1", "localhost")]}
    config_file.write_text(yaml.safe_dump(written))
    result = run("check")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "redis: connected to the master of 2 servers, database 0" in result.stdout


@pytest.mark.usefixtures("inbound")
def test_files_and_tokens_of_the_http_port(run: Run, config_file: Path) -> None:
    written = yaml.safe_load(config_file.read_text())
    written["http"] = {"cert_file": str(config_file), "tokens": {"viewer": "env:NOT_THERE"}}
    config_file.write_text(yaml.safe_dump(written))
    found = [problem.split(":")[0] for problem in levels(run)["problem"]]
    assert found == ["http.tokens.viewer", "http.cert_file"]


class _Overview(BaseHTTPRequestHandler):
    """The management API of some other RabbitMQ."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"rabbitmq_version": "9.9.9", "cluster_name": "other@elsewhere"}')

    def log_message(self, *_: Any) -> None:
        """Not to stderr."""


@pytest.mark.usefixtures("inbound")
def test_the_version_is_that_of_the_broker_and_not_of_another_ones_management_api(run: Run) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Overview) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        found = levels(run, "--management", f"http://127.0.0.1:{other.server_port}")
        other.shutdown()
    assert not any("9.9.9" in text for texts in found.values() for text in texts)
    assert any("other@elsewhere" in note for note in found["note"])
    assert found["problem"] == []


def test_a_broker_that_refuses_the_user_has_no_version(run: Run, config_file: Path) -> None:
    config_file.write_text(re.sub(r"amqp://[^@]*@", "amqp://nobody:wrong@", config_file.read_text()))
    found = levels(run)
    assert any("nobody" in problem for problem in found["problem"])
    assert not any("RabbitMQ" in text for text in found["ok"])


@pytest.mark.usefixtures("inbound")
def test_a_former_word_is_mentioned_once(run: Run, config_file: Path) -> None:
    text = config_file.read_text()
    assert not any("park" in note for note in levels(run)["note"])
    config_file.write_text(text + "defaults: {retry: {on_exhausted: park}}\n")
    found = levels(run)
    assert found["problem"] == []
    assert [note for note in found["note"] if "park" in note] == [
        "defaults.retry.on_exhausted: park is called stop by now; both work"
    ]


def test_a_missing_inbound_queue_is_a_problem(run: Run) -> None:
    assert levels(run)["problem"] == [
        "lanes.orders.inbound[0].queue: there is no queue 'orders.high'; declare it, or set `declare: true`"
    ]


@pytest.mark.usefixtures("inbound")
def test_a_foreign_consumer_is_a_problem_and_a_dispatcher_is_not(run: Run, vhost: Vhost) -> None:
    with channel(vhost) as other:
        other.basic_consume("orders.high", lambda *_: None)
        assert levels(run)["problem"] == [
            "lanes.orders.inbound[0].queue: 'orders.high' has 1 consumer of another program; "
            "stop them, or messages of one group go two ways"
        ]
        lock = LaneNames("orders", vhost.redis_prefix).lock
        other.queue_declare(lock, durable=True)
        other.basic_consume(lock, lambda *_: None, exclusive=True)
        found = levels(run)
        assert found["problem"] == []
        assert "lanes.orders: a dispatcher is active" in found["note"]


@pytest.mark.usefixtures("inbound")
def test_strangers_under_our_names_are_problems(run: Run, vhost: Vhost) -> None:
    names = LaneNames("orders", vhost.redis_prefix)
    with channel(vhost) as declaring:
        declaring.queue_declare(names.control, durable=True, arguments={"x-queue-type": "quorum"})
        declaring.queue_declare(names.heartbeat, durable=True)
        declaring.exchange_declare(names.exchange, "fanout", durable=True)
    before = names_on(vhost)
    problems = levels(run)["problem"]
    assert [re.findall("'([^']+)' in vhost", line) for line in problems] == [
        [names.control], [names.heartbeat], [names.exchange]
    ]  # fmt: skip
    assert all(line.startswith("lanes.orders: PRECONDITION_FAILED - inequivalent arg") for line in problems)
    assert names_on(vhost) == before


@pytest.mark.parametrize("management", ["http://guest:guest@127.0.0.1:9", None])
@pytest.mark.parametrize(
    ("auto_delete", "arguments", "problem"),
    [
        (False, {"x-max-priority": 5}, HAS_PRIORITIES),
        (True, {"x-max-priority": 5, "x-max-length": 9}, HAS_PRIORITIES),
        (False, {"x-queue-type": "stream"}, unusable("stream", has_priorities=False)),
    ],
)
def test_queues_without_order_are_refused_with_and_without_the_management_api(
    run: Run,
    vhost: Vhost,
    management: str | None,
    auto_delete: bool,
    arguments: dict[str, object],
    problem: str,
) -> None:
    with channel(vhost) as declaring:
        declaring.queue_declare("orders.high", durable=True, auto_delete=auto_delete, arguments=arguments)
    found = levels(run, *(["--management", management] if management else []))
    assert found["problem"] == [f"lanes.orders.inbound[0].queue: 'orders.high' {problem}"]
    assert any("management API can't be asked" in note for note in found["note"]) == (management is not None)


@pytest.mark.usefixtures("inbound")
@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://127.0.0.1:9", "http://127.0.0.1:9/api/overview: Connection refused"),
        ("http://u:hunter2@127.0.0.1:9/x", "http://127.0.0.1:9/x/api/overview: Connection refused"),
        ("nothing", "no host given"),
        ("{api}/no/such", "404"),
        ("http://guest:wrong@{host}", "401"),
    ],
)
def test_a_management_api_that_can_not_be_asked_is_a_note_and_says_what_to_do(
    run: Run, servers: Servers, url: str, problem: str
) -> None:
    host = urlsplit(servers.management_url).netloc.rpartition("@")[2]
    found = levels(run, "--management", url.format(api=servers.management_url, host=host))
    assert found["problem"] == []
    (note,) = (
        note for note in found["note"] if note.startswith("rabbitmq: the management API can't be asked")
    )
    assert problem in note
    assert "enable the plugin rabbitmq_management, or say where it is (--management URL)" in note
    assert "urlopen" not in note
    assert "hunter2" not in note


def test_streams_delivery_limits_and_policies(run: Run, vhost: Vhost) -> None:
    with channel(vhost) as declaring:
        arguments = {"x-queue-type": "quorum", "x-delivery-limit": 7}
        declaring.queue_declare("orders.high", durable=True, arguments=arguments)
        declaring.queue_declare("bills", durable=True, arguments={"x-queue-type": "stream"})
    policy = {"pattern": ".*", "definition": {"max-length": 3}, "apply-to": "queues"}
    vhost.management(f"policies/{vhost.name}/short", "PUT", policy)
    found = levels(run)
    assert found["problem"] == [
        "lanes.bills.inbound[0].queue: 'bills' is a stream; it must be a classic or quorum queue"
    ]
    limit, *policies = found["warning"]
    assert "'orders.high' drops a message that came back more than 7 times" in limit
    assert [line.split(":")[0] for line in policies] == ["lanes.orders", "lanes.bills"]
    assert "policy 'short' sets max-length on" in policies[0]


@pytest.mark.usefixtures("inbound")
@pytest.mark.parametrize("kind", ["policies", "operator-policies"])
def test_a_policy_that_limits_parking_queues(run: Run, vhost: Vhost, kind: str) -> None:
    with channel(vhost) as declaring:
        declaring.queue_delete("bills")
        declaring.queue_declare("bills", durable=True, arguments={"x-queue-type": "quorum"})
    policy = {"pattern": r"\.park\.", "definition": {"delivery-limit": 20}, "apply-to": "queues"}
    vhost.management(f"{kind}/{vhost.name}/limited", "PUT", policy)
    (warning,) = [text for text in levels(run)["warning"] if "limited" in text]
    assert warning.startswith("lanes.bills: "), "classic queues know no such limit"
    assert ("operator policy 'limited'" in warning) is (kind == "operator-policies")
    assert "sets delivery-limit on" in warning
    assert ".bills.park.1, " in warning


@pytest.mark.usefixtures("inbound")
def test_parking_queues_with_limits(run: Run, vhost: Vhost) -> None:
    """The lane takes them as they are. No other queue of its own is taken with such an argument."""
    names = LaneNames("orders", vhost.redis_prefix)
    first, second, third, fourth, _ = parking_queues(names, 5)
    quorum = parking_arguments(quorum=True)
    with channel(vhost) as declaring:
        declaring.queue_delete("orders.high")
        declaring.queue_declare("orders.high", durable=True, arguments={"x-queue-type": "quorum"})
        for queue, arguments in (
            (first, {**quorum, "x-max-length": 3, "x-expires": 900_000}),
            (second, {**quorum, "x-delivery-limit": 7}),
            (third, quorum),
            (fourth, {"x-queue-type": "classic", "x-message-ttl": 900_000}),
            (names.dead, {**quorum, "x-max-length": 3}),
        ):
            declaring.queue_declare(queue, durable=True, arguments=arguments)
    found = levels(run)
    limits = [text for text in found["warning"] if "parking queue" in text]
    assert [re.findall(r"parking queue '(\S+)' has (.+), which", text) for text in limits] == [
        [(first, "x-max-length, x-expires")],
        [(second, "x-delivery-limit 7")],
        [(fourth, "x-message-ttl")],
    ]
    classic = [text for text in found["warning"] if "is a classic queue" in text]
    assert [fourth in text for text in classic] == [True]
    assert [names.dead in text for text in found["problem"]] == [True]


@pytest.mark.parametrize(("version", "is_limited"), [("3.13.7", False), ("4.0.5", True)])
def test_a_parking_queue_without_a_limit_has_one_from_rabbitmq_4_on(version: str, is_limited: bool) -> None:
    names = LaneNames("orders", "dispatch")
    (name,) = parking_queues(names, 1)
    queue = {"name": name, "type": "quorum", "arguments": {"x-queue-type": "quorum"}}
    findings = Findings()
    _check_parking(names, {name: queue}, version, findings)
    assert ["has x-delivery-limit 20," in finding.text for finding in findings.all()] == [True] * is_limited
    findings = Findings()
    limited = {**queue, "effective_policy_definition": {"delivery-limit": 9}}
    _check_parking(names, {name: limited}, version, findings)
    assert findings.all() == []


@pytest.mark.usefixtures("inbound")
def test_a_policy_that_harms_queues_of_both_kinds(run: Run, vhost: Vhost) -> None:
    """One inbound queue of `orders` is a quorum queue, so what keeps messages is one, and control is not."""
    with channel(vhost) as declaring:
        declaring.queue_delete("orders.high")
        declaring.queue_declare("orders.high", durable=True, arguments={"x-queue-type": "quorum"})
    definition = {"message-ttl": 1_000, "delivery-limit": 20}
    policy = {"pattern": "orders", "definition": definition, "apply-to": "queues"}
    vhost.management(f"policies/{vhost.name}/both", "PUT", policy)
    (warning,) = [text for text in levels(run)["warning"] if "'both'" in text]
    assert re.search(r"message-ttl on \S+\.control and delivery-limit on \S+\.dead,", warning)


def test_a_consumer_timeout_of_a_queue(run: Run, vhost: Vhost) -> None:
    """RabbitMQ before 3.12 takes the argument and ignores it."""
    with channel(vhost) as declaring:
        declaring.queue_declare("orders.high", durable=True, arguments={"x-consumer-timeout": 90_000})
    found = levels(run)
    (said,) = [text for text in found["note"] + found["warning"] if "consumer timeout of" in text]
    assert said.startswith("lanes.orders.inbound[0].queue: ")


def test_a_consumer_timeout_is_obeyed_from_rabbitmq_3_12_on() -> None:
    findings = Findings()
    queue = {"name": "in", "effective_policy_definition": {"consumer-timeout": 90_000}}
    _check_inbound("path", queue, "3.11.9", findings)
    _check_inbound("path", queue, "4.0.5", findings)
    old, new = findings.all()
    assert (old.level, old.text) == (Level.NOTE, "path: RabbitMQ 3.11.9 ignores the consumer timeout of 'in'")
    assert new.level is Level.WARNING
    assert "'in' has a consumer timeout of 90s" in new.text


@pytest.mark.usefixtures("inbound")
@pytest.mark.parametrize(
    ("rights", "expected"),
    [
        (
            {"configure": "^$", "write": ".*", "read": ".*"},
            ["configure right on {p}.control, {p}.command, {p}.heartbeat, {p}.lock, {p}.witness, {p}.dead, "
             "orders.low, {p}, {p}.in, {p}.ops"],
        ),
        (
            {"configure": ".*", "write": "^$", "read": ".*"},
            ["write right on {p}.control, {p}.heartbeat, {p}.command, {p}.witness, {p}.dead, {p}, "
             "amq.default"],
        ),
        (
            {"configure": ".*", "write": ".*", "read": "^$"},
            ["read right on {p}.in, {p}.ops, {p}, {p}.control, {p}.command, {p}.heartbeat, {p}.lock, "
             "{p}.witness, orders.high, orders.low"],
        ),
        (
            {"configure": ".*", "write": r".*\.orders(\..*)?$", "read": r"^(?!orders\.high)"},
            ["write right on amq.default", "read right on orders.high"],
        ),
    ],
)  # fmt: skip
def test_missing_rights_are_named_and_nothing_is_left_behind(
    run: Run, vhost: Vhost, config_file: Path, limited_user: str, rights: dict[str, str], expected: list[str]
) -> None:
    vhost.management(f"permissions/{vhost.name}/{limited_user}", "PUT", rights)
    as_user(config_file, vhost, limited_user)
    before = names_on(vhost)
    lane = f"{vhost.redis_prefix}.orders"
    problems = [line for line in levels(run)["problem"] if line.startswith("lanes.orders: ")]
    assert problems == [
        f"lanes.orders: user {limited_user!r} has no {text.format(p=lane)}" for text in expected
    ]
    assert names_on(vhost) == before


@pytest.mark.usefixtures("inbound")
def test_rights_on_the_queues_of_hand_over_consumers(
    run: Run, vhost: Vhost, config_file: Path, limited_user: str
) -> None:
    rights = {"configure": r"^(?!.*\.rejected)", "write": ".*", "read": r"^(?!.*\.consumer\.)"}
    vhost.management(f"permissions/{vhost.name}/{limited_user}", "PUT", rights)
    as_user(config_file, vhost, limited_user)
    keys = "orders: {handover: true, consumers: [{id: a}, {id: b}], inbound:"
    config_file.write_text(config_file.read_text().replace("orders: {inbound:", keys))
    lane = f"{vhost.redis_prefix}.orders"
    problems = [line for line in levels(run)["problem"] if line.startswith("lanes.orders: ")]
    assert problems == [
        f"lanes.orders: user {limited_user!r} has no configure right on {lane}.rejected",
        f"lanes.orders: user {limited_user!r} has no read right on {lane}.consumer.a, {lane}.consumer.b",
    ]


@pytest.mark.usefixtures("inbound")
def test_a_user_without_the_vhost_and_a_wrong_password(
    run: Run, vhost: Vhost, config_file: Path, limited_user: str
) -> None:
    as_user(config_file, vhost, limited_user)
    (problem,) = levels(run)["problem"]
    assert f"user '{limited_user}' can't use vhost '{vhost.name}'" in problem
    config_file.write_text(config_file.read_text().replace(":pw@", ":hunter2@"))
    (problem,) = levels(run)["problem"]
    assert problem.endswith(f"user '{limited_user}' is refused (wrong user or password in rabbitmq.url)")


def test_every_server_that_is_away_is_reported_at_once(run: Run, config_file: Path, servers: Servers) -> None:
    text = config_file.read_text().replace(servers.redis_url, "redis://127.0.0.1:9/0")
    port = str(urlsplit(servers.amqp_url).port)
    config_file.write_text(text.replace(f":{port}/", ":9/"))
    found = levels(run)
    assert [line.split(":")[0] for line in found["problem"]] == ["rabbitmq.url", "redis.url"]
    assert "RabbitMQ at 127.0.0.1:9: can't be reached (Connection refused)" in found["problem"][0]
    result = run("check")
    assert result.stderr == "dispatcher: 2 problems found, the lanes can't run like this\n"
