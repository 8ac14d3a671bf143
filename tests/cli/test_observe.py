"""`dispatcher observe` beside a flow of a real broker."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import UnroutableError

from tests.cli.conftest import Run
from tests.conftest import Vhost
from tests.waiting import wait_until


@pytest.fixture
def channel(vhost: Vhost) -> Iterator[BlockingChannel]:
    """With an exchange that feeds a queue which has two consumers."""
    with pika.BlockingConnection(pika.URLParameters(vhost.amqp_url)) as connection:
        made = connection.channel()
        made.exchange_declare("flow", "topic")
        made.queue_declare("in", durable=True)
        made.queue_bind("in", "flow", "orders.#")
        made.basic_qos(prefetch_count=1)
        for _ in range(2):
            made.basic_consume("in", lambda *_: None)
        made.confirm_delivery()
        yield made


def test_a_flow_is_reported_and_not_touched(vhost: Vhost, channel: BlockingChannel) -> None:
    command = ["observe", "--url", vhost.amqp_url, "--exchange", "flow", "--queue", "in", "--for", "4s"]
    observing = subprocess.Popen(
        [sys.executable, "-m", "dispatcher", *command, "--group-header", "x-order", "--json"],
        stdout=subprocess.PIPE,
    )

    def is_bound() -> bool:
        try:
            channel.basic_publish("flow", "nobody", b"", mandatory=True)
        except UnroutableError:
            return False
        return True

    wait_until(is_bound, what="the observer's queue")
    for number in (1, 2, 4, 3):
        for group in ("a", "b", "c"):  # so each next one of a group is dealt to the other consumer
            headers = {"x-order": group, "x-group-seq": number}
            channel.basic_publish(
                "flow", "orders.x", b"1234", pika.BasicProperties(headers=headers, app_id="p")
            )
    output, _ = observing.communicate(timeout=60)
    found = json.loads(output)
    assert observing.returncode == 0
    assert (found["messages"], found["groups"], found["without_group"]) == (13, 3, 1)
    assert found["numbers"] == {
        "messages": 12, "late": 3, "repeated": 0, "gaps": 3,
        "late_by": [{"by": "p", "after": "p", "messages": 3}],
    }  # fmt: skip
    assert (found["consumers_of_queue"], found["copies_dropped"]) == (2, False)
    assert [row["work_ms"] for row in found["model"]] == [10, 100, 1_000]
    assert found["model"][2]["competing"]["followers"] == 9
    assert found["model"][2]["competing"]["at_once"] > 0
    # All that was published for them is with the flow's own consumers, or in its queue; nothing else is left.
    in_queue = channel.queue_declare("in", passive=True).method.message_count
    assert in_queue == 10
    assert {queue["name"] for queue in vhost.management(f"queues/{vhost.name}")} == {"in"}


def test_people_get_a_report(run: Run, channel: BlockingChannel) -> None:
    nothing = run("observe", "--exchange", "flow", "--for", "10ms")
    assert (nothing.exit_code, nothing.stderr) == (0, "")
    assert "0 messages" in nothing.stdout
    assert "Nothing came" in nothing.stdout


def test_it_has_another_name(run: Run, channel: BlockingChannel) -> None:
    refused = [run(name, "--exchange", "other", "--for", "10ms") for name in ("observe", "watch")]
    assert len({(each.exit_code, each.stderr) for each in refused}) == 1


def test_what_can_not_be_observed_is_refused(run: Run, channel: BlockingChannel) -> None:
    missing = run("observe", "--exchange", "other", "--for", "10ms")
    assert (missing.exit_code, missing.stderr) == (1, "dispatcher: there is no exchange 'other'\n")
    assert run("observe", "--exchange", "", "--for", "10ms").exit_code == 2
    assert (
        "no queue 'none'" in run("observe", "--exchange", "flow", "--queue", "none", "--for", "10ms").stderr
    )
