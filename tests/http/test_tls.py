"""The HTTP port in TLS: what it shows, and whom it takes."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from dispatcher.errors import ConfigurationError
from dispatcher.http.server import HttpServer
from dispatcher.settings import HttpSettings
from tests.amqp.certificates import Authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls")).create()


@pytest.fixture(scope="module")
def files(authority: Authority) -> dict[str, Any]:
    certificate, key = authority.sign("localhost")
    return {"cert_file": certificate, "key_file": key}


@asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[str]:
    """Its address, without a scheme."""
    server = HttpServer(HttpSettings(listen="localhost:0", **options), [])
    await server.start()
    try:
        yield f"localhost:{server.port}"
    finally:
        await server.stop()


async def status(url: str, authority: Authority, own: tuple[str, str] | None = None) -> int:
    """As a client that trusts this authority, and shows its own certificate."""
    context = ssl.create_default_context(cafile=authority.file)
    if own is not None:
        context.load_cert_chain(*own)
    async with aiohttp.ClientSession() as session, session.get(url, ssl=context) as answer:
        return answer.status


async def test_it_speaks_tls_alone(authority: Authority, files: dict[str, Any]) -> None:
    async with serving(**files) as address:
        assert await status(f"https://{address}/healthz", authority) == 200
        with pytest.raises(aiohttp.ClientError):
            await status(f"http://{address}/healthz", authority)


async def test_the_key_may_be_in_the_same_file(
    authority: Authority, files: dict[str, Any], tmp_path: Path
) -> None:
    both = tmp_path / "both.pem"
    both.write_text("".join(Path(file).read_text() for file in files.values()))
    async with serving(cert_file=str(both)) as address:
        assert await status(f"https://{address}/healthz", authority) == 200


async def test_it_takes_only_clients_of_the_authority(
    authority: Authority, files: dict[str, Any], tmp_path: Path
) -> None:
    stranger = Authority(tmp_path, "other").create().sign("prometheus")
    async with serving(**files, ca_file=authority.file) as address:
        url = f"https://{address}/metrics"
        assert await status(url, authority, authority.sign("prometheus")) == 200
        for own in (None, stranger):
            with pytest.raises(aiohttp.ClientError):
                await status(url, authority, own)


@pytest.mark.parametrize("key", ["cert_file", "ca_file"])
def test_a_file_that_is_no_certificate_is_named(files: dict[str, Any], tmp_path: Path, key: str) -> None:
    bad = tmp_path / "bad.pem"
    bad.write_text("no certificate")
    with pytest.raises(ConfigurationError) as refused:
        HttpServer(HttpSettings(**files | {key: str(bad)}), [])
    assert refused.value.problems[0].startswith(f"http.{key}: ")


def test_an_encrypted_key_is_refused_and_nobody_is_asked(files: dict[str, Any], tmp_path: Path) -> None:
    key = tmp_path / "encrypted.key"
    command = ["openssl", "ec", "-aes256", "-passout", "pass:secret", "-in", files["key_file"]]
    subprocess.run([*command, "-out", str(key)], check=True, capture_output=True)
    with pytest.raises(ConfigurationError) as refused:
        HttpServer(HttpSettings(**files | {"key_file": str(key)}), [])
    assert refused.value.problems[0].startswith("http.key_file: ")
