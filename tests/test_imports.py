"""Who imports a part of the product pays for that part: commands begin at once, the SDK takes one library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Final

import pytest

import dispatcher.client

#: What no command needs that only asks a dispatcher something.
_HEAVY: Final = (
    "aio_pika aiohttp prometheus_client redis structlog pyspark pyarrow dispatcher.client "
    "dispatcher.core.state dispatcher.core.views.views dispatcher.ledger dispatcher.pipeline "
    "dispatcher.redis_store dispatcher.service"
)


def _running(*arguments: str) -> str:
    """A statement that runs the program; what it prints goes elsewhere."""
    return (
        f"import contextlib, io; from dispatcher.cli import main; sys.argv[1:] = {list(arguments)}\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stderr(io.TextIOWrapper(io.BytesIO())):\n"
        "    with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())): main()\n"
    )


@pytest.mark.parametrize(
    ("statement", "spared"),
    [
        (
            "import dispatcher.cli",
            "aio_pika aiohttp pika pydantic redis rich structlog pyspark pyarrow dispatcher.core",
        ),
        (_running("--help"), f"{_HEAVY} pika pydantic dispatcher.settings"),
        (
            "import os; os.environ |= {'_DISPATCHER_COMPLETE': 'complete_bash', 'COMP_CWORD': '1', "
            f"'COMP_WORDS': 'dispatcher s'}}; {_running()}",
            f"{_HEAVY} pika dispatcher.settings",  # typer imports pydantic
        ),
        (_running("status", "-c", os.devnull), _HEAVY),
        (_running("groups", "list", "orders", "-c", os.devnull), f"{_HEAVY} dispatcher.core.model"),
        (_running("consumers", "list", "orders", "-c", os.devnull), _HEAVY),
        ("import dispatcher.service.process", "aio_pika pika typer pyspark opentelemetry"),
        (
            "from dispatcher.client import GroupConsumer, GroupProducer",
            "pika pydantic dispatcher.core opentelemetry",
        ),
        (
            "from dispatcher.client import BlockingGroupConsumer, BlockingGroupProducer",
            "aio_pika pydantic dispatcher.core",
        ),
    ],
)
def test_nothing_else_is_imported(statement: str, spared: str) -> None:
    program = f"import json, sys; {statement}\nprint(json.dumps(list(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert set(json.loads(result.stdout)).isdisjoint(spared.split())


def test_every_public_name_of_the_client_is_there() -> None:
    for name in dispatcher.client.__all__:
        assert getattr(dispatcher.client, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'Consumer'"):
        _ = dispatcher.client.Consumer  # type: ignore[attr-defined]
