"""The lanes' numbers for Prometheus. docs/operations.md lists every name; they are stable."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from dispatcher import __version__
from dispatcher.http.views import LaneView
from dispatcher.wire.shards import shard_name, shard_number

#: Totals of a lane by their name in `LaneView.counters`; the metric is `dispatcher_<name>_total`.
COUNTERS: Final = {
    "acked_again": "Originals that came back after their ack and were acked again.",
    "adopted": "Messages that only a consumer still knew of after Redis had forgotten them.",
    "consumers_evicted": "Incarnations that were ended by an operator or by ack_timeout.",
    "consumers_frozen": "Consumers that missed three heartbeats.",
    "consumers_lost": "Consumers whose connection was lost.",
    "consumers_refused": "Times that a consumer's queue took no more messages.",
    "consumers_taken": "Incarnations that were taken back.",
    "control_refused": "Control messages that could not be understood or obeyed.",
    "copies_missed": "Copies that got lost on their way to a consumer, as its heartbeats showed.",
    "dead_lettered": "Originals given up to the dead queue.",
    "deduplicated": (
        "Originals that repeated a message_id within `dedup.window`: acked, handed to no consumer."
    ),
    "dropped": "Messages at which groups had stopped, deleted by an operator.",
    "expired": "Originals that expired while they waited here.",
    "failed": "Messages that their consumer reported as failed.",
    "groups_closed": "Groups that an operator closed.",
    "groups_forgotten": "Groups at rest that lost their owner because there were too many of them.",
    "groups_idled": "Groups that lost their owner because nothing of them was here for too long.",
    "history_refused": "Originals that RabbitMQ did not take for the history, and that went on without.",
    "handed_on": "Messages read back from a hand-over consumer's queue and given to another.",
    "given_back": "Parked originals that were read and put back, because they could not go.",
    "groups_moved": "Groups that a rebalance moved.",
    "groups_parked": "Groups whose waiting originals were parked.",
    "groups_stalled": "Groups whose window fell to 1: nothing of them was settled for longer than usual.",
    "groups_stolen": "Groups that waited for room at their owner, and went to a consumer that had some.",
    "ids_forgotten": "Ids that left the window of `dedup` too early, because of `dedup.max_ids`.",
    "joins": "Incarnations that joined.",
    "joins_ignored": "Joins that named another incarnation's queue.",
    "leaves": "Incarnations that left.",
    "overdue": "Messages that were not settled within ack_timeout.",
    "parked": "Originals moved to a parking queue.",
    "parked_lost": "Parked originals that were not in their parking queue any more.",
    "poisoned": "Messages dead-lettered because consumers died with them, the last one alone with it.",
    "purged": "Originals that operators purged.",
    "moved": "Originals that operators moved to a queue or rerouted to an exchange.",
    "rebalances_on_join": "Rebalances because a consumer had joined.",
    "rejoins": "Joins of incarnations that were known already.",
    "repeated_copies": "Parked originals that a crash had stored twice, dropped.",
    "sent_again": "Copies sent again with the number they had.",
    "sequence_gaps": "Numbers that came where an earlier one of their group was missing (`sequence_check`).",
    "sequence_repeats": "Numbers that came again, or late (`sequence_check`).",
    "sequence_waits": "Numbers that the rest of their group waited for (`sequence_check: hold`).",
    "sequences_forgotten": "Groups whose last number was forgotten because there were too many of them.",
    "settled": "Messages settled.",
    "settles_ignored": "Settles for numbers that had ended or were never given.",
    "stopped": "Failures that stopped a group (`on_exhausted: stop`).",
    "taken_back": "Messages taken back from a consumer that has ended.",
    "unpublishable": "Messages over whose copy RabbitMQ closed the channel or the connection.",
    "vanished": "Originals that others deleted, or that expired, while they were in flight.",
}
#: The same, of the ledger's thread.
LEDGER_COUNTERS: Final = {
    "ledger_records": "Records of the ledger that are in its files, since the process began.",
    "ledger_records_dropped": "Records that the ledger lost because the disk was slow, full or gone.",
}
#: Numbers of a lane by their key in `LaneView.overview`; the metric is `dispatcher_<name>`.
GAUGES: Final = {
    "lane_epoch": ("lane_epoch", "Fencing number of this leadership."),
    "lane_paused": ("paused", "1 while an operator has paused the lane."),
    "consumers": ("consumers", "Consumers that are known."),
    "consumers_drained": ("consumers_drained", "Consumers, here or not, that an operator has drained."),
    # Not "consumers_frozen": OpenMetrics has that name for the counter of them.
    "frozen_consumers": ("consumers_frozen", "Consumers whose heartbeats are missing now."),
    "groups": ("groups", "Groups that are known."),
    # Not "groups_parked": OpenMetrics has that name for the counter of them.
    "parked_groups": ("parked_groups", "Groups with messages in parking queues."),
    "groups_waiting": ("groups_waiting", "Groups whose messages wait for nothing but a consumer's room."),
    "groups_paused": ("groups_paused", "Groups that an operator has paused."),
    "groups_pinned": ("groups_pinned", "Groups that an operator has pinned to a consumer."),
    "groups_stopped": ("groups_stopped", "Groups that have stopped at a message that failed."),
    "messages_held": ("held", "Originals that wait here for their turn."),
    "messages_in_flight": ("in_flight", "Messages dispatched and not settled."),
    "copies_unconfirmed": ("unconfirmed", "Copies that RabbitMQ has not confirmed yet."),
    "messages_parked": ("parked", "Originals in parking queues."),
    "parking_queues": ("parking_queues", "Parking queues that exist."),
    "parking_queues_unavailable": ("parking_unavailable", "Parking queues that RabbitMQ can't open."),
    "messages_undeliverable": ("undeliverable", "Originals that not even the dead queue takes."),
    "dead_letters": ("dead_letters", "Messages in the lane's dead queue, as of the last five seconds."),
    "publishers_blocked": ("publishers_blocked", "1 while RabbitMQ, short of memory or disk, blocks us."),
    "redis_unavailable": ("redis_unavailable", "1 while Redis does not answer, or takes no writes."),
    "held_bytes": ("bytes_held", "Memory taken by originals."),
}
#: Gauges of the group that gets most of the incoming messages, by their key in `overview()["busiest_group"]`.
#: Its id is no label: there may be a million of them. `status` names it.
BUSIEST_GAUGES: Final = {
    "busiest_group_share": (
        "share",
        ("The busiest group's part of the messages that came in during the last minute."),
    ),
    "busiest_group_depth": ("depth", "Messages of that group that wait, are in flight or are parked."),
}
OLDEST_IN_FLIGHT: Final = (
    "oldest_in_flight_seconds",
    "For how long the message has been out that is out for longest.",
)
#: The same per inbound queue, by their key in a row of `overview()["inbound"]`.
INBOUND_GAUGES: Final = {
    "inbound_held": ("held", "Originals of this queue that wait here."),
    "inbound_in_flight": ("in_flight", "Messages of this queue that are in flight."),
    "inbound_weight": ("weight", "Configured weight."),
    "inbound_share": ("share", "Share of the cost of all dispatched messages, 0 to 1."),
    "inbound_look_ahead_full": ("full", "1 while no more originals of this queue are taken."),
    "inbound_settled_unacked": ("settled_unacked", "Settled originals whose acks wait for unsettled ones."),
}
INBOUND_SETTLED_UNACKED: Final = (
    "inbound_settled_unacked_seconds",
    "For how long the first of these acks has waited.",
)
#: Histograms of a lane by their name in `LaneView.durations`; the metric is `dispatcher_<name>_seconds`.
HISTOGRAMS: Final = {
    "wait": "From a message's arrival to its first hand-over.",
    "commit": "From a step's commit to Redis' answer.",
    "confirm": "From a publish to RabbitMQ's confirm; one publish at a time is timed.",
    "process": "From a message's last hand-over to its end.",
}
LANE_READY: Final = ("lane_ready", "1 while the lane dispatches here or stands by.")
LANE_ACTIVE: Final = ("lane_active", "1 while this process is the lane's active dispatcher.")
INBOUND_DISPATCHED: Final = (
    "inbound_dispatched",
    "Messages of this queue handed over for the first time or again.",
)
PREFIX: Final = "dispatcher_"


def registry(lanes: Sequence[LaneView]) -> CollectorRegistry:
    """A registry of its own, with these lanes and the process."""
    made = CollectorRegistry()
    made.register(_LaneCollector(lanes))
    ProcessCollector(registry=made)
    return made


class _LaneCollector(Collector):
    """Reads the lanes at every scrape; keeps nothing."""

    def __init__(self, lanes: Sequence[LaneView]) -> None:
        self._lanes = lanes

    def describe(self) -> list[Metric]:
        return []  # so that registering does not read the lanes

    def collect(self) -> Iterator[Metric]:
        for family in self._families():
            family.samples = [_of_whole_lane(sample) for sample in family.samples]
            yield family

    def _families(self) -> Iterator[Metric]:
        """With the names of shards for the label `lane`."""
        overviews = {lane.name: lane.overview() for lane in self._lanes}
        yield InfoMetricFamily(f"{PREFIX}build", "The program.", {"version": __version__})
        yield _gauge(*LANE_READY, {lane.name: lane.readiness()[0] for lane in self._lanes})
        active = {name: overview.get("state") == "active" for name, overview in overviews.items()}
        yield _gauge(*LANE_ACTIVE, active)
        for name, (key, text) in GAUGES.items():
            yield _gauge(name, text, {lane: overview.get(key) for lane, overview in overviews.items()})
        leading = {lane: overview for lane, overview in overviews.items() if "busiest_group" in overview}
        for name, (key, text) in BUSIEST_GAUGES.items():
            of_lane = {
                lane: (overview["busiest_group"] or {}).get(key, 0) for lane, overview in leading.items()
            }
            yield _gauge(name, text, of_lane)
        oldest_s = {lane: overview["oldest_in_flight_ms"] / 1_000 for lane, overview in leading.items()}
        yield _gauge(*OLDEST_IN_FLIGHT, oldest_s)
        yield from _inbound_metrics(overviews)
        counters = {lane.name: lane.counters() for lane in self._lanes}
        for name, text in (COUNTERS | LEDGER_COUNTERS).items():
            family = CounterMetricFamily(PREFIX + name, text, labels=["lane"])
            for lane, totals in counters.items():
                family.add_metric([lane], totals.get(name, 0))
            yield family
        yield from self._histograms()

    def _histograms(self) -> Iterator[Metric]:
        durations = {lane.name: lane.durations() for lane in self._lanes}
        for name, text in HISTOGRAMS.items():
            family = HistogramMetricFamily(f"{PREFIX}{name}_seconds", text, labels=["lane"])
            for lane, histograms in durations.items():
                if name in histograms:
                    up_to, total, sum_s = histograms[name]
                    buckets = [(str(bound), n) for bound, n in up_to]
                    family.add_metric([lane], [*buckets, ("+Inf", total)], sum_s)
            yield family


def _of_whole_lane(sample: Sample) -> Sample:
    """A shard's sample has its number as the label `shard`, and else the labels of the whole lane, with the
    names in the configuration. No other sample has that label."""
    number = shard_number(sample.labels.get("lane", ""))
    if number is None:
        return sample
    ending = shard_name("", number)
    labels = {label: value.removesuffix(ending) for label, value in sample.labels.items()}
    return sample._replace(labels={**labels, "shard": str(number)})


def _gauge(name: str, text: str, value_of: dict[str, Any]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(PREFIX + name, text, labels=["lane"])
    for lane, value in value_of.items():
        if value is not None:
            family.add_metric([lane], float(value))
    return family


def _inbound_metrics(overviews: dict[str, dict[str, Any]]) -> Iterator[Metric]:
    rows = [(lane, row) for lane, overview in overviews.items() for row in overview.get("inbound", [])]
    name, text = INBOUND_DISPATCHED
    families: list[tuple[str, CounterMetricFamily | GaugeMetricFamily]] = [
        ("dispatched", CounterMetricFamily(PREFIX + name, text, labels=["lane", "queue"]))
    ]
    for name, (key, text) in INBOUND_GAUGES.items():
        families.append((key, GaugeMetricFamily(PREFIX + name, text, labels=["lane", "queue"])))
    for key, family in families:
        for lane, row in rows:
            if row.get(key) is not None:
                family.add_metric([lane, str(row["queue"])], float(row[key]))
        yield family
    name, text = INBOUND_SETTLED_UNACKED
    waits = GaugeMetricFamily(PREFIX + name, text, labels=["lane", "queue"])
    for lane, row in rows:
        if row.get("settled_unacked_ms") is not None:
            waits.add_metric([lane, str(row["queue"])], row["settled_unacked_ms"] / 1_000)
    yield waits
