"""Who was evicted, and who was not: the verdict finds what is planted in the record and in the logs.

`ack_timeout` is 3 s. Consumer `a` begins 1 and 2, a leader leads since 0.2, and nothing hinders it.
"""

from __future__ import annotations

import math

import pytest

from tests.chaos.doctored import ONE, THREE, TWO, Doctored, handled
from tests.chaos.evictions import LATE_S, SLACK_S
from tests.chaos.parts import Eviction, Outage, Replica
from tests.client.tcp_proxy import Connection
from tests.service.harness import DispatcherProcess

TIMEOUT_S = 3.0
STUCK = handled(2, 2.0, 2, end=False)
TAKEN = "over 14.0 aaaa taken\n"


@pytest.fixture
def evicting(doctored: Doctored) -> Doctored:
    doctored.configure(evicting=("exclusive",))
    assert doctored.stage.plan.settings.ack_timeout_s == TIMEOUT_S
    doctored.sent(m1=0.9, m2=1.9, m3=2.9)
    doctored.led_at(0.2)
    return doctored


def _evicted(doctored: Doctored, at: float, by: str = "ack_timeout") -> None:
    doctored.logged(at, "consumer_evicted", consumer="a", incarnation="aaaa", by=by, in_flight=1)


def _others_go_on(doctored: Doctored, at: float) -> None:
    second = (
        handled(2, at, 1, epoch=2, attempt=2),
        handled(3, at + 1, 2, epoch=2).replace(" 2 2 2 1 ", " 2 2 2 2 "),
    )
    doctored.write(doctored.b, second[0], second[1])


# -- in time --


@pytest.mark.parametrize("by", ["ack_timeout", "a former dispatcher"])
def test_who_is_stuck_is_evicted_and_others_go_on(evicting: Doctored, by: str) -> None:
    """The record of a leader that was killed before it came to it is told again by the next one."""
    evicting.write(evicting.a, ONE, STUCK, TAKEN)
    _others_go_on(evicting, 5.5)
    assert evicting.found() == {"doubled", "overlap", "owner changed", "taken back", "not evicted"}
    _evicted(evicting, 5.2, by)
    assert not evicting.found()


def test_others_keep_the_order(evicting: Doctored) -> None:
    evicting.write(evicting.a, ONE, STUCK, TAKEN)
    evicting.write(evicting.b, handled(3, 5.5, 1, epoch=2), handled(2, 6.5, 2, epoch=2, attempt=2))
    _evicted(evicting, 5.2)
    assert "out of order" in evicting.found()


def test_others_wait_until_it_is_evicted(evicting: Doctored) -> None:
    evicting.write(evicting.a, ONE, STUCK, TAKEN)
    _others_go_on(evicting, 5.5)
    _evicted(evicting, 5.8)
    assert "overlap" in evicting.found()


def test_an_attempt_that_is_counted_once_more_says_nothing_of_the_time_before(evicting: Doctored) -> None:
    """Redis has lost that message 1 was tried before: its first attempt comes after its second one."""
    evicting.write(evicting.a, handled(1, 1.0, 1, attempt=2), STUCK, TAKEN)
    evicting.write(evicting.b, handled(1, 5.5, 1, epoch=2), handled(2, 6.5, 2, epoch=2, attempt=2))
    _evicted(evicting, 5.2)
    assert "evicted early" not in evicting.found()


# -- not too early --


def test_who_settled_in_time_may_not_be_evicted(evicting: Doctored) -> None:
    """The last of three messages was settled half a second after it began, and sent a second before."""
    evicting.write(evicting.a, ONE, TWO, THREE, "over 5.6 aaaa taken\n")
    _evicted(evicting, 5.2)
    assert evicting.found() == {"evicted early"}


def test_who_is_late_may_not_be_evicted_before(evicting: Doctored) -> None:
    evicting.write(evicting.a, ONE, STUCK, "over 5.6 aaaa taken\n")
    _others_go_on(evicting, 5.5)
    _evicted(evicting, 1.9 + TIMEOUT_S - SLACK_S - 0.1)
    assert evicting.found() == {"evicted early"}


def test_an_order_for_another_time_excuses_nothing(evicting: Doctored) -> None:
    """An operator wanted it, and nobody answered; then a dispatcher said that it was late."""
    evicting.stage.evictions = [Eviction(3.9, 90.0, "a", None)]
    evicting.write(evicting.a, ONE, TWO, THREE, "over 5.6 aaaa taken\n")
    _evicted(evicting, 5.2)
    assert evicting.found() == {"evicted early"}


def test_a_new_leader_gives_everybody_their_time_again(evicting: Doctored) -> None:
    evicting.write(evicting.a, ONE, STUCK, TAKEN)
    _others_go_on(evicting, 5.5)
    _evicted(evicting, 5.2)
    evicting.logged(3.0, "lane_interrupted")
    evicting.logged(5.0, "lane_led")
    assert evicting.found() == {"evicted early"}


def test_a_new_leader_tells_of_what_a_former_one_saw(evicting: Doctored) -> None:
    evicting.write(evicting.a, ONE, STUCK, TAKEN)
    _others_go_on(evicting, 5.7)
    evicting.logged(5.2, "lane_interrupted")
    evicting.logged(5.4, "lane_led")
    _evicted(evicting, 5.5, "a former dispatcher")
    assert not evicting.found()
    evicting.write(evicting.a, ONE, handled(2, 3.2, 2), "over 5.6 aaaa taken\n")
    evicting.write(evicting.b, handled(3, 5.7, 1, epoch=2))
    evicting.sent(m1=0.9, m2=3.1, m3=3.2)
    assert evicting.found() == {"evicted early"}


def test_what_it_never_began_may_have_been_late(evicting: Doctored) -> None:
    """Between 1 and 2 it was given something of which its record knows nothing."""
    evicting.write(evicting.a, ONE, TWO.replace("aaaa 2", "aaaa 3"), "over 5.6 aaaa taken\n")
    evicting.write(evicting.b, handled(3, 5.5, 1, epoch=2))
    _evicted(evicting, 4.3)
    assert not evicting.found()
    _evicted(evicting, 3.2)
    assert evicting.found() == {"evicted early"}


def test_what_waits_for_room_has_not_been_given(evicting: Doctored) -> None:
    """All were sent long before, and 31 could be given only when 1 was settled."""
    evicting.sent(**{f"m{n}": 0.1 for n in range(1, 32)})
    quick = [handled(n, 1.45 + n / 100, n, takes_s=0.005) for n in range(2, 32)]
    evicting.write(evicting.a, ONE, *quick, "over 7.0 aaaa taken\n")
    _evicted(evicting, 3.8)
    assert evicting.found() == {"evicted early"}
    evicting.write(evicting.a, ONE, *quick[:-1], "over 7.0 aaaa taken\n")
    evicting.write(evicting.b, handled(31, 4.5, 1, epoch=2))
    assert not evicting.found()


# -- not for ever --


def _stuck_until(doctored: Doctored, end: float) -> None:
    """And gets what follows when it can go on."""
    late = handled(3, end + 0.2, 3).replace(f"received {end + 0.1}", "received 2.9")
    doctored.write(doctored.a, ONE, handled(2, 2.0, 2, takes_s=end - 2.0), late)


def test_who_is_stuck_has_to_be_evicted(evicting: Doctored) -> None:
    due = 2.0 + TIMEOUT_S + LATE_S
    evicting.configure(evicting=())
    _stuck_until(evicting, due + 0.5)
    assert not evicting.found()
    evicting.configure(evicting=("exclusive",))
    assert evicting.found() == {"not evicted"}
    _stuck_until(evicting, due - 0.5)
    assert not evicting.found()


def test_it_may_not_take_longer(evicting: Doctored) -> None:
    evicting.write(evicting.a, ONE, STUCK, TAKEN)
    _others_go_on(evicting, 12.0)
    _evicted(evicting, 2.0 + TIMEOUT_S + LATE_S + 0.5)
    assert evicting.found() == {"not evicted"}


def test_only_a_leader_that_is_there_can_evict(evicting: Doctored) -> None:
    _stuck_until(evicting, 13.0)
    (replica,) = evicting.stage.replicas
    replica.slow.append((6.0, 8.0))
    assert not evicting.found()
    replica.slow.clear()
    replica.redis_slow.append((6.0, 8.0))
    assert not evicting.found()
    replica.redis_slow.clear()
    evicting.stage.rabbitmq_outages.append(Outage(6.0, 8.0))
    assert not evicting.found()
    evicting.stage.rabbitmq_outages.clear()
    evicting.stage.redis_outages.append(Outage(2.5, 3.0, back_to=2.4))
    assert not evicting.found()
    evicting.logged(3.5, "redis_restored")
    assert evicting.found() == {"not evicted"}
    evicting.stage.redis_outages.clear()
    evicting.logged(7.5, "lane_led")
    assert not evicting.found()
    evicting.led_at(0.2)
    assert evicting.found() == {"not evicted"}


def test_what_hinders_another_dispatcher_hinders_no_leader(evicting: Doctored) -> None:
    _stuck_until(evicting, 13.0)
    (replica,) = evicting.stage.replicas
    (evicting.folder / "dispatcher1.log").touch()
    process = DispatcherProcess(evicting.folder, "dispatcher1", {})
    evicting.stage.replicas.append(Replica("dispatcher1", process, replica.rabbitmq, replica.redis))
    evicting.stage.replicas[1].slow.append((6.0, 8.0))
    assert evicting.found() == {"not evicted"}


def test_only_one_that_is_connected_is_evicted(evicting: Doctored) -> None:
    _stuck_until(evicting, 13.0)
    evicting.a.proxy.connections = [Connection(0.0, 7.0)]
    assert "not evicted" not in evicting.found()


# -- for good --


def test_it_gets_nothing_more(evicting: Doctored) -> None:
    """3 was sent after the eviction; or somebody else had it in between."""
    evicting.sent(m1=0.9, m2=1.9, m3=6.0)
    after = handled(3, 6.5, 3, end=False)
    evicting.write(evicting.a, ONE, STUCK, after, TAKEN)
    _others_go_on(evicting, 6.0)
    _evicted(evicting, 5.2)
    assert evicting.found() == {"handed over after its eviction"}
    evicting.sent(m1=0.9, m2=1.9, m3=2.9)
    assert not evicting.found()
    again = handled(2, 7.5, 3, attempt=3, end=False)
    evicting.write(evicting.a, ONE, STUCK, again, TAKEN)
    assert evicting.found() == {"handed over after its eviction"}


def test_no_join_brings_it_back(evicting: Doctored) -> None:
    evicting.write(evicting.a, ONE, STUCK, "welcomed 6.5 aaaa 2\n", TAKEN)
    _others_go_on(evicting, 5.5)
    _evicted(evicting, 5.2)
    evicting.a.proxy.connections = [Connection(0.0, 6.0), Connection(6.2)]
    assert evicting.found() == {"welcomed after its eviction"}
    evicting.write(evicting.a, ONE, STUCK, TAKEN)
    assert not evicting.found()


# -- by somebody --


def test_an_operator_s_eviction_was_asked_for(evicting: Doctored) -> None:
    evicting.write(evicting.a, ONE, TWO, THREE, "over 5.6 aaaa taken\n")
    _evicted(evicting, 4.0, "operator")
    assert evicting.found() == {"evicted by nobody"}
    evicting.stage.evictions = [Eviction(3.9, math.inf, "a", "bbbb")]
    assert evicting.found() == {"evicted by nobody"}
    evicting.stage.evictions = [Eviction(3.9, math.inf, "a", "aaaa")]
    assert not evicting.found()


def test_nobody_is_late_where_nobody_asks_for_it(evicting: Doctored) -> None:
    evicting.configure(evicting=())
    evicting.write(evicting.a, ONE, STUCK, TAKEN)
    _others_go_on(evicting, 5.5)
    _evicted(evicting, 5.2)
    assert evicting.found() == {"evicted by nobody"}
