"""From what everybody wrote down to what there is to judge about a hand-over lane."""

from __future__ import annotations

import math

from dispatcher.judge.judge import Story
from dispatcher.judge.record import Incarnation, LifeRecord, in_order
from tests.chaos.accounts import Books, balance
from tests.chaos.evidence import Evidence, Found, forgotten, leaderships, produced, with_doubts
from tests.chaos.handed import HandedBooks, Life, handed_violations, that_may_be_done
from tests.chaos.lanes import LaneOnStage
from tests.chaos.parts import Process
from tests.chaos.plan import REMEMBERING
from tests.chaos.stage import Stage


def gather_handed(stage: Stage, lane: LaneOnStage, there: Found) -> Evidence:
    """`misplaced` is everything that is wrong."""
    lives, records = dict[str, Life](), []
    for process in (process for process in stage.consumers if process.lane is lane):
        path = stage.folder / f"{process.name}.record"
        if path.exists():
            record = LifeRecord(path, by_incarnation=True)
            records.append(record)
            lives |= {one.life: _life(one, process) for one in record.incarnations.values()}
    handlings = in_order(records)
    sent, confirmed, repeated = produced(stage, lane)
    gaps = tuple(forgotten(stage, lane))
    take_overs = [at for one in leaderships(stage, lane)[0] for at in (one.since, one.until)]
    killed = [(outage.since, outage.until) for outage in stage.rabbitmq_outages if outage.killed]
    stopped = [(outage.since, outage.until) for outage in stage.rabbitmq_outages if not outage.killed]
    hurt = [(fault.since, fault.until) for fault in stage.node_faults]
    decisions = [with_doubts(decision, gaps) for decision in stage.decisions[lane.name]]
    story = Story(
        frozenset(confirmed),
        {name: life.until for name, life in lives.items() if life.until < math.inf and not life.remembers},
        {}, keeps_owner=False, forgotten=gaps, repeated=repeated, confirmed_at=confirmed,
    )  # fmt: skip
    counting = that_may_be_done(handlings, lives)
    balanced = balance(
        Books(counting, story, sent, decisions, there.dead, list(there.arrived), take_overs, stops=False)
    )
    wrong = [text for text in balanced.violations if not (killed and text.startswith("out of order"))]
    books = HandedBooks(
        handlings, lives, sent, frozenset(confirmed), repeated, there.dead, balanced.gone, take_overs, killed,
        stopped, hurt, gaps,
    )  # fmt: skip
    wrong += handed_violations(books)
    return Evidence(lane, handlings, confirmed, story._replace(gone=balanced.gone), [], wrong)


def _life(incarnation: Incarnation, process: Process) -> Life:
    """The proxy saw when its connection ended; RabbitMQ may have noticed nothing later than that."""
    since = incarnation.welcomes[-1]
    ends = [process.killed_at, incarnation.over]
    connections = [c for c in reversed(process.proxy.connections) if c.opened <= since][:1]
    ends += [c.closed for c in connections]
    until = min((end for end in ends if end is not None), default=math.inf)
    served_until = max((c.served_until for c in connections), default=-math.inf)
    return Life(process.who, since, until, process.kind == REMEMBERING, served_until)
