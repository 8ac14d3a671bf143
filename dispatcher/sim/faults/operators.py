"""What operators do meanwhile: no faults, but the lane has to survive it all the same."""

from __future__ import annotations

import json
from typing import Any, Final

from dispatcher.client import properties as amqp_properties
from dispatcher.client.properties import Properties
from dispatcher.core.lane import Lane
from dispatcher.core.model import Group
from dispatcher.core.operators.stopped_groups import stopped_groups
from dispatcher.core.waiting import count_waiting
from dispatcher.sim.faults.striking import Faults, fault
from dispatcher.sim.queues import SHOP, TARGET
from dispatcher.sim.scenario import Fault
from dispatcher.wire.group_text import format_group
from dispatcher.wire.protocol import KEY_COMMAND

#: Ahead of every clock that a dispatcher may have.
_NOT_OLD_MS: Final = 24 * 3_600_000
#: An operator who sends a group elsewhere looks for one with waiting messages: how often, how many times.
_LOOK_MS: Final = 10
_TRIES: Final = 200
#: What lasts until it is undone: kinds that are drawn apart from the others (sim/themes.py).
FLAGS: Final = ("pause_group", "pause_lane", "pin_group", "drain_consumer")
#: What ends messages: drawn apart as well.
OPERATIONS: Final = ("purge_group",)
#: What changes the configuration: apart too.
EDITS: Final = ("reload",)
#: What sends them elsewhere, and what goes wrong there: drawn apart, too.
MOVES: Final = (
    "move_group", "move_group", "reroute_group", "refuse_target", "delete_target", "kill_leader",
    "cut_leader", "kill_at_publish", "kill_after_commit", "kill_broker",
)  # fmt: skip


@fault(often=4)
def rebalance(faults: Faults, fault: Fault) -> bool:
    """`rebalance`, sent once or twice."""
    return command(faults, fault, "rebalance", {"pause": (None, "lane")[fault.amount % 3 == 0]})


@fault(often=1)
def reset_owners(faults: Faults, fault: Fault) -> bool:
    """`rebalance --reset`, sent once or twice."""
    return command(faults, fault, "rebalance", {"reset": True})


@fault(often=1)
def apply_plan(faults: Faults, fault: Fault) -> bool:
    """`rebalance --plan` with a plan that was true a moment ago, or for a group without an owner; sent once
    or twice."""
    lane = faults.world.leader_lane()
    groups = list(lane.state.groups.values()) if lane is not None else []
    consumers = faults.world.scenario.consumers
    moves: list[list[str | None]] = [["g99", None, consumers[0].consumer_id]]
    for place, group in enumerate(groups):
        owner = group.owner.id if group.owner is not None else None
        target = consumers[(fault.target + place) % len(consumers)].consumer_id
        moves.append([format_group(group.id), owner, target])
    arguments = {
        "moves": moves, "pause": (None, "lane")[fault.amount % 3 == 0], "dry_run": fault.target % 5 == 4,
        "buckets": lane.state.options.buckets if lane is not None else None,
    }  # fmt: skip
    faults.after(fault.amount % 50, command, faults, fault, "rebalance.plan", arguments)
    return True


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


@fault(often=0)
def pause_group(faults: Faults, fault: Fault) -> bool:
    """`groups pause`, and `groups resume` up to 2 s later."""
    group = {"group": f"g{fault.amount % 3}"}
    sent = command(faults, fault, "groups.pause", group)
    faults.after(fault.amount % 2_000, command, faults, fault, "groups.resume", group)
    return sent


@fault(often=0)
def pause_lane(faults: Faults, fault: Fault) -> bool:
    """`groups pause --all`, and `groups resume --all` up to 2 s later."""
    sent = command(faults, fault, "groups.pause", {"all": True})
    faults.after(fault.amount % 2_000, command, faults, fault, "groups.resume", {"all": True})
    return sent


@fault(often=0)
def pin_group(faults: Faults, fault: Fault) -> bool:
    """`groups pin`, often to a consumer that is not there, or leaves; `--undo` up to 3 s later."""
    group = {"group": f"g{fault.amount % 3}"}
    sent = command(faults, fault, "groups.pin", {**group, "consumer": f"c{fault.target % 5}"})
    faults.after(fault.amount % 3_000, command, faults, fault, "groups.pin", {**group, "undo": True})
    return sent


@fault(often=0)
def drain_consumer(faults: Faults, fault: Fault) -> bool:
    """`consumers drain`, and `--undo` up to 3 s later."""
    consumer = {"consumer": f"c{fault.target % 5}"}
    sent = command(faults, fault, "consumers.drain", consumer)
    faults.after(fault.amount % 3_000, command, faults, fault, "consumers.drain", {**consumer, "undo": True})
    return sent


@fault(often=0)
def purge_group(faults: Faults, fault: Fault) -> bool:
    """`groups purge`, of all or of the first few, or counted only; sent once or twice."""
    arguments = {
        "group": f"g{fault.amount % 3}", "first": (None, None, fault.amount % 7 + 1)[fault.target % 3],
        "dry_run": fault.target % 5 == 4,
    }  # fmt: skip
    return command(faults, fault, "groups.purge", arguments)


@fault(often=0)
def reload(faults: Faults, fault: Fault) -> bool:
    """The file is changed, and the leader reads it again, or all running dispatchers do."""
    world = faults.world
    leader = world.leader()
    (lane,) = world.edit_settings(fault.amount).lanes.values()
    hit = False
    for machine in world.dispatchers if fault.target % 2 else [leader]:
        if machine is not None and machine.process is not None and machine.runner is not None:
            machine.process.call_soon(machine.runner.reconfigure, lane)
            hit = True
    return hit


@fault(often=0)
def move_group(faults: Faults, fault: Fault) -> bool:
    """`groups move` of the deepest group: all, the first few, or a dry run; rarely to a missing queue."""
    to = "nowhere" if fault.amount % 11 == 0 else TARGET
    return _send_away(faults, fault, "groups.move", {"to": to})


@fault(often=0)
def reroute_group(faults: Faults, fault: Fault) -> bool:
    """`groups reroute` of the deepest group, in the same way; rarely by a key that no queue has."""
    exchange, key = SHOP
    key = "nobody's" if fault.amount % 11 == 0 else key
    return _send_away(faults, fault, "groups.reroute", {"exchange": exchange, "key": key})


def _send_away(faults: Faults, fault: Fault, name: str, target: dict[str, Any], tries: int = _TRIES) -> bool:
    """Once something of a group waits."""
    lane = faults.world.leader_lane()
    depths = {group: _depth(lane, group) for group in lane.state.groups.values()} if lane is not None else {}
    deepest = max(depths, key=lambda group: depths[group], default=None)
    if deepest is None or depths[deepest] < 1 + fault.amount % 4:
        if tries and faults.world.scenario.groups:
            faults.after(_LOOK_MS, _send_away, faults, fault, name, target, tries - 1)
        return False
    if tries < _TRIES:
        faults.struck(fault.kind)
    arguments = {
        "group": format_group(deepest.id), "first": (None, None, fault.amount % 7 + 1)[fault.target % 3],
        "dry_run": fault.target % 7 == 4,
    }  # fmt: skip
    return command(faults, fault, name, {**target, **arguments}, is_old=False)


def _depth(lane: Lane, group: Group) -> int:
    """How much waits of a group, here or parked."""
    return count_waiting(group) + lane.state.parking.parked(group)


def undo_everything(faults: Faults) -> None:
    """Operators take back what they have set: groups go on, pins and drains end."""
    if not any(fault.kind in FLAGS for fault in faults.world.scenario.faults):
        return
    now_ms = faults.world.scheduler.now_ms
    fault = Fault(now_ms, "undo", 0, 1)
    orders: list[tuple[str, dict[str, Any]]] = [("groups.resume", {"all": True})]
    for number in range(5):
        orders.append(("groups.resume", {"group": f"g{number}"}))
        orders.append(("groups.pin", {"group": f"g{number}", "undo": True}))
        orders.append(("consumers.drain", {"consumer": f"c{number}", "undo": True}))
    for name, arguments in orders:
        command(faults, fault, name, arguments, is_old=False)


def decide_stops(faults: Faults) -> None:
    """Twice a second: what groups have stopped at is released, often again and again, skipped or dropped."""
    now_ms, lane = faults.world.scheduler.now_ms, faults.world.leader_lane()
    for group, stop in stopped_groups(lane.state) if lane is not None else ():
        turn = (stop.arrival[1] + stop.attempt) % 4
        verdict = ("release", "release", "skip", "drop")[turn if stop.attempt < 4 else 2 + turn % 2]
        decision = Fault(now_ms, "decide", stop.arrival[1], stop.attempt)
        command(faults, decision, f"dead.{verdict}", {"group": format_group(group.id)}, is_old=False)
    faults.after(500, decide_stops, faults)


def command(
    faults: Faults, fault: Fault, name: str, arguments: dict[str, Any], *, is_old: bool = True
) -> bool:
    """Send a command as the CLI does; now and then it is stored twice. Who has a wrong clock may find it too
    old, unless that must not be. False: there is no queue for it."""
    world = faults.world
    queue = world.broker.queues.get(world.names.command)
    if queue is None:
        return False
    identity = f"{name}-{fault.at_ms}-{fault.target}-{fault.amount}-{sorted(arguments.items())}"
    body = {
        "type": "command", "uuid": identity, "name": name,
        "sent_at_ms": world.scheduler.now_ms + (0 if is_old else _NOT_OLD_MS), "arguments": arguments,
    }  # fmt: skip
    world.history.asked(identity)
    properties = amqp_properties.write(Properties(delivery_mode=2), {})
    for _ in range(2 if fault.amount % 4 == 0 else 1):
        message = world.broker.put(
            queue, world.names.command_exchange.encode(), KEY_COMMAND.encode(), properties,
            json.dumps(body).encode(),
        )  # fmt: skip
        message.synced = True
    return True
