"""A lane under load: what a simulation made of random traffic, told as the dispatcher would tell it."""

from __future__ import annotations

from pathlib import Path

from dispatcher.core.records import Dispatched
from dispatcher.ledger.rows import row
from dispatcher.ledger.schema import Event
from dispatcher.pipeline.advise.lane_options import lane_options
from dispatcher.pipeline.advise.simulation import Course, Simulation
from dispatcher.pipeline.advise.traffic import Delays, Scenario, Traffic
from tests.pipeline.ledgers import MS, START_US, HandOver, Leader, Numbers, in_order
from tests.pipeline.queueing import traffic

LANE = "busy"
QUIET = "quiet"  # nothing was handed over
PASSED_ON = "passed on"  # its consumers only read and ack
MESSAGES = 1_500
SCENARIO = Scenario(consumers=4, prefetch=2, policy="exclusive", weights=(1,))


class Told(Simulation):
    """Remembers to whom each message went, and when it was handed over."""

    def __init__(self, load: Traffic) -> None:
        options = lane_options(load, SCENARIO)
        super().__init__(load, options, consumers=SCENARIO.consumers, prefetch=SCENARIO.prefetch)
        self.who: dict[int, int] = {}

    def _hand_over(self, copy: Dispatched, now_us: int) -> None:
        super()._hand_over(copy, now_us)
        self.who[copy.message.tag - 1] = self._places[copy.incarnation]


def planted() -> Traffic:
    """Three consumers' work for four of them. Records say that commit and way take 1 ms each."""
    load = traffic(3.0, MESSAGES, seed=23, groups=[b"g%d" % n for n in range(60)])
    groups = [each._replace(demand_us=each.demand_us + MS) for each in load.arrivals]
    return Traffic(LANE, ("in",), groups, load.span_us, delays=Delays(0, MS, MS))


def plant_load(folder: Path) -> Course:
    """Returns what became of the messages."""
    load = planted()
    told = Told(load)
    course = told.run()
    leader, numbers = Leader(folder, LANE, grouped=True, tops_up=True, look_ahead=10_000), Numbers()
    for n in range(SCENARIO.consumers):
        leader.tell(row(
            START_US, Event.CONSUMER_JOINED, consumer=f"c-i{n}", incarnation=f"i{n}",
            detail=f'{{"prefetch":{SCENARIO.prefetch}}}',
        ))  # fmt: skip
    hands = []
    for place in sorted(range(MESSAGES), key=course.dispatched_us.__getitem__):
        arrival = load.arrivals[place]
        hands.append(numbers.number(HandOver(
            (arrival.group or b"").decode(), place + 1, f"i{told.who[place]}",
            START_US + course.dispatched_us[place], START_US + course.settled_us[place],
            received=START_US + arrival.at_us, kind="order",
            wait_cause="window" if course.dispatched_us[place] > arrival.at_us else None,
        )))  # fmt: skip
    leader.hand(*sorted(hands, key=lambda hand: hand.ended or 0))
    leader.end()
    Leader(folder, QUIET).end()
    plant_handed_on(folder)
    return course


def plant_handed_on(folder: Path) -> None:
    leader = Leader(folder, PASSED_ON, handover=[{"id": "reader", "queue": "out", "prefetch": 10}])
    numbers = Numbers()
    leader.hand(*(numbers.number(each) for each in in_order("g", 3)))
    leader.end()
