"""Commands over TLS: the broker is verified, and so are we."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dispatcher.cli import app
from dispatcher.nodes.installed import ensure_installed
from dispatcher.nodes.local_rabbitmq import LocalRabbitMQ
from dispatcher.nodes.ports import free_ports
from tests.redis_store.certificates import SERVER_NAME, Certificates


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def tls_port(certificates: Certificates) -> Iterator[int]:
    """A RabbitMQ that only takes clients whose certificate is of the test's CA."""
    ensure_installed(print)
    (port,) = free_ports(1)
    node = LocalRabbitMQ(
        [
            f"listeners.ssl.1 = 127.0.0.1:{port}",
            f"ssl_options.cacertfile = {certificates.path('ca.pem')}",
            f"ssl_options.certfile = {certificates.path('server.pem')}",
            f"ssl_options.keyfile = {certificates.path('server.key')}",
            "ssl_options.verify = verify_peer",
            "ssl_options.fail_if_no_peer_cert = true",
            "ssl_options.versions.1 = tlsv1.2",  # in 1.3 a refused client only learns it later
        ]
    )
    with node:
        yield port


def groups_list(tmp_path: Path, url: str, **keys: str) -> Result:
    lines = "".join(f"  {key}: {value}\n" for key, value in keys.items())
    file = tmp_path / "dispatcher.yaml"
    file.write_text(f"rabbitmq:\n  url: {url}\n{lines}lanes: {{a: {{inbound: [{{queue: q}}]}}}}\n")
    return CliRunner().invoke(app, ["groups", "list", "a", "-c", str(file)])


def test_tls_both_ways(tmp_path: Path, certificates: Certificates, tls_port: int) -> None:
    url = f"amqps://guest:guest@127.0.0.1:{tls_port}/"
    trust = {"ca_file": certificates.path("ca.pem"), "server_name": SERVER_NAME}
    own = {"cert_file": certificates.path("client.pem"), "key_file": certificates.path("client.key")}

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
