"""Commands over TLS: the broker and its management API are verified, and so are we."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner, Result

from dispatcher.cli import app
from dispatcher.cli.consumer_connections import ConsumerConnections
from dispatcher.errors import CommandRefused
from dispatcher.nodes.installed import ensure_installed
from dispatcher.nodes.local_rabbitmq import LocalRabbitMQ
from dispatcher.nodes.ports import free_ports
from dispatcher.settings import load
from tests.redis_store.certificates import SERVER_NAME, Certificates


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


class Ports(NamedTuple):
    """Of a RabbitMQ that only takes clients whose certificate is of the test's CA."""

    amqps: int
    management: int

    @property
    def url(self) -> str:
        return f"amqps://guest:guest@127.0.0.1:{self.amqps}/"

    @property
    def management_url(self) -> str:
        return f"https://guest:guest@127.0.0.1:{self.management}"


@pytest.fixture(scope="module")
def ports(certificates: Certificates) -> Iterator[Ports]:
    ensure_installed(print)
    ports = Ports(*free_ports(2))
    options = (
        f"cacertfile = {certificates.path('ca.pem')}",
        f"certfile = {certificates.path('server.pem')}",
        f"keyfile = {certificates.path('server.key')}",
        "verify = verify_peer",
        "fail_if_no_peer_cert = true",
        "versions.1 = tlsv1.2",  # in 1.3 a refused client only learns it later
    )
    node = LocalRabbitMQ(
        [
            f"listeners.ssl.1 = 127.0.0.1:{ports.amqps}",
            "management.ssl.ip = 127.0.0.1",
            f"management.ssl.port = {ports.management}",
            *(f"{listener}.{option}" for listener in ("ssl_options", "management.ssl") for option in options),
        ]
    )
    with node:
        yield ports


@pytest.fixture
def trust(certificates: Certificates) -> dict[str, str]:
    return {"ca_file": certificates.path("ca.pem"), "server_name": SERVER_NAME}


@pytest.fixture
def own(certificates: Certificates) -> dict[str, str]:
    return {"cert_file": certificates.path("client.pem"), "key_file": certificates.path("client.key")}


def written(tmp_path: Path, url: str, **keys: str) -> Path:
    lines = "".join(f"  {key}: {value}\n" for key, value in keys.items())
    file = tmp_path / "dispatcher.yaml"
    file.write_text(f"rabbitmq:\n  url: {url}\n{lines}lanes: {{a: {{inbound: [{{queue: q}}]}}}}\n")
    return file


def groups_list(tmp_path: Path, url: str, **keys: str) -> Result:
    return CliRunner().invoke(app, ["groups", "list", "a", "-c", str(written(tmp_path, url, **keys))])


def test_tls_both_ways(
    tmp_path: Path, certificates: Certificates, ports: Ports, trust: dict[str, str], own: dict[str, str]
) -> None:
    url = ports.url
    connected = groups_list(tmp_path, url, **trust, **own)
    assert connected.stderr.startswith("dispatcher: lane a does not exist on RabbitMQ")

    stranger = groups_list(tmp_path, url, **{**trust, "ca_file": certificates.path("stranger.pem")}, **own)
    assert "its certificate is not trusted (" in stranger.stderr

    other_name = groups_list(tmp_path, url, ca_file=trust["ca_file"], **own)
    assert "its certificate is not trusted (" in other_name.stderr

    nobody = groups_list(tmp_path, url, **trust)
    assert "does not answer in TLS (" in nobody.stderr

    wrong_pair = groups_list(tmp_path, url, **trust, **{**own, "key_file": certificates.path("server.key")})
    assert wrong_pair.stderr.startswith("dispatcher: rabbitmq.cert_file: ")

    plain = groups_list(tmp_path, url.replace("amqps", "amqp"))
    assert "does it expect TLS? then the URL must begin with amqps://" in plain.stderr
    for result in (connected, stranger, other_name, nobody, wrong_pair, plain):
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)


def note(tmp_path: Path, management: str | None, url: str, **keys: str) -> str:
    """What `check` says of a management API that it could not ask."""
    result = CliRunner().invoke(
        app, ["check", "-c", str(written(tmp_path, url, **keys))],
        env={"DISPATCHER_RABBITMQ_MANAGEMENT_URL": management},
    )  # fmt: skip
    assert "rabbitmq: connected to" in result.stdout
    return "".join(line for line in result.stdout.splitlines() if "the management API" in line)


def test_the_management_api_is_asked_with_the_certificates_of_the_connection(
    tmp_path: Path, certificates: Certificates, ports: Ports, trust: dict[str, str], own: dict[str, str]
) -> None:
    assert note(tmp_path, ports.management_url, ports.url, **trust, **own) == ""

    elsewhere = ports.management_url.replace("127.0.0.1", "localhost")
    assert elsewhere != ports.management_url
    assert "its certificate is not trusted (" in note(tmp_path, elsewhere, ports.url, **trust, **own)

    settings = load(written(tmp_path, ports.url, **trust, **own), {})
    assert ConsumerConnections(settings, ports.management_url).of_queue("no.such.queue") is None
    with pytest.raises(CommandRefused, match=r"it does not speak HTTP .*--management URL\)$"):
        ConsumerConnections(settings, ports.management_url.replace("https", "http")).of_queue("q")


def test_a_management_api_that_is_not_trusted_is_not_asked(
    tmp_path: Path, certificates: Certificates, ports: Ports, trust: dict[str, str], own: dict[str, str]
) -> None:
    cases = (
        ({**trust, **own, "ca_file": certificates.path("stranger.pem")}, "its certificate is not trusted"),
        ({**trust, **own, "server_name": "elsewhere.internal"}, "its certificate is not trusted"),
        (trust, "it does not answer in TLS"),
    )
    for keys, problem in cases:
        settings = load(written(tmp_path, ports.url, **keys), {})
        with pytest.raises(CommandRefused, match=problem):
            ConsumerConnections(settings, ports.management_url).of_queue("q")


def test_the_usual_management_api_of_a_broker_with_tls_has_it_too(
    tmp_path: Path, ports: Ports, trust: dict[str, str], own: dict[str, str]
) -> None:
    """And whoever has none with TLS is told how to name it."""
    said = note(tmp_path, None, ports.url, **trust, **own)
    assert "https://127.0.0.1:15671/api/overview" in said
    assert "(--management URL; without it https on port 15671 is asked, because rabbitmq.url has TLS)" in said
