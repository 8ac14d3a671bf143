"""Connection URLs: read exactly, and shown without their password."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.settings import RabbitSettings, RedisSettings
from dispatcher.settings.urls import (
    BrokerAddress,
    join_store_urls,
    parse_broker_url,
    parse_listen,
    parse_store_url,
    redact,
)


@pytest.mark.parametrize(
    ("url", "host", "port", "tls", "vhost", "user", "password"),
    [
        ("amqp://h", "h", 5672, False, "/", "guest", "guest"),
        ("amqp://h/", "h", 5672, False, "/", "guest", "guest"),
        ("amqps://u:p%40ss@h/a%2Fb", "h", 5671, True, "a/b", "u", "p@ss"),
        ("amqp://u:p@[::1]:1234/v.1", "::1", 1234, False, "v.1", "u", "p"),
    ],
)
def test_broker_urls(url: str, host: str, port: int, tls: bool, vhost: str, user: str, password: str) -> None:
    assert parse_broker_url(url) == BrokerAddress(host, port, tls, vhost, user, password)


def test_store_urls() -> None:
    address = parse_store_url("rediss://:p%2Fw@r:7000/3")
    assert (address.host, address.port, address.tls, address.database) == ("r", 7000, True, 3)
    assert (address.user, address.password) == (None, "p/w")
    assert parse_store_url("redis://r").password is None


@pytest.mark.parametrize(
    ("url", "sentinels", "service", "server"),
    [
        ("redis+sentinel://h/main", (("h", 26379),), "main", "redis://r:7000/0"),
        ("rediss+sentinel://h,i:1/m/3", (("h", 26379), ("i", 1)), "m", "rediss://r:7000/3"),
        ("redis+sentinel://:p%2Fw@[::1]:5,h/a%20b/1", (("::1", 5), ("h", 26379)), "a b",
         "redis://:p%2Fw@r:7000/1"),
        ("redis+sentinel://u:p@h,i/main", (("h", 26379), ("i", 26379)), "main", "redis://u:p@r:7000/0"),
    ],
)  # fmt: skip
def test_sentinel_urls(url: str, sentinels: tuple[tuple[str, int], ...], service: str, server: str) -> None:
    address = parse_store_url(url)
    assert (address.sentinels, address.service) == (sentinels, service)
    assert address.url_of("r", 7000) == server
    named = parse_store_url(server)
    assert (named.user, named.password, named.tls) == (address.user, address.password, address.tls)


@pytest.mark.parametrize(
    ("url", "nodes", "server"),
    [
        ("redis+cluster://h", (("h", 6379),), "redis://r:7000/0"),
        ("redis+cluster://u:p%2Fw@h:1,[::1]:2/0", (("h", 1), ("::1", 2)), "redis://u:p%2Fw@r:7000/0"),
        ("rediss+cluster://h,i/", (("h", 6379), ("i", 6379)), "rediss://r:7000/0"),
    ],
)
def test_cluster_urls(url: str, nodes: tuple[tuple[str, int], ...], server: str) -> None:
    address = parse_store_url(url)
    assert (address.nodes, address.sentinels) == (nodes, ())
    assert address.url_of("r", 7000) == server


@pytest.mark.parametrize(
    ("urls", "url"),
    [
        (["redis://:p@h:1/3"], "redis://:p@h:1/3"),
        (["redis+sentinel://u:p@h/m/2", "redis+sentinel://u:p@i:1,j/m/2"],
         "redis+sentinel://u:p@h,i:1,j/m/2"),
        (["rediss+cluster://:p@h", "rediss+cluster://:p@i:1/0"], "rediss+cluster://:p@h,i:1"),
    ],
)  # fmt: skip
def test_a_list_is_read_as_one_url_with_all_hosts(urls: list[str], url: str) -> None:
    assert join_store_urls(urls) == RedisSettings(urls=tuple(urls)).address == parse_store_url(url)


def test_a_list_of_servers() -> None:
    address = join_store_urls(["redis://u:p@h/3", "redis://u:p@i:1/3"])
    assert address.servers == (("h", 6379), ("i", 1))
    assert (address.nodes, address.sentinels) == ((), ())
    assert (address.user, address.password, address.database) == ("u", "p", 3)


@pytest.mark.parametrize("text", ["127.0.0.1:0", "localhost:8642", "0.0.0.0:1"])
def test_listen(text: str) -> None:
    host, port = parse_listen(text)
    assert f"{host}:{port}" == text
    assert parse_listen("[::1]:8642") == ("::1", 8642)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("amqp://u:p@h/", "amqp://u:***@h/"),
        ("amqp://u:p@ss@h/", "amqp://u:***@h/"),
        ("amqp://u:p/w@h/", "amqp://u:***@h/"),
        ("rediss://:pw@h:1/0", "rediss://:***@h:1/0"),
        ("no route to amqp://u:p@h/ or redis://:q@r", "no route to amqp://u:***@h/ or redis://:***@r"),
        ("amqp://h:5672/", "amqp://h:5672/"),
        ("redis://h/0 for a@b", "redis://h/0 for a@b"),
    ],
)
def test_redact(text: str, shown: str) -> None:
    assert redact(text) == shown


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Z", "C"]), min_size=3))
def test_no_password_survives_redaction(password: str) -> None:
    shown = redact(f"amqp://somebody:{password}%00@h.example/v")
    assert shown == "amqp://somebody:***@h.example/v"


def test_settings_never_show_passwords() -> None:
    rabbitmq = RabbitSettings(url="amqp://u:hunter2@h/")
    redis = RedisSettings(url="redis://:hunter2@h/0")
    several = RedisSettings(urls=("redis://:hunter2@h/0", "redis://:hunter2@i/0"))
    for shown in (
        repr(several),
        repr(several.at("i", 6379)),
        repr(several.address),
        repr(rabbitmq),
        str(rabbitmq),
        repr(redis),
        str(redis),
        repr(rabbitmq.address),
        repr(redis.address),
    ):
        assert "hunter2" not in shown
