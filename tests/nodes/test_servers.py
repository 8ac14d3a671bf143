"""Which servers are chosen."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading

import pytest

from dispatcher.errors import BrokerUnavailable, ConfigurationError
from dispatcher.nodes import Management, Servers, servers_from_environment, with_vhost
from dispatcher.nodes.containers import engine_answers, open_containers
from dispatcher.nodes.readiness import rabbitmq_answers, redis_answers

RABBITMQ, REDIS = "DISPATCHER_RABBITMQ_URL", "DISPATCHER_REDIS_URL"


def test_environment_that_names_nothing_gives_no_servers() -> None:
    assert servers_from_environment({}) is None


@pytest.mark.parametrize(("named", "missing"), [(RABBITMQ, REDIS), (REDIS, RABBITMQ)])
def test_half_an_environment_is_refused_with_the_missing_name(named: str, missing: str) -> None:
    with pytest.raises(ConfigurationError, match=missing):
        servers_from_environment({named: "x://somewhere"})


def test_management_url_has_the_broker_s_host_and_user_unless_given() -> None:
    given = {RABBITMQ: "amqp://me:pass%2Fword@rabbit:5673/orders", REDIS: "redis://r/0"}
    servers = servers_from_environment(given)
    assert servers == Servers(given[RABBITMQ], "http://me:pass%2Fword@rabbit:15672", given[REDIS])
    url = "http://a:b@c:1"
    servers = servers_from_environment(given | {"DISPATCHER_RABBITMQ_MANAGEMENT_URL": url})
    assert servers is not None
    assert servers.management_url == url


def test_environment_of_servers_names_the_same_servers() -> None:
    servers = Servers("amqp://a", "http://b", "redis://c")
    assert servers_from_environment(servers.as_environment()) == servers


def test_vhost_replaces_the_one_in_the_url() -> None:
    assert with_vhost("amqp://u:p@h:1/", "a/b") == "amqp://u:p@h:1/a%2Fb"


def test_shared_servers_answer(servers: Servers) -> None:
    assert rabbitmq_answers(servers.amqp_url, servers.management_url)
    assert redis_answers(servers.redis_url)
    assert Management(servers.management_url).request("overview")["rabbitmq_version"]


def test_nobody_at_the_address_is_no_answer() -> None:
    assert not rabbitmq_answers("amqp://127.0.0.1:1/", "http://127.0.0.1:1")
    assert not redis_answers("redis://127.0.0.1:1/0")


def test_engine_that_is_not_there_does_not_answer(tmp_path_factory: pytest.TempPathFactory) -> None:
    command = "from dispatcher.nodes.containers import engine_answers; print(engine_answers())"
    environment = os.environ | {"DOCKER_HOST": f"unix://{tmp_path_factory.mktemp('none')}/docker.sock"}
    result = subprocess.run(
        [sys.executable, "-c", command], env=environment, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "False"


@pytest.mark.slow
@pytest.mark.timeout(600)  # pulling the images
@pytest.mark.skipif(not engine_answers(), reason="no Docker engine answers here")
def test_containers_answer() -> None:
    with open_containers() as (amqp_url, management_url, redis_url):
        assert rabbitmq_answers(amqp_url, management_url)
        assert redis_answers(redis_url)


@pytest.mark.parametrize("answer", [b"AMQP\x00\x00\x09\x01", b"HTTP/1.1 200 OK\r\n\r\n<html>"])
def test_what_is_no_management_api_is_named_as_such(answer: bytes) -> None:
    """A wrong port, or a web server of somebody else's."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            asking, _ = listening.accept()
            with asking:
                asking.recv(65_536)
                asking.sendall(answer)

        serving = threading.Thread(target=serve)
        serving.start()
        api = Management(f"http://u:pw@127.0.0.1:{listening.getsockname()[1]}")
        with pytest.raises(
            BrokerUnavailable, match=r"overview: it (does not speak HTTP|is no management API)"
        ):
            api.request("overview")
        serving.join()


def test_a_redirect_gets_no_password() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        asked = []

        def serve() -> None:
            asking, _ = listening.accept()
            with asking:
                asked.append(asking.recv(65_536))
                place = b"Location: http://127.0.0.1:%d/elsewhere\r\nContent-Length: 0\r\n\r\n" % port
                asking.sendall(b"HTTP/1.1 302 Found\r\n" + place)

        serving = threading.Thread(target=serve)
        serving.start()
        with pytest.raises(BrokerUnavailable, match="302"):
            Management(f"http://u:pw@127.0.0.1:{port}").request("overview")
        serving.join()
        assert len(asked) == 1
