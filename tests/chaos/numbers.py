"""What lanes say of the numbers that producers give (docs/semantics.md, N-1 and N-2).

Several producers number the messages of the same groups, each for itself: most numbers follow nothing.
All of that is reported, and holds nothing up.
"""

from __future__ import annotations

from typing import Any

from tests.chaos.evidence import produced
from tests.chaos.lanes import LaneOnStage
from tests.chaos.stage import Stage
from tests.service.harness import log_records

GAP, REPEATED = "sequence_gap", "sequence_repeated"
#: After so many messages somebody's numbers have crossed another's.
SURELY_CROSSED = 500


def told_wrongly(stage: Stage, lane: LaneOnStage) -> list[str]:
    """By the logs of all dispatchers that were ever started."""
    told = [
        record
        for replica in stage.replicas
        for record in log_records(replica.process.whole_log())
        if record.get("event") in (GAP, REPEATED) and record.get("lane") == lane.name
    ]
    if not stage.checks(lane):
        return [f"told wrongly: nobody checks the numbers of this lane: {_say(record)}" for record in told]
    of_lane = produced(stage, lane)
    given = {(number.group, number.number) for number in of_lane.sent}
    found = []
    if not told and len(of_lane.confirmed) >= SURELY_CROSSED:
        found.append(f"told wrongly: of {len(of_lane.confirmed)} numbers none was reported")
    for record in told:
        if (record["group"], record["number"]) not in given:
            found.append(f"told wrongly: nobody gave this number: {_say(record)}")
        if (record["number"] > record["due"]) != (record["event"] == GAP) or record["number"] == record[
            "due"
        ]:
            found.append(f"told wrongly: it is not what it is called: {_say(record)}")
    return found


def _say(record: dict[str, Any]) -> str:
    return f"{record['event']} {record['number']} of {record['group']}, {record['due']} was due"
