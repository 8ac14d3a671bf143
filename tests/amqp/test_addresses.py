"""A host whose name has several addresses."""

from __future__ import annotations

import contextlib
import ssl
from pathlib import Path

from dispatcher.amqp.link import Link
from dispatcher.errors import BrokerUnavailable
from dispatcher.settings import RabbitSettings
from tests.amqp.certificates import Authority
from tests.conftest import Vhost
from tests.several_addresses import NAME, named, run

#: With a random order all of them fail once in 2 to the power of 64 runs.
ATTEMPTS = 64


async def _connects(settings: RabbitSettings) -> bool:
    for _ in range(ATTEMPTS):
        with contextlib.suppress(BrokerUnavailable):
            link = await Link.open(settings, name="test", on_events=lambda _: None)
            await link.close()
            return True
    return False


def test_not_each_attempt_begins_with_the_same_address(vhost: Vhost) -> None:
    async def connect() -> None:
        async with named(vhost.amqp_url) as url:
            assert await _connects(RabbitSettings(url=url))

    run(connect())


def test_the_certificate_is_for_the_name_whichever_address_is_taken(vhost: Vhost, tmp_path: Path) -> None:
    authority = Authority(tmp_path).create()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.sign(NAME))

    async def connect() -> None:
        async with named(vhost.amqp_url, context) as url:
            assert await _connects(RabbitSettings(url=url, ca_file=authority.file))

    run(connect())
