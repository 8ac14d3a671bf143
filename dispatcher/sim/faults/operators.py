"""What operators do in the middle of it: no faults, and to be survived like them."""

from __future__ import annotations

import json
from typing import Any

from dispatcher.client import properties as amqp_properties
from dispatcher.client.properties import Properties
from dispatcher.protocol import KEY_COMMAND
from dispatcher.sim.faults.kinds import Fault, fault
from dispatcher.sim.faults.striking import Faults


@fault(often=4)
def rebalance(faults: Faults, fault: Fault) -> bool:
    """`rebalance`, sent once or twice."""
    return command(faults, fault, "rebalance", {"pause": (None, "lane")[fault.amount % 3 == 0]})


@fault(often=1)
def reset_owners(faults: Faults, fault: Fault) -> bool:
    """`rebalance --reset`, sent once or twice."""
    return command(faults, fault, "rebalance", {"reset": True})


@fault(often=1)
def close_group(faults: Faults, fault: Fault) -> bool:
    """`groups close`, sent once or twice."""
    return command(faults, fault, "groups.close", {"group": f"g{fault.amount % 3}"})


@fault(often=2)
def evict(faults: Faults, fault: Fault) -> bool:
    """`consumers evict`, sent once or twice."""
    consumers = faults.world.scenario.consumers
    consumer = consumers[fault.target % len(consumers)].consumer_id
    return command(faults, fault, "consumers.evict", {"consumer": consumer})


def command(faults: Faults, fault: Fault, name: str, arguments: dict[str, Any]) -> bool:
    """Send a command as the CLI does; now and then it is stored twice. False: there is no queue for it."""
    world = faults.world
    queue = world.broker.queues.get(world.names.command)
    if queue is None:
        return False
    body = {
        "type": "command", "uuid": f"{name}-{fault.at_ms}-{fault.target}-{fault.amount}", "name": name,
        "sent_at_ms": world.scheduler.now_ms, "arguments": arguments,
    }  # fmt: skip
    properties = amqp_properties.write(Properties(delivery_mode=2), {})
    for _ in range(2 if fault.amount % 4 == 0 else 1):
        message = world.broker.put(
            queue, world.names.command_exchange.encode(), KEY_COMMAND.encode(), properties,
            json.dumps(body).encode(),
        )  # fmt: skip
        message.synced = True
    return True
