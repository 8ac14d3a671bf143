"""The configuration file: what it may say, and how it is refused."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from dispatcher.errors import ConfigurationError
from dispatcher.settings import Chosen, InboundSettings, PolicyName, SequenceCheck, Settings
from dispatcher.settings import file as config

CONTRACT_EXAMPLE = """
rabbitmq: {url: "amqp://guest:guest@localhost:5672/"}
redis:    {url: "redis://localhost:6379/0"}
http:     {listen: "127.0.0.1:8642"}
defaults: {group_header: [x-group-id]}
match:
  - {lanes: "orders.*", policy: sequenced}
lanes:
  orders:
    policy: exclusive
    inbound:
      - {queue: orders.high, weight: 4}
      - {queue: orders.low, weight: 1}
"""


def parse(text: str, **environ: str) -> Settings:
    return config.parse(textwrap.dedent(text), environ)


def problems(text: str, **environ: str) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        parse(text, **environ)
    return [re.sub(r" \(line [0-9]+(: .*)?\)$", "", line) for line in caught.value.problems]


def lane_problems(keys: str, **environ: str) -> list[str]:
    """Problems of the lane `a` with these keys (flow style), less the lane's path."""
    found = problems(f"lanes: {{a: {{inbound: [{{queue: q}}], {keys}}}}}", **environ)
    return [line.removeprefix("lanes.a.") for line in found]


def test_a_problem_names_line_and_value_of_the_file() -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse(
            """
            rabbitmq: {url: "amqp:/app:hunter2@mq"}
            redis:
              password: hunter2
            lanes:
              orders:
                inbound: [{queue: q, weight: 0}]
                policy: "strict\\t"
                top_up: ${TOP_UP}
                look_ahead: 1
              bills: {inbound: q}
            defaults: {reconnect_grace: soon}
            """,
            TOP_UP="secret",
        )
    found = caught.value.problems
    for path, place in {
        "rabbitmq.url": "(line 2)", "redis.password": "(line 4)",
        "lanes.orders.inbound[0].weight": "(line 7: 0)",
        "lanes.orders.policy": "(line 8: 'strict\\t')", "lanes.orders.top_up": "(line 9: ${TOP_UP})",
        "lanes.bills.inbound": "(line 11: q)", "defaults.reconnect_grace": "(line 12: soon)",
    }.items():  # fmt: skip
        (line,) = [line for line in found if line.startswith(f"{path}: ")]
        assert line.endswith(f" {place}")
    assert not re.search("hunter2|secret", str(found))


def test_the_example_of_the_contract_loads() -> None:
    settings = parse(CONTRACT_EXAMPLE)
    lane = settings.lanes["orders"]
    assert lane.policy is PolicyName.EXCLUSIVE
    assert lane.inbound == (
        InboundSettings(queue="orders.high", weight=4),
        InboundSettings(queue="orders.low", weight=1),
    )
    assert (settings.http.host, settings.http.port) == ("127.0.0.1", 8642)
    assert settings.rabbitmq.address.vhost == "/"


def test_defaults_are_the_contracts() -> None:
    settings = parse("lanes: {a: {inbound: [{queue: q}]}}")
    lane = settings.lanes["a"]
    assert (lane.name, lane.policy, lane.inbound[0].weight, lane.inbound[0].declare) == (
        "a", PolicyName.EXCLUSIVE, 1, False,
    )  # fmt: skip
    assert (lane.group_header, lane.sequence_header, lane.first_header) == (
        ("x-group-id",),
        "x-group-seq",
        None,
    )
    assert lane.group_map == Chosen("exact")
    assert (lane.rebalance.on_join, lane.rebalance.pause) == (False, "group")
    assert (lane.placement, lane.cost) == ("fewest", Chosen("1"))
    assert (lane.start.consumers, lane.start.wait_ms) == (0, 0)
    assert (lane.ungrouped, lane.top_up, lane.group_idle_timeout_ms) == ("balance", False, None)
    assert (lane.reconnect_grace_ms, lane.liveness_interval_ms, lane.heartbeat_ms) == (0, 500, 5_000)
    assert (lane.look_ahead, lane.look_ahead_bytes) == (10_000, 256 * 1024 * 1024)
    assert lane.park_after_ms == 600_000
    assert lane.dedup is None
    assert lane.sequence_check is SequenceCheck.OFF
    assert lane.retry.attempts == 3
    assert (settings.prefix, settings.redis.timeout_ms, settings.rabbitmq.heartbeat_ms) == (
        "dispatch", 2_000, 10_000,
    )  # fmt: skip


def test_every_key_arrives_under_its_attribute() -> None:
    lane = parse("""
        lanes:
          a:
            policy: sequenced
            inbound: [{queue: q, weight: 7, declare: true}]
            group_header: [JMSXGroupID, "property:message_id", routing_key]
            sequence_header: null
            first_header: x-first
            ungrouped: group:rest
            top_up: true
            reconnect_grace: 5s
            liveness_interval: 250ms
            heartbeat: 2m
            look_ahead: 60000
            look_ahead_bytes: 64KiB
            park_after: 90s
            retry: {attempts: 5}
            dedup: {window: 10m, max_ids: 5000}
            sequence_check: off
        """).lanes["a"]
    assert lane.inbound == (InboundSettings(queue="q", weight=7, declare=True),)
    assert lane.group_header == ("JMSXGroupID", "property:message_id", "routing_key")
    assert (lane.sequence_header, lane.first_header, lane.ungrouped) == (None, "x-first", "group:rest")
    assert (lane.policy, lane.top_up) == (PolicyName.SEQUENCED, True)
    assert (lane.reconnect_grace_ms, lane.liveness_interval_ms, lane.heartbeat_ms) == (5_000, 250, 120_000)
    assert (lane.look_ahead, lane.look_ahead_bytes) == (60_000, 65_536)
    assert lane.park_after_ms == 90_000
    assert lane.retry.attempts == 5
    assert lane.dedup is not None
    assert (lane.dedup.window_ms, lane.dedup.max_ids) == (600_000, 5_000)
    assert lane.sequence_check is SequenceCheck.OFF, "which YAML reads as false"


def test_lane_beats_first_match_beats_defaults() -> None:
    lanes = parse("""
        defaults: {look_ahead: 1, policy: sequenced, heartbeat: 1s}
        match:
          - {lanes: "orders.*", look_ahead: 2}
          - {lanes: "#", look_ahead: 3, heartbeat: 3s}
        lanes:
          orders.eu: {inbound: [{queue: a}]}
          orders.us: {inbound: [{queue: b}], look_ahead: 9}
          orders: {inbound: [{queue: c}]}
        """).lanes
    assert [lane.look_ahead for lane in lanes.values()] == [2, 9, 3]
    assert [lane.heartbeat_ms for lane in lanes.values()] == [1_000, 1_000, 3_000]
    assert {lane.policy for lane in lanes.values()} == {PolicyName.SEQUENCED}


@pytest.mark.parametrize(
    ("pattern", "fits"),
    [
        ("orders", ["orders"]),
        ("orders.*", ["orders.eu"]),
        ("orders.#", ["orders", "orders.eu", "orders.eu.west"]),
        ("#", ["orders", "orders.eu", "orders.eu.west", "bills"]),
        ("*", ["orders", "bills"]),
        ("#.west", ["orders.eu.west"]),
        ("b*", ["bills"]),
        ("*s.e*", ["orders.eu"]),
    ],
)
def test_patterns_of_match(pattern: str, fits: list[str]) -> None:
    names = ["orders", "orders.eu", "orders.eu.west", "bills"]
    lanes = "".join(f"  {name}: {{inbound: [{{queue: q.{name}}}]}}\n" for name in names)
    settings = config.parse(f"match: [{{lanes: '{pattern}', look_ahead: 5}}]\nlanes:\n{lanes}", {})
    assert [name for name, lane in settings.lanes.items() if lane.look_ahead == 5] == fits


def test_a_bad_default_is_reported_once_where_it_is() -> None:
    assert problems("""
        defaults: {heartbeat: soon}
        lanes: {a: {inbound: [{queue: p}]}, b: {inbound: [{queue: q}]}}
        """) == ["defaults.heartbeat: must be a duration such as 500ms, 5s or 2m"]


def test_variables_come_from_the_environment() -> None:
    document = """
        rabbitmq: {url: "amqp://app:${PASSWORD}@${HOST:-mq}:5672/"}
        prefix: a${EMPTY:-b}
        lanes:
          a:
            inbound: [{queue: "${QUEUE}"}, {queue: "$${plain"}]
            look_ahead: ${LOOK_AHEAD:-3}
        """
    settings = parse(document, PASSWORD="s3cret", EMPTY="", QUEUE="${NOT_AGAIN}")
    address = settings.rabbitmq.address
    assert (address.host, address.password, settings.prefix) == ("mq", "s3cret", "ab")
    assert [inbound.queue for inbound in settings.lanes["a"].inbound] == ["${NOT_AGAIN}", "${plain"]
    assert settings.lanes["a"].look_ahead == 3


def test_a_variable_is_what_its_key_needs() -> None:
    settings = parse(
        """
        rabbitmq:
          ca_file: ${CA:-}
        lanes: {a: {inbound: [{queue: "${ONE}", weight: "${ONE}", declare: "${YES}"}]}}
        """,
        ONE="1", YES="true",
    )  # fmt: skip
    assert settings.rabbitmq.ca_file is None
    assert settings.lanes["a"].inbound[0] == InboundSettings(queue="1", weight=1, declare=True)


@pytest.mark.parametrize("value", ["", "one", "-1", "1.0", "9" * 99, "true"])
def test_a_variable_that_is_no_number_is_refused(value: str) -> None:
    assert lane_problems('look_ahead: "${N}"', N=value) == ["look_ahead: must be a positive integer"]


def test_missing_and_malformed_variables_are_named_with_their_path() -> None:
    assert problems("""
        redis: {url: "${REDIS_URL}"}
        lanes: {a: {inbound: [{queue: q, weight: "${W-3}"}], policy: "${POLICY}${TOO}"}}
        """) == [
        "redis.url: the environment variable REDIS_URL is not set",
        "lanes.a.inbound[0].weight: has a ${ that is neither "
        "${VAR} nor ${VAR:-default} (write $${ for a plain ${)",
        "lanes.a.policy: the environment variable POLICY is not set",
        "lanes.a.policy: the environment variable TOO is not set",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "the configuration must be a mapping with the key lanes"),
        ("- 1", "the configuration must be a mapping with the key lanes"),
        ("lanes: {}", "lanes: must be a mapping with at least one lane"),
        ("prefix: a", "lanes: must be a mapping with at least one lane"),
        ("lanes: {a: }", "lanes.a: must be a mapping with inbound and lane keys"),
        ("lanes: {a: {}}", "lanes.a.inbound: must be a list of 1 to 255 entries with queue and weight"),
        ("lanes: {a: {inbound: [q]}}", "lanes.a.inbound[0]: must be a mapping of keys to values"),
        ("lanes: {a: {inbound: [{weight: 1}]}}", "lanes.a.inbound[0].queue: is required"),
        ("lanes: {a: {inbound: [{queue: 7}]}}", "lanes.a.inbound[0].queue: must be text (put it in quotes)"),
        (
            "lanes: {a: {inbound: [{queue: q, weight: 1001}]}}",
            "lanes.a.inbound[0].weight: must be at most 1000",
        ),
        (
            "lanes: {a.park.b: {inbound: [{queue: q}]}}",
            "lanes.a.park.b: the name must not have the segment 'park'",
        ),
        (
            "lanes: {a b: {inbound: [{queue: q}]}}",
            "lanes.a b: the name must be segments of A-Z a-z 0-9 _ -",
        ),
        (
            "lanes: {a: {inbound: [{queue: q}, {queue: q}]}}",
            "lanes.a.inbound[1].queue: 'q' is an inbound queue of lane a already",
        ),
        (
            "lanes: {a: {inbound: [{queue: q}]}, b: {inbound: [{queue: q}]}}",
            "lanes.b.inbound[0].queue: 'q' is an inbound queue of lane a already",
        ),
        (
            "lanes: {a: {inbound: [{queue: dispatch.b.dead}]}}",
            "lanes.a.inbound[0].queue: 'dispatch.b.dead' is under the dispatcher's own prefix 'dispatch'; "
            "lanes can't be chained: choose another queue or prefix",
        ),
        (
            "lanes: {a: {inbound: [{queue: amq.q, declare: true}]}}",
            "lanes.a.inbound[0].queue: 'amq.q' begins with amq., which RabbitMQ keeps for itself",
        ),
        (
            "lanes: {a: {inbound: [{queue: amq.rabbitmq.reply-to}]}}",
            "lanes.a.inbound[0].queue: 'amq.rabbitmq.reply-to' begins with amq., which RabbitMQ keeps",
        ),
        ("{lanes: {a: {inbound: [{queue: q}]}}, lane: 1}", "lane: unknown key; is lanes meant?"),
        ("a: &a [*a]\nlanes: {b: {inbound: [{queue: q}]}}", "a[0]: contains itself by an alias"),
        ("lanes: {a: {inbound: [{queue: q}]}, a: {}}", "lanes.a: is there twice (lines 1 and 1)"),
        (
            "lanes: {a: {inbound: [{queue: !!binary cQ==}]}}",
            "lanes.a.inbound[0].queue: the YAML tag 'tag:yaml.org,2002:binary' is not known here",
        ),
        (
            "lanes: {a: {inbound: [{queue: q}], <<: {policy: exclusive}}}",
            "lanes.a: the merge key in line 1 is not known here; use defaults or match",
        ),
        ("lanes: [", "line 1, column 9: not YAML: "),
        ("lanes:\n  a: \x00", "line 2, column 6: not YAML: #x0000: special characters are not allowed"),
        ("[" * 3000, "not a configuration: nested too deeply"),
        ("--- 1\n--- 2", "line 2, column 1: not YAML: but found another document"),
    ],
)
def test_documents_refused(text: str, expected: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        config.parse(text, {})
    assert caught.value.problems[0].startswith(expected)


def test_a_key_that_is_there_twice_has_two_lines_and_no_third() -> None:
    with pytest.raises(ConfigurationError) as caught:
        config.parse("lanes:\n  a:\n    inbound: [{queue: q}]\n  a: {}\n", {})
    assert caught.value.problems == ["lanes.a: is there twice (lines 2 and 4)"]


def test_what_is_no_yaml_is_named_by_file_line_and_column(tmp_path: Path) -> None:
    file = tmp_path / "lanes.yaml"
    for text, place in (("lanes:\n\ta: 1", "line 2, column 1"), ("lanes:\n  - \x07", "line 2, column 5")):
        file.write_text(text)
        with pytest.raises(ConfigurationError) as caught:
            config.load(file, {})
        assert str(caught.value).startswith(f"{file}, {place}: not YAML: ")


def test_an_alias_bomb_is_refused_before_it_fills_the_memory() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    with pytest.raises(ConfigurationError, match="more than 100000 values"):
        config.parse("\n".join(lines), {})


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ("rabbitmq: {url: 'http://h/'}", "rabbitmq.url: must be a URL that begins with amqp:// or amqps://"),
        ("rabbitmq: {url: 'amqp:///x'}", "rabbitmq.url: the URL names no host"),
        ("rabbitmq: {url: 'amqp://h:99999/'}", "rabbitmq.url: is not a URL"),
        ("rabbitmq: {url: 'amqp://h/a/b'}", "rabbitmq.url: the vhost in the URL must be percent-encoded"),
        ("rabbitmq: {url: 'amqp://h/?heartbeat=5'}", "rabbitmq.url: the URL must end after its path"),
        ("redis: {url: 'redis+sentinel://h,i'}", "redis.url: the URL must name the service"),
        ("redis: {url: 'redis+sentinel://h,/main'}", "redis.url: the URL names no host"),
        ("redis: {url: 'redis+sentinel://h:0/main'}", "redis.url: the port must be 1 to 65535"),
        ("redis: {url: 'redis+sentinel://h/main/x'}", "redis.url: after the service the URL must end with"),
        ("redis: {sentinel_password: 'env:X'}", "redis.sentinel_password: needs a URL of Sentinels"),
        ("redis: {url: 'redis+sentinel://h/m', sentinel_user: u}", "redis.sentinel_user: needs sentinel_"),
        ("redis: {sentinel_password: hunter2}", "redis.sentinel_password: must be file:PATH or env:NAME"),
        ("redis: {url: 'redis+cluster://h,i/1'}", "redis.url: the URL must end after its hosts"),
        ("redis: {url: 'redis+cluster://h,'}", "redis.url: the URL names no host"),
        ("redis: {url: 'redis+sentinel://h/m', server_name: r}", "redis.server_name: needs a URL with TLS"),
        ("redis: {urls: []}", "redis.urls: must have at least one entry"),
        ("redis: {urls: 'redis://h'}", "redis.urls: must be a list"),
        (
            "redis: {urls: ['redis://h', 'amqp://h/']}",
            "redis.urls[1]: must be a URL that begins with redis://",
        ),
        ("redis: {url: 'redis://h', urls: ['redis://i']}", "redis.urls: takes the place of url"),
        ("redis: {urls: ['redis://h', 'rediss://i']}", "redis.urls: all URLs must be the same but for host"),
        ("redis: {urls: ['redis://h', 'redis+cluster://i']}", "redis.urls: all URLs must be the same but"),
        (
            "redis: {urls: ['redis://h/0', 'redis://i/1']}",
            "redis.urls: all URLs must be the same but for host",
        ),
        ("redis: {urls: ['redis://:p@h', 'redis://:q@i']}", "redis.urls: all URLs must be the same but for"),
        ("redis: {urls: ['redis://u:p@h', 'redis://v:p@i']}", "redis.urls: all URLs must be the same but"),
        (
            "redis: {urls: ['redis+sentinel://h/m', 'redis+sentinel://i/n']}",
            "redis.urls: all URLs must be the",
        ),
        ("redis: {urls: ['redis://h'], server_name: r}", "redis.server_name: needs a URL with TLS"),
        ("rabbitmq: {urls: []}", "rabbitmq.urls: must have at least one entry"),
        ("rabbitmq: {urls: 'amqp://h/'}", "rabbitmq.urls: must be a list"),
        ("rabbitmq: {urls: ['amqp://h/', 'http://h/']}", "rabbitmq.urls[1]: must be a URL that begins with"),
        ("rabbitmq: {url: 'amqp://h/', urls: ['amqp://i/']}", "rabbitmq.urls: takes the place of url"),
        ("rabbitmq: {urls: ['amqp://h/a', 'amqp://h/b']}", "rabbitmq.urls: all URLs must begin in the same"),
        ("rabbitmq: {urls: ['amqp://h/', 'amqps://i/']}", "rabbitmq.urls: all URLs must begin in the same"),
        ("rabbitmq: {heartbeat: 1500ms}", "rabbitmq.heartbeat: must be whole seconds"),
        ("rabbitmq: {heartbeat: 0}", "rabbitmq.heartbeat: must be from 1s to 10m"),
        ("rabbitmq: {server_name: mq}", "rabbitmq.server_name: needs a URL with TLS"),
        ("rabbitmq: ", "rabbitmq: must be a mapping of keys to values"),
        ("redis: {url: 'redis://h/one'}", "redis.url: the path of the URL must be a database number"),
        ("redis: {url: 'rediss://h', ca_file: /nowhere/ca}", "redis.ca_file: there is no file /nowhere/ca"),
        ("redis: {timeout: 0}", "redis.timeout: must be from 10ms to 1m"),
        ("http: {listen: '8642'}", "http.listen: must be host:port"),
        ("http: {tokens: {viewer: hunter2}}", "http.tokens.viewer: must be file:PATH or env:NAME, where"),
        ("http: {tokens: {operator: 'file:'}}", "http.tokens.operator: must be file:PATH or env:NAME, where"),
        ("http: {tokens: {operater: 'env:X'}}", "http.tokens.operater: unknown key; is operator meant?"),
        ("http: {listen: 'h:65536'}", "http.listen: must be host:port"),
        ("http: {key_file: pyproject.toml}", "http.key_file: needs cert_file"),
        ("http: {ca_file: pyproject.toml}", "http.ca_file: needs cert_file"),
        ("http: {cert_file: /nowhere/pem}", "http.cert_file: there is no file /nowhere/pem"),
        ("workers: 0", "workers: must be a positive integer"),
        ("workers: two", "workers: must be a positive integer"),
        ("workers: 65", "workers: must be at most 64"),
        ("workers: 2\nspread_lanes: false", "workers: needs spread_lanes: true"),
        ("workers: 3\nhttp: {listen: 'h:65534'}", "workers: the last one would listen on a port above 65535"),
        ("prefix: a..b", "prefix: must be segments of"),
        ("prefix: 5", "prefix: must be text"),
        ("prefix: amq.x", "prefix: must not begin with amq, which RabbitMQ keeps for itself"),
        ("defaults: {inbound: []}", "defaults.inbound: belongs to one lane"),
        ("defaults: []", "defaults: must be a mapping"),
        ("match: {}", "match: must be a list"),
        ("match: [x]", "match[0]: must be a mapping"),
        ("match: [{policy: exclusive}]", "match[0].lanes: must be a pattern"),
        ("match: [{lanes: 'a..b'}]", "match[0].lanes: must be a pattern"),
        ("match: [{lanes: 'a.?'}]", "match[0].lanes: must be a pattern"),
        ("defaults: {dedup: {window: 500ms}}", "defaults.dedup.window: must be from 1s to 7d"),
        ("defaults: {dedup: {max_ids: 10}}", "defaults.dedup.max_ids: must be an integer from 1000"),
        ("defaults: {dedup: {max_ids: 10000001}}", "defaults.dedup.max_ids: must be at most 10000000"),
        ("defaults: {dedup: {ids: 1}}", "defaults.dedup.ids: unknown key"),
        ("defaults: {dedup: yes}", "defaults.dedup: must be a mapping"),
        ("match: [{lanes: a, look_ahead: 0}]", "match[0].look_ahead: must be a positive integer"),
    ],
)
def test_sections_refused(section: str, expected: str) -> None:
    found = problems(f"{section}\nlanes: {{a: {{inbound: [{{queue: q}}]}}}}")
    assert len(found) == 1
    assert found[0].startswith(expected)


def test_key_file_without_certificate_is_refused(tmp_path: Path) -> None:
    (tmp_path / "key").touch()
    section = f"rabbitmq: {{url: 'amqps://h/', key_file: '{tmp_path}/key'}}"
    assert problems(f"{section}\nlanes: {{a: {{inbound: [{{queue: q}}]}}}}") == [
        "rabbitmq.key_file: needs cert_file"
    ]


def test_everything_is_reported_at_once() -> None:
    found = problems("""
        rabbitmq: {url: "amqp://u:hunter2@h:0/"}
        redis: {timeout: 5}
        defaults: {top_up: true}
        lanes:
          orders:
            look_ahead: 0
            inbound: [{queue: q, weight: 1}, {queue: r, weight: -1}]
          bills:
            inbound: [{queue: q}]
            policy: "${POLICY}"
            max: 1
        """)
    assert found == [
        "lanes.bills.policy: the environment variable POLICY is not set",
        "rabbitmq.url: the port must be 1 to 65535",
        "redis.timeout: must be a duration such as 500ms, 5s or 2m",
        "lanes.orders.inbound[1].weight: must be a positive integer",
        "lanes.orders.look_ahead: must be a positive integer",
        "lanes.orders.top_up: only works with policy: sequenced (set in defaults)",
        "lanes.bills.max: unknown key",
        "lanes.bills.inbound[0].queue: 'q' is an inbound queue of lane orders already",
    ]
    assert "hunter2" not in "".join(found)


def test_load_names_the_file_it_could_not_read(tmp_path: Path) -> None:
    missing, binary = tmp_path / "none.yaml", tmp_path / "binary.yaml"
    with pytest.raises(ConfigurationError, match=rf"{re.escape(str(missing))}: No such file .* -c FILE"):
        config.load(missing, {})
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match="not a text file in UTF-8"):
        config.load(binary, {})
    good = tmp_path / "dispatcher.yaml"
    good.write_text(CONTRACT_EXAMPLE)
    assert list(config.load(good, {}).lanes) == ["orders"]


def test_the_value_within_a_choice_is_named() -> None:
    (problem,) = problems("lanes: {orders: {group_map: {lru: x}, inbound: [{queue: in}]}}")
    assert problem.startswith("lanes.orders.group_map: lru: ")
    assert problem.endswith(", not x")


def test_shards_are_lanes_with_queues_of_their_own() -> None:
    text = """
        defaults: {shards: 2}
        lanes:
          orders: {top_up: true, policy: sequenced, inbound: [{queue: high, weight: 4}, {queue: low}]}
          bills: {shards: 1, inbound: [{queue: bills}]}
    """
    lanes = parse(text).lanes
    assert list(lanes) == ["orders@1", "orders@2", "bills"]
    for number in (1, 2):
        lane = lanes[f"orders@{number}"]
        assert (lane.name, lane.shards, lane.shard) == (f"orders@{number}", 2, ("orders", number, 2))
        assert [(each.queue, each.weight) for each in lane.inbound] == [
            (f"high@{number}", 4),
            (f"low@{number}", 1),
        ]
        assert lane.top_up
    assert lanes["bills"].shard is None


def test_names_that_shards_make_impossible_are_refused() -> None:
    assert problems("lanes: {'a@1': {inbound: [{queue: q}]}}")[0].startswith("lanes.a@1: the name must be ")
    found = problems("lanes: {a: {shards: 2, inbound: [{queue: q}]}, b: {inbound: [{queue: q@2}]}}")
    assert found == ["lanes.a.inbound[0].queue: 'q@2' is an inbound queue of lane b already"]
    (long,) = problems(f"lanes: {{a: {{shards: 10, inbound: [{{queue: {'q' * 253}}}]}}}}")
    assert long.startswith("lanes.a.inbound[0].queue: ")
    name = ".".join("x" * 50 for _ in range(4)) + "." + "x" * 20
    parse(f"lanes: {{{name}: {{inbound: [{{queue: q}}]}}}}")
    (long,) = problems(f"lanes: {{{name}: {{shards: 2, inbound: [{{queue: q}}]}}}}")
    assert long.startswith(f"lanes.{name}.shards: ")
