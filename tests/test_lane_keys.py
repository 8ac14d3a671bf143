"""Lane keys that are refused, one by one and with each other."""

from __future__ import annotations

import pytest

from tests.test_config import lane_problems


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("weight: 3", "weight: unknown key"),
        ("park_after: null", "park_after: must be a duration such as 500ms, 5s or 2m"),
        ("park_after: 0", "park_after: must be from 100ms to 1d"),
        ("park_after: 25h", "park_after: must be from 100ms to 1d"),
        ("park: 10m", "park: unknown key"),
        ("retry: {atempts: 3}", "retry.atempts: unknown key; is attempts meant?"),
        ("retry: {backoff: 2m}", "retry.backoff: must be from 0 to 1m"),
        ("on_ack_timeout: evict", "on_ack_timeout: evict needs an ack_timeout"),
        ("on_ack_timeout: kill", "on_ack_timeout: must be report or evict"),
        ("ack_timeout: 10ms", "ack_timeout: must be from 1s to"),
        ("strict_identity: 1", "strict_identity: must be true or false"),
        (
            "strict_identity: true, handover: true, consumers: [{id: a}]",
            "strict_identity: with handover no consumer says anything",
        ),
        ("retry: {attempts: 0}", "retry.attempts: must be a positive integer"),
        ("retry: 3", "retry: must be a mapping of keys to values"),
        ("max_in_flight_per_group: 0", "max_in_flight_per_group: must be a positive integer"),
        (
            "max_in_flight_per_group: 2, retry: {on_exhausted: stop}",
            "max_in_flight_per_group: on_exhausted: stop",
        ),
        ("group_window: {initial: 3}, retry: {on_exhausted: stop}", "group_window: on_exhausted: stop"),
        (
            "group_window: {initial: 3}, max_in_flight_per_group: 2",
            "group_window: does not go with max_in_flight_per_group",
        ),
        ("group_window: {initial: 3}, policy: concurrent", "group_window: policy concurrent"),
        ("group_window: {initial: 3}, group_map: none", "group_window: group_map none"),
        ("steal_after: 2s, policy: sequenced", "steal_after: only works with policy: exclusive"),
        ("steal_after: 2s, group_map: none", "steal_after: group_map none has no groups to move"),
        ("group_window: {initial: 3, max: 2}", "group_window: max is below initial"),
        ("retry: {on_exhausted: wait}", "retry.on_exhausted: must be skip or stop"),
        ("retry: {on_exhausted: stop}, policy: concurrent", "retry: on_exhausted: stop needs a policy that"),
        ("retry: {on_exhausted: stop}, group_map: none", "retry: group_map none has no groups to stop"),
        ("polcy: exclusive", "polcy: unknown key; is policy meant?"),
        ("name: b", "name: unknown key"),
        ("heartbeat_ms: 5000", "heartbeat_ms: unknown key; is heartbeat meant?"),
        ("policy: random", "policy: must be exclusive, sequenced or concurrent"),
        ("group_header: x-group-id", "group_header: must be a list"),
        ("group_header: []", "group_header: must have at least one entry"),
        ("group_header: [a, a]", "group_header: names the same header twice"),
        ("group_header: [7]", "group_header[0]: must be text (put it in quotes)"),
        ("group_header: ['property:prio']", "group_header[0]: property: must be followed by one of app_id, "),
        ("sequence_header: ''", "sequence_header: must not be empty or hold control characters"),
        ("sequence_header: property:type", "sequence_header: property: must be followed by group_sequence"),
        ("sequence_header: x-group-id", "sequence_header: is a group header too"),
        ("sequence_check: on", "sequence_check: must be off, report or hold"),
        ("sequence_check: 'gaps'", "sequence_check: must be off, report or hold"),
        ("sequence_check: {}", "sequence_check: must be off, report or hold"),
        ("sequence_check: hold, policy: concurrent", "sequence_check: hold needs a policy that has groups"),
        ("sequence_check: hold, group_map: none", "sequence_check: group_map none has no groups to hold"),
        ("sequence_timeout: 50ms", "sequence_timeout: must be from 100ms to 1d"),
        ("sequence_check: report, sequence_header: null", "sequence_check: needs a sequence_header"),
        ("first_header: x-group-id", "first_header: is read as group or sequence header too"),
        ("first_header: x-dispatch-first", "first_header: must not begin with x-dispatch-"),
        ("first_header: BCC", "first_header: must not be CC or BCC: RabbitMQ takes them for routing keys"),
        ("first_header: x, policy: concurrent", "first_header: policy concurrent has no groups"),
        ("ungrouped: drop", "ungrouped: must be balance, reject or group:<name>"),
        ("ungrouped: 'group:'", "ungrouped: group: needs a name, for example group:default"),
        ("ungrouped: reject, policy: concurrent", "ungrouped: policy concurrent treats all messages alike"),
        ("top_up: 'yes'", "top_up: must be true or false"),
        ("top_up: true", "top_up: only works with policy: sequenced"),
        ("rebalance: true", "rebalance: must be a mapping of keys to values"),
        ("rebalance: {pause: all}", "rebalance.pause: must be group, lane or none"),
        ("rebalance: {on_join: 1}", "rebalance.on_join: must be true or false"),
        (
            "rebalance: {on_join: true}, policy: sequenced",
            "rebalance: on_join only works with policy: exclus",
        ),
        ("rebalance: {on_join: true}, group_map: none", "rebalance: group_map none has no groups to move"),
        ("placement: random", "placement: must be fewest or measured"),
        ("cost: 2", "cost: must be 1, bytes, measured, {header: NAME} or {measured: FILE}"),
        ("cost: true", "cost: must be 1, bytes, measured, {header: NAME} or {measured: FILE}"),
        ("cost: {header: 7}", "cost: header: must be text (put it in quotes)"),
        ("cost: {header: x-dispatch-cost}", "cost: header: must not begin with x-dispatch-"),
        ("start: 3", "start: must be a mapping of keys to values"),
        ("start: {consumer: 3}", "start.consumer: unknown key; is consumers meant?"),
        ("start: {consumers: -1}", "start.consumers: must be an integer from 0"),
        ("start: {wait: 2h}", "start.wait: must be from 0 to 1h"),
        ("group_map: all", "group_map: must be exact, none, {lru: N} or {buckets: N}"),
        ("group_map: null", "group_map: must be exact, none, {lru: N} or {buckets: N}"),
        ("group_map: {lru: 1, buckets: 1}", "group_map: must be exact, none, {lru: N} or {buckets: N}"),
        ("group_map: {lru: 0}", "group_map: lru: must be a positive integer"),
        ("group_map: {buckets: -5}", "group_map: buckets: must be a positive integer"),
        ("group_map: {buckets: 1000001}", "group_map: buckets: must be at most 1000000"),
        ("group_map: {lru: 9}, policy: sequenced", "group_map: lru only works with policy: exclusive"),
        ("group_map: {buckets: 9}, policy: concurrent", "group_map: policy concurrent has no groups"),
        ("group_map: none, first_header: x", "first_header: group_map none has no groups"),
        ("group_map: none, group_idle_timeout: 1s", "group_idle_timeout: group_map none has no groups"),
        ("group_map: none, ungrouped: reject", "ungrouped: group_map none treats all messages alike"),
        ("group_idle_timeout: 10ms", "group_idle_timeout: must be from 100ms to 365d"),
        ("group_idle_timeout: 9000h", "group_idle_timeout: must be from 100ms to 365d"),
        (
            "group_idle_timeout: 1s, policy: sequenced",
            "group_idle_timeout: only works with policy: exclusive",
        ),
        ("reconnect_grace: 5", "reconnect_grace: must be a duration such as 500ms, 5s, 2m or 0"),
        ("reconnect_grace: 5 s", "reconnect_grace: must be a duration such as 500ms, 5s, 2m or 0"),
        ("reconnect_grace: -5s", "reconnect_grace: must be a duration such as 500ms, 5s, 2m or 0"),
        ("reconnect_grace: 2h", "reconnect_grace: must be from 0 to 1h"),
        ("liveness_interval: 0", "liveness_interval: must be from 10ms to 1m"),
        ("heartbeat: null", "heartbeat: must be a duration such as 500ms, 5s or 2m"),
        ("look_ahead: 0", "look_ahead: must be a positive integer"),
        ("look_ahead: true", "look_ahead: must be a positive integer"),
        ("look_ahead: 1.5", "look_ahead: must be a positive integer"),
        ("look_ahead: 60001", "look_ahead: must be at most 60000"),
        ("shards: 0", "shards: must be a positive integer"),
        ("shards: 65", "shards: must be at most 64"),
        ("shards: 2, policy: concurrent", "shards: policy concurrent has no groups"),
        ("shards: 2, group_map: none", "shards: group_map none has no groups"),
        ("shards: 2, handover: true, consumers: [{id: a}]", "shards: with handover each consumer has one"),
        ("shards: 2, group_header: [a, b]", "shards: RabbitMQ spreads groups by one header"),
        ("shards: 2, group_header: ['property:type']", "shards: RabbitMQ spreads groups by one header"),
        ("shards: 2, group_header: [routing_key]", "shards: RabbitMQ spreads groups by one header"),
        ("shards: 2, ungrouped: 'group:x'", "shards: messages without a group are in another shard"),
        ("look_ahead_bytes: 1024", "look_ahead_bytes: must be a size such as 64KiB, 256MiB or 1GiB"),
        ("look_ahead_bytes: 0MiB", "look_ahead_bytes: must be from 1B to 1024GiB"),
    ],
)
def test_lane_keys_refused(keys: str, expected: str) -> None:
    found = lane_problems(keys)
    assert len(found) == 1
    assert found[0].startswith(expected)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("handover: true", "handover: needs consumers: the readers, by id and prefetch"),
        ("consumers: [{id: a}]", "consumers: needs handover: true"),
        ("handover: 1", "handover: must be true or false"),
        ("handover: true, consumers: 3", "consumers: must be a list"),
        ("handover: true, consumers: [a]", "consumers[0]: must be a mapping of keys to values"),
        ("handover: true, consumers: [{prefetch: 3}]", "consumers[0].id: is required"),
        ("handover: true, consumers: [{id: a, prefetch: 0}]", "consumers[0].prefetch: must be a positive"),
        (
            "handover: true, consumers: [{id: a, prefech: 1}]",
            "consumers[0].prefech: unknown key; is prefetch",
        ),
        ("handover: true, consumers: [{id: 'a b'}]", "consumers[0].id: must be segments of A-Z a-z 0-9 _ -"),
        ("handover: true, consumers: [{id: a}, {id: b}, {id: a}]", "consumers: names a twice"),
        ("policy: sequenced", "policy: sequenced needs to know when a batch is settled, and with handover"),
        ("rebalance: {on_join: true}", "rebalance: on_join: with handover a group moves only when"),
        ("steal_after: 2s", "steal_after: with handover a group moves only when"),
        ("group_idle_timeout: 1s", "group_idle_timeout: with handover a group moves only when"),
        ("group_map: {lru: 5}", "group_map: lru: with handover a group moves only when"),
        ("group_map: {buckets: 5}", "group_map: buckets: with handover a group moves only when"),
        (
            "ack_timeout: 1m",
            "ack_timeout: with handover the dispatcher does not learn when a message is settled",
        ),
        (
            "policy: concurrent, max_in_flight_per_group: 1",
            "max_in_flight_per_group: with handover the dispatcher",
        ),
        ("group_window: {initial: 3}", "group_window: with handover the dispatcher does not learn when"),
        ("placement: measured", "placement: measured: with handover the dispatcher does not learn when"),
        ("cost: measured", "cost: measured: with handover the dispatcher does not learn when"),
        ("retry: {attempts: 5}", "retry: with handover a rejected message is not tried again"),
        ("heartbeat: 1s", "heartbeat: with handover no consumer sends heartbeats"),
    ],
)
def test_hand_over_keys_refused(keys: str, expected: str) -> None:
    if "handover" not in keys and "consumers" not in keys:
        keys += ", handover: true, consumers: [{id: a}]"
    found = lane_problems(keys)
    assert len(found) == 1
    assert found[0].startswith(expected)


def test_no_more_hand_over_consumers_than_can_be_looked_at() -> None:
    consumers = ", ".join(f"{{id: c{number}}}" for number in range(257))
    (found,) = lane_problems(f"handover: true, consumers: [{consumers}]")
    assert found == "consumers: must have at most 256 entries"


def test_a_hand_over_consumers_queue_has_a_name_that_fits() -> None:
    long = ".".join(["x" * 64] * 4)
    (found,) = lane_problems(f"handover: true, consumers: [{{id: {long}}}]")
    assert found == "consumers[0].id: the queue's name would have more than 255 bytes"
