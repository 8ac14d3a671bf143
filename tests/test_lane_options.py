"""No key of a lane is read and forgotten: each changes what the core is told, or is said to be another's."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from dispatcher.core.options import LaneOptions
from dispatcher.service.lane_options import lane_options
from dispatcher.settings import LaneDefaults
from dispatcher.settings import file as config

#: Each key with another value than its default, and with what that needs to be allowed.
OTHERWISE: dict[str, dict[str, Any]] = {
    "policy": {"policy": "concurrent"},
    "ungrouped": {"ungrouped": "reject"},
    "placement": {"placement": "measured"},
    "cost": {"cost": "measured"},
    "start": {"start": {"consumers": 2}},
    "start.wait": {"start": {"wait": "2s"}},
    "rebalance": {"rebalance": {"on_join": True}},
    "rebalance.pause": {"rebalance": {"pause": "lane"}},
    "group_map": {"group_map": {"buckets": 7}},
    "group_map.lru": {"group_map": {"lru": 7}},
    "group_map.none": {"group_map": "none"},
    "group_idle_timeout": {"group_idle_timeout": "5s"},
    "top_up": {"policy": "sequenced", "top_up": True},
    "strict_identity": {"strict_identity": True},
    "retry": {"retry": {"attempts": 7}},
    "retry.backoff": {"retry": {"backoff": "7s"}},
    "retry.on_exhausted": {"retry": {"on_exhausted": "stop"}},
    "ack_timeout": {"ack_timeout": "7s"},
    "on_ack_timeout": {"ack_timeout": "7s", "on_ack_timeout": "evict"},
    "reconnect_grace": {"reconnect_grace": "7s"},
    "liveness_interval": {"liveness_interval": "7s"},
    "heartbeat": {"heartbeat": "7s"},
    "group_window": {"group_window": {"initial": 7}},
    "group_window.max": {"group_window": {"max": 7}},
    "max_in_flight_per_group": {"policy": "concurrent", "max_in_flight_per_group": 7},
    "max_in_flight_per_group.grouped": {"max_in_flight_per_group": 7},
    "steal_after": {"steal_after": "7s"},
    "look_ahead": {"look_ahead": 7},
    "look_ahead_bytes": {"look_ahead_bytes": "7MiB"},
    "park_after": {"park_after": "7m"},
    "dedup": {"dedup": {"window": "7m"}},
    "dedup.max_ids": {"dedup": {"window": "7m", "max_ids": 7_000}},
    "sequence_check": {"sequence_check": "report"},
    "sequence_timeout": {"sequence_check": "hold", "sequence_timeout": "7s"},
    "handover": {"handover": True, "consumers": [{"id": "a"}]},
    "consumers": {"handover": True, "consumers": [{"id": "b", "prefetch": 7}]},
}
#: What only the edges need: tests/service has a test of each.
OF_THE_EDGES = {"group_header", "sequence_header", "first_header", "history", "queue_type", "shards"}
#: What must be there for a key to be allowed is no proof that the key itself counts.
NEEDS: dict[str, dict[str, Any]] = {
    "top_up": {"policy": "sequenced"},
    "on_ack_timeout": {"ack_timeout": "7s"},
    "max_in_flight_per_group": {"policy": "concurrent"},
    "dedup.max_ids": {"dedup": {"window": "7m"}},
    "sequence_timeout": {"sequence_check": "hold"},
    "consumers": {"handover": True, "consumers": [{"id": "a"}]},
}


def options(keys: dict[str, Any]) -> LaneOptions:
    document = {"lanes": {"orders": {"inbound": [{"queue": "in"}], **keys}}}
    return lane_options(config.parse(yaml.safe_dump(document), {}).lanes["orders"], "dispatch", ())


@pytest.mark.parametrize("key", OTHERWISE)
def test_a_key_reaches_the_core(key: str) -> None:
    assert options(OTHERWISE[key]) != options(NEEDS.get(key, {}))


def test_the_same_keys_tell_the_same() -> None:
    assert all(options(keys) == options(keys) for keys in OTHERWISE.values())


def test_every_key_is_here() -> None:
    known = {field.alias or name for name, field in LaneDefaults.model_fields.items()}
    assert {key.partition(".")[0] for key in OTHERWISE} | OF_THE_EDGES == known


def test_a_former_word_means_what_it_meant() -> None:
    def options_of(word: str) -> LaneOptions:
        lanes = {"orders": {"inbound": [{"queue": "q"}], "retry": {"on_exhausted": word}}}
        settings = config.parse(yaml.safe_dump({"lanes": lanes}), {})
        return lane_options(settings.lanes["orders"], "dispatch", ())

    assert options_of("park") == options_of("stop")
    assert options_of("park") != options_of("skip")
