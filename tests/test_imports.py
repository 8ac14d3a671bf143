"""Who imports a part of the product pays for that part: commands begin at once, the SDK takes one library."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import dispatcher.client


@pytest.mark.parametrize(
    ("statement", "spared"),
    [
        (
            "import dispatcher.cli",
            "aio_pika aiohttp pika pydantic redis rich structlog pyspark pyarrow dispatcher.core",
        ),
        ("import dispatcher.service.process", "aio_pika pika typer pyspark"),
        ("from dispatcher.client import GroupConsumer, GroupProducer", "pika pydantic dispatcher.core"),
        (
            "from dispatcher.client import BlockingGroupConsumer, BlockingGroupProducer",
            "aio_pika pydantic dispatcher.core",
        ),
    ],
)
def test_nothing_else_is_imported(statement: str, spared: str) -> None:
    program = f"import json, sys; {statement}; print(json.dumps(list(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert set(json.loads(result.stdout)).isdisjoint(spared.split())


def test_every_public_name_of_the_client_is_there() -> None:
    for name in dispatcher.client.__all__:
        assert getattr(dispatcher.client, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'Consumer'"):
        _ = dispatcher.client.Consumer  # type: ignore[attr-defined]
