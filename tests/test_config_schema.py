"""The JSON schema accepts what the loader accepts, and refuses the mistakes that it can see."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from dispatcher.settings import json_schema
from tests.test_config import CONTRACT_EXAMPLE

VALIDATOR = Draft202012Validator(json.loads(json.dumps(json_schema())))


def test_it_is_a_schema_and_fits_the_contracts_example() -> None:
    Draft202012Validator.check_schema(json_schema())
    VALIDATOR.validate(yaml.safe_load(CONTRACT_EXAMPLE))


def lane(**keys: Any) -> dict[str, Any]:
    return {"lanes": {"a": {"inbound": [{"queue": "q"}], **keys}}}


@pytest.mark.parametrize(
    "keys",
    [
        {"reconnect_grace": 0},
        {"reconnect_grace": "5s"},
        {"look_ahead": "${LOOK_AHEAD:-100}"},
        {"first_header": None},
        {"retry": {"attempts": 5, "on_exhausted": "stop"}},
        {"retry": {"attempts": 5, "on_exhausted": "park"}},  # its former name
        {"start": {"consumers": 3, "wait": "2s"}},
        {"rebalance": {"on_join": True, "pause": "lane"}},
        {"cost": 1},
        {"cost": "bytes"},
        {"cost": {"measured": "/var/lib/dispatcher/cost_model.json"}},
        {"cost": {"header": "x-cost"}, "placement": "measured"},
        {"group_map": "none"},
        {"group_map": {"buckets": 1024}},
        {"look_ahead_bytes": "1GiB", "policy": "sequenced", "top_up": True},
    ],
)
def test_accepted(keys: dict[str, Any]) -> None:
    VALIDATOR.validate(lane(**keys))


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"lanes": {}},
        {"lanes": {"a": {}}},
        {**lane(), "extra": 1},
        {**lane(), "workers": 0},
        lane(name="a"),
        lane(heartbeat_ms=5),
        lane(heartbeat=5),
        lane(look_ahead=0),
        lane(retry={"attempts": 0}),
        lane(retry={"tries": 3}),
        lane(retry={"on_exhausted": "wait"}),
        lane(policy="random"),
        lane(group_map="all"),
        lane(group_map={"lru": 0}),
        lane(group_map={"lru": 1, "buckets": 1}),
        lane(inbound=[{"queue": "q", "weight": 0}]),
        {**lane(), "defaults": {"inbound": []}},
        {**lane(), "match": [{"policy": "sequenced"}]},
    ],
)
def test_refused(document: dict[str, Any]) -> None:
    assert not VALIDATOR.is_valid(document)


def test_defaults_are_written_as_in_the_file() -> None:
    properties = json_schema()["$defs"]["LaneSettings"]["properties"]
    assert properties["heartbeat"]["default"] == "5s"
    assert properties["reconnect_grace"]["default"] == 0
    assert properties["look_ahead_bytes"]["default"] == "256MiB"
    assert properties["policy"]["default"] == "exclusive"
    assert all("description" in prop for prop in properties.values())
