"""A private Redis comes back as its options say."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import redis

from dispatcher.errors import DispatcherError
from dispatcher.nodes import LocalRedis
from dispatcher.nodes.ports import LOOPBACK, free_ports
from dispatcher.nodes.process import GuardedProcess
from tests.waiting import wait_until


def _set(node: LocalRedis, value: str) -> None:
    with redis.Redis.from_url(node.url) as client:
        client.set("key", value)


def _get(node: LocalRedis) -> bytes | None:
    with redis.Redis.from_url(node.url) as client:
        value = client.get("key")
    assert value is None or isinstance(value, bytes)
    return value


def test_a_server_that_nobody_ended_has_ended_by_itself() -> None:
    with LocalRedis() as node:
        assert not node.has_ended_by_itself()
        with redis.Redis.from_url(node.url) as client:
            client.shutdown(nosave=True)
        wait_until(node.has_ended_by_itself)
        assert "bye bye" in node.log_tail()
        node.start()
        assert not node.has_ended_by_itself()
        node.kill9()
        assert not node.has_ended_by_itself()


def test_appending_redis_keeps_everything_over_kill9_and_a_clean_stop() -> None:
    with LocalRedis() as node:
        _set(node, "kept")
        url = node.url
        node.kill9()
        assert node.pid is None
        node.start()
        assert (node.url, _get(node)) == (url, b"kept")
        _set(node, "again")
        node.stop()
        with pytest.raises(redis.ConnectionError):
            _get(node)
        node.start()
        assert _get(node) == b"again"


def test_redis_without_append_only_comes_back_older() -> None:
    with LocalRedis(append_only=False) as node:
        _set(node, "old")
        with redis.Redis.from_url(node.url) as client:
            client.save()
        _set(node, "new")
        node.kill9()
        node.start()
        assert _get(node) == b"old"


def test_wiped_redis_comes_back_empty() -> None:
    with LocalRedis() as node:
        _set(node, "kept")
        node.kill9()
        node.wipe()
        node.start()
        assert _get(node) is None


def test_start_of_a_running_node_changes_nothing() -> None:
    with LocalRedis() as node:
        pid = node.pid
        node.start()
        assert node.pid == pid


def test_more_configuration_lines_count_and_a_password_does_not_hinder_the_start() -> None:
    with LocalRedis(config=["requirepass secret"]) as node, pytest.raises(redis.AuthenticationError):
        _get(node)


def test_server_that_refuses_its_configuration_is_quoted() -> None:
    with (
        pytest.raises(DispatcherError, match="no-such-directive"),
        LocalRedis(config=["no-such-directive 1"]),
    ):
        pass


class _BeatenToItsPort(LocalRedis):
    """The first port that it chose is taken before its server starts."""

    def __init__(self, taken: int) -> None:
        super().__init__()
        self._taken: int | None = taken

    def _lay_out(self, process: GuardedProcess) -> None:
        super()._lay_out(process)
        if self._taken is not None:
            self._port, self._taken = self._taken, None


def test_lost_race_for_a_port_is_tried_again() -> None:
    with socket.socket() as rival:
        rival.bind((LOOPBACK, 0))
        rival.listen()
        with _BeatenToItsPort(rival.getsockname()[1]) as node:
            assert _get(node) is None


def test_closed_node_leaves_no_directory() -> None:
    node = LocalRedis()
    node.start()
    assert node._process is not None
    directory = node._process.directory
    assert directory.is_dir()
    node.close()
    node.close()
    assert not directory.exists()


def test_free_ports_differ_and_are_outside_the_range_for_outgoing_connections() -> None:
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert max(ports) < low
