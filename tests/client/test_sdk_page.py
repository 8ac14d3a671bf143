"""docs/sdk.md has every public name, and its examples work."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

import dispatcher.client

PAGE = (Path(__file__).parents[2] / "docs" / "sdk.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("name", dispatcher.client.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert name in dir(dispatcher.client)
    if name not in ("Message", "BlockingMessage"):  # users get them, and need not write their names
        assert re.search(rf"\b{name}\b", PAGE)


@pytest.mark.parametrize("kind", ["GroupConsumer", "Message", "BlockingGroupConsumer"])
def test_every_method_is_there(kind: str) -> None:
    methods = {name for name in vars(getattr(dispatcher.client, kind)) if not name.startswith("_")} - {"open"}
    assert methods
    assert not {name for name in methods if not re.search(rf"`{name}\b", PAGE)}


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_the_examples_are_python(example: str) -> None:
    compile(example, "docs/sdk.md", "exec")


def test_the_example_of_a_test_passes() -> None:
    (example,) = (text for text in EXAMPLES if "PracticeLane" in text)
    names: dict[str, Any] = {}
    exec(example, names)
    asyncio.run(names["test_an_order_is_placed_before_it_ships"]())
