"""The picture of the live page in the documents can be made anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from dispatcher.errors import ConfigurationError
from tests.conftest import Vhost
from tests.http.picture import HEIGHT, make
from tests.page.browser import ensure_chromium

pytestmark = pytest.mark.slow


def test_it_shows_a_lane_at_work(vhost: Vhost, tmp_path: Path) -> None:
    try:
        ensure_chromium()
    except ConfigurationError as missing:
        pytest.skip(f"no browser: {missing}")
    picture = tmp_path / "page.png"
    # Its keys have the usual prefix: no other test has this database.
    make(picture, 1, vhost.amqp_url, vhost.redis_url.removesuffix("/0") + "/7")
    made = picture.read_bytes()
    assert made.startswith(b"\x89PNG")
    assert int.from_bytes(made[20:24]) == HEIGHT
    assert len(made) > 50_000, "it is not empty"
