"""C-11: with `strict_identity` nobody speaks for an incarnation but the user of its join."""

from __future__ import annotations

import pytest

from dispatcher.wire.protocol import Heartbeat, Join, Leave, Settle
from tests.spec.lane_bench import LaneBench, clause

OURS, FORGED = "worker", "other"


def joined(**options: object) -> LaneBench:
    """Consumer one, of the user `worker`, has a message in flight."""
    bench = LaneBench(**{"strict_identity": True, **options})
    bench.step(join(1, OURS))
    bench.arrive("a1")
    return bench


def join(n: int, user: str, *, uuid: str = "one-1") -> Join:
    return Join(consumer="one", incarnation=uuid, n=n, queue=f"{uuid}.{n}", prefetch=10, user=user)


def settle(bench: LaneBench, user: str | None) -> None:
    seq = bench.latest("a1").seq
    bench.step(Settle(consumer="one", incarnation="one-1", acked=((seq, seq),), user=user))


def refused(bench: LaneBench) -> list[tuple[object, object]]:
    return [(fields["word"], fields["user"]) for event, fields in bench.told if event == "identity_refused"]


def test_c11_a_settle_counts_from_the_user_of_the_join_alone() -> None:
    clause("C-11", "count only from the user of its join")
    bench = joined()
    settle(bench, FORGED)
    assert bench.acked == []
    assert refused(bench) == [("settle", FORGED)]
    assert bench.lane.state.counters["control_refused"] == 1
    settle(bench, OURS)
    assert bench.acked == [b"a1"]


def test_c11_nor_do_a_join_a_leave_and_a_heartbeat_of_another() -> None:
    bench = joined()
    said = len(bench.notices)
    bench.step(
        join(2, FORGED),
        Leave(consumer="one", incarnation="one-1", user=FORGED),
        Heartbeat(
            consumer="one", incarnation="one-1", queue="elsewhere", held=0, last=0, in_hand=(), user=FORGED
        ),
    )
    assert refused(bench) == [("join", FORGED), ("leave", FORGED), ("heartbeat", FORGED)]
    assert len(bench.notices) == said, "nobody is answered in a queue that another named"
    consumer = bench.lane.state.by_uuid["one-1"]
    assert (consumer.queue, consumer.n) == ("one-1.1", 1)
    bench.step(join(2, OURS))
    assert consumer.n == 2


def test_c11_one_that_waits_for_its_id_is_not_sent_away_by_another() -> None:
    bench = joined()
    bench.step(join(1, "heir", uuid="one-2"))
    bench.step(Leave(consumer="one", incarnation="one-2", user=FORGED))
    assert refused(bench) == [("leave", FORGED)]
    bench.die("one")
    assert bench.lane.state.by_id["one"].uuid == "one-2"
    assert bench.lane.state.by_id["one"].user == "heir"


@pytest.mark.parametrize("known", [OURS, None])
def test_c11_a_new_leader_knows_the_user(known: str | None) -> None:
    clause("C-11", "An incarnation that joined before the option was set gets the user of its next word")
    row = joined().lane.checkpoint(everything=True).incarnations[1]
    assert row is not None
    assert row.user == OURS
    bench = LaneBench(strict_identity=True, snapshot={"incarnations": {1: row._replace(user=known)}})
    first, second = (FORGED, OURS) if known is not None else (OURS, FORGED)
    for user in (first, second):
        bench.step(Heartbeat(consumer="one", incarnation="one-1", queue="one-1.1", held=0, last=0, user=user))
    assert refused(bench) == [("heartbeat", FORGED)]
    assert bench.lane.state.by_uuid["one-1"].user == OURS


def test_without_the_option_any_user_counts() -> None:
    bench = joined(strict_identity=False)
    settle(bench, FORGED)
    assert bench.acked == [b"a1"]
    row = bench.lane.checkpoint(everything=True).incarnations[1]
    assert row is not None
    assert row.user is None
