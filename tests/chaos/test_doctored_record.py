"""The verdict finds what is planted in a record: a good one is written, doctored, and read again."""

from __future__ import annotations

import math

from dispatcher.amqp.events import Fetched
from dispatcher.judge.record import LifeRecord
from tests.amqp.samples import field, properties, text
from tests.chaos.doctored import ONE, QUEUE, THREE, TWO, Doctored, handled, numbered
from tests.chaos.evidence import Found, _wrong_end, void_at
from tests.chaos.parts import Eviction, Outage
from tests.chaos.plan import Plan
from tests.chaos.producer import CONFIRMED, ProducerRecord
from tests.chaos.verdict import poison
from tests.client.tcp_proxy import Connection


def test_nothing_is_wrong_with_a_good_record(doctored: Doctored) -> None:
    doctored.write(doctored.a, ONE, TWO, THREE)
    assert not doctored.found()


def test_a_loss_is_found(doctored: Doctored) -> None:
    doctored.write(doctored.a, ONE, TWO)
    assert doctored.found() == {"lost"}


def test_a_loss_by_a_consumer_that_died_is_found(doctored: Doctored) -> None:
    doctored.write(doctored.a, ONE, TWO, handled(3, 3.0, 3, end=False))
    doctored.a.killed_at = 3.1
    assert doctored.found() == {"lost"}


def test_a_duplicate_is_found(doctored: Doctored) -> None:
    doctored.write(doctored.a, ONE, TWO, handled(2, 2.5, 3), handled(3, 3.0, 4))
    assert doctored.found() == {"doubled"}


def test_a_disorder_is_found(doctored: Doctored) -> None:
    doctored.write(doctored.a, ONE, handled(3, 2.0, 2), handled(2, 3.0, 3))
    assert doctored.found() == {"out of order"}


def test_what_was_in_doubt_may_come_after_what_was_sent_over_the_next_connection(doctored: Doctored) -> None:
    """4 went over two connections: RabbitMQ may have read the first one later."""
    ProducerRecord(doctored.folder / "p0-1.produced").write(CONFIRMED, [numbered(4, 1), numbered(5, 1)])
    again, after = handled(4, 4.0, 4, publish=1), handled(5, 6.0, 6, publish=1)
    doctored.write(doctored.a, ONE, TWO, THREE, again, handled(4, 5.0, 5), after)
    assert not doctored.found()
    ProducerRecord(doctored.folder / "p0-1.produced").write(CONFIRMED, [numbered(4)])
    assert doctored.found() == {"out of order"}


def test_an_overlap_is_found(doctored: Doctored) -> None:
    doctored.write(doctored.a, ONE, TWO)
    doctored.write(doctored.b, handled(3, 2.2, 1, epoch=2))
    assert doctored.found() == {"overlap", "owner changed"}


def test_what_a_lost_connection_took_back_may_come_again(doctored: Doctored) -> None:
    """`a` had 3 in hand when its connection was lost, and was told so only after `b` had begun it."""
    doctored.write(doctored.a, ONE, TWO, handled(3, 3.0, 3, end=False), "over 9.0 aaaa taken\n")
    doctored.write(doctored.b, handled(3, 3.6, 1, epoch=2, attempt=2))
    doctored.a.proxy.connections = [Connection(0.0, 3.2), Connection(5.0)]
    assert not doctored.found()


def test_it_may_not_while_the_connection_is_up(doctored: Doctored) -> None:
    doctored.write(doctored.a, ONE, TWO, handled(3, 3.0, 3, end=False), "over 9.0 aaaa taken\n")
    doctored.write(doctored.b, handled(3, 3.6, 1, epoch=2, attempt=2))
    assert doctored.found() == {"doubled", "overlap", "owner changed", "taken back"}


def test_an_incarnation_that_came_back_is_not_over(doctored: Doctored) -> None:
    """The last connection over which it was welcomed counts."""
    doctored.write(doctored.a, ONE, "welcomed 5.5 aaaa 2\n", "over 9.0 aaaa taken\n")
    record = LifeRecord(doctored.folder / "a.record", by_incarnation=True)
    (incarnation,) = record.incarnations.values()
    doctored.a.proxy.connections = [Connection(0.0, 3.2), Connection(5.0, 7.0)]
    assert void_at(incarnation, doctored.a) == 7.0
    assert not _wrong_end(incarnation, doctored.a)


def test_what_was_ended_between_two_connections_may_have_been_settled(doctored: Doctored) -> None:
    """RabbitMQ was back for a moment: the settle was confirmed, a welcome did not come."""
    over = "over 9.0 aaaa taken\n"
    doctored.write(doctored.a, ONE, TWO, handled(3, 3.0, 3).partition("confirmed")[0], over)
    doctored.a.proxy.connections = [Connection(0.0, 2.9), Connection(4.0, 4.1)]
    assert not doctored.found()
    doctored.a.proxy.connections = [Connection(0.0, 2.9)]
    assert doctored.found() == {"lost"}


def test_what_redis_forgot_for_good_may_come_again(doctored: Doctored) -> None:
    """Redis was emptied, and the next thing that happened is that another dispatcher led."""
    again = handled(3, 5.0, 1, epoch=2).replace("aaaa", "bbbb")
    doctored.write(doctored.a, ONE, TWO, THREE, "over 4.6 aaaa taken\n", "welcomed 4.7 bbbb 1\n", again)
    doctored.a.proxy.connections = [Connection(0.0, 4.0), Connection(4.5)]
    assert doctored.found() == {"doubled"}
    doctored.stage.redis_outages.append(Outage(3.5, 4.0, killed=True, back_to=3.5))
    doctored.led_at(4.4)
    assert not doctored.found()
    doctored.led_at(4.4, restored_at=4.1)
    assert doctored.found() == {"doubled"}


def test_what_was_being_parked_when_redis_forgot_may_come_twice(doctored: Doctored) -> None:
    """The original, which nobody knows any more, and its copy in the parking queue."""
    doctored.write(doctored.a, *(handled(n, 4.5 + n, n) for n in (1, 2, 3)), handled(2, 9.0, 4))
    assert doctored.found() == {"doubled", "out of order"}
    doctored.stage.redis_outages.append(Outage(3.5, 4.0, killed=True, back_to=3.5))
    doctored.led_at(4.4)
    assert not doctored.found()
    doctored.led_at(4.4, restored_at=4.1)
    assert doctored.found() == {"doubled", "out of order"}


def test_what_a_consumer_had_that_died_before_redis_forgot_may_come_behind(doctored: Doctored) -> None:
    """Only Redis knew that 2, which `a` had in hand, precedes 3, which was parked."""
    doctored.write(doctored.a, ONE)
    doctored.write(doctored.b, handled(3, 5.0, 1, epoch=2), handled(2, 6.0, 2, epoch=2, attempt=2))
    doctored.a.killed_at = 3.0
    assert doctored.found() == {"out of order"}
    doctored.stage.redis_outages.append(Outage(9.0, 9.5, killed=True, back_to=9.0))
    doctored.led_at(10.0)
    assert doctored.found() == {"out of order"}, "it was begun before"
    doctored.stage.redis_outages = [Outage(3.5, 4.0, killed=True, back_to=3.5)]
    doctored.led_at(4.4)
    assert not doctored.found()
    doctored.led_at(4.4, restored_at=4.1)
    assert doctored.found() == {"out of order"}, "a leader knew it all the time"
    doctored.led_at(4.4)
    doctored.a.killed_at = 4.5
    assert "out of order" in doctored.found(), "no consumer had died by then"


def test_what_a_consumer_had_that_could_not_say_so_may_come_behind(doctored: Doctored) -> None:
    """`a` stood still with 2 in hand while the next leader asked, and lost its connection. 3 was parked."""
    doctored.write(doctored.a, ONE)
    doctored.write(doctored.b, handled(3, 15.0, 1, epoch=2), handled(2, 26.0, 2, epoch=2, attempt=2))
    doctored.a.killed_at = 25.0
    doctored.stage.redis_outages = [Outage(3.5, 4.0, killed=True, back_to=3.5)]
    doctored.led_at(4.4)
    assert doctored.found() == {"out of order"}
    doctored.a.silent = [(0.5, 4.3)]
    assert doctored.found() == {"out of order"}, "it could answer when it was asked"
    doctored.a.silent = [(0.5, 24.0)]
    assert not doctored.found()
    doctored.a.silent = [(10.0, 24.0)]
    assert doctored.found() == {"out of order"}, "it had been asked before"


def test_more_than_a_consumer_had_may_not_come_behind(doctored: Doctored) -> None:
    late = [handled(number, 100.0 + number, number, epoch=2) for number in range(2, 60)]
    doctored.published(*range(1, 61))
    doctored.write(doctored.a, ONE)
    doctored.write(doctored.b, handled(60, 5.0, 1, epoch=2), *late)
    doctored.a.killed_at = 3.0
    doctored.stage.redis_outages.append(Outage(3.5, 4.0, killed=True, back_to=3.5))
    doctored.led_at(4.4)
    assert doctored.found() == {"out of order"}


def test_who_left_unwelcomed_may_have_been_taken_back(doctored: Doctored) -> None:
    """`a` was frozen with 3 on its way to it, and woke up when it had long lost its connection: it began 3,
    settled it over another one and left, and no dispatcher was there to tell it."""
    doctored.write(doctored.b, handled(3, 4.0, 1, epoch=2, attempt=2))
    doctored.write(doctored.a, ONE, TWO, handled(3, 5.0, 3).partition("confirmed")[0], "over 7.0 aaaa left\n")
    doctored.a.proxy.connections = [Connection(0.0, 7.0)]
    assert "doubled" in doctored.found()
    doctored.a.proxy.connections = [Connection(0.0, 3.2), Connection(6.0, 7.0)]
    assert not doctored.found()
    doctored.a.proxy.connections = [Connection(0.0, 3.2)]  # it had everything confirmed over that one
    assert "doubled" in doctored.found()
    doctored.write(doctored.b)
    doctored.a.proxy.connections = [Connection(0.0, 3.2), Connection(6.0, 7.0)]
    assert not doctored.found()  # nobody had taken it back


def test_what_an_evicted_consumer_had_may_come_again(doctored: Doctored) -> None:
    """C-9: its connection is up, and it hears only later that it is over."""
    late = handled(3, 3.0, 3)  # settled after the eviction
    doctored.write(doctored.a, ONE, TWO, late, "over 9.0 aaaa taken\n")
    doctored.write(doctored.b, handled(3, 3.3, 1, epoch=2, attempt=2))
    assert doctored.found() == {"doubled", "overlap", "owner changed", "taken back"}
    doctored.stage.evictions = [Eviction(3.2, math.inf, "a", "aaaa")]
    assert not doctored.found()
    doctored.stage.evictions = [Eviction(3.2, 90.0, "a", None)]
    assert not doctored.found()
    doctored.stage.evictions = [Eviction(3.2, math.inf, "a", "bbbb")]
    assert "taken back" in doctored.found()


def test_what_an_evicted_consumer_had_settled_before_may_not_come_again(doctored: Doctored) -> None:
    doctored.stage.evictions = [Eviction(3.9, math.inf, "a", "aaaa")]
    doctored.write(doctored.a, ONE, TWO, THREE, "over 9.0 aaaa taken\n")
    doctored.write(doctored.b, handled(3, 4.0, 1, epoch=2, attempt=2))
    assert doctored.found() == {"doubled"}


def test_a_group_that_was_empty_may_change_its_owner(doctored: Doctored) -> None:
    """The third message was published after the second was done, as the producer's record says."""
    doctored.write(doctored.a, ONE, TWO)
    doctored.write(doctored.b, handled(3, 4.0, 1, epoch=2))
    confirmed = [
        f"confirmed {at} {' '.join(map(str, numbered(n)))}\n" for n, at in [(1, 0.5), (2, 1.5), (3, 3.5)]
    ]
    (doctored.folder / "p0-1.produced").write_text("".join(confirmed))
    assert doctored.found() == {"owner changed"}
    doctored.configure(group_idle_timeout="1s")
    assert not doctored.found()
    doctored.configure(group_idle_timeout="2s")
    assert doctored.found() == {"owner changed"}
    doctored.configure(group_map={"lru": 1})
    assert not doctored.found()


def test_a_group_may_seem_empty_while_its_queue_is_longer_than_the_look_ahead(doctored: Doctored) -> None:
    """All three were published at once; a dispatcher that may hold two of them may not know of the third."""
    doctored.write(doctored.a, ONE, TWO)
    doctored.write(doctored.b, handled(3, 4.0, 1, epoch=2))
    doctored.configure(group_idle_timeout="1s", steal_after=None, look_ahead=3)
    assert doctored.found() == {"owner changed"}
    doctored.configure(group_idle_timeout="1s", steal_after=None, look_ahead=2)
    assert not doctored.found()
    doctored.configure(group_idle_timeout="2s", steal_after=None, look_ahead=2)
    assert doctored.found() == {"owner changed"}


def test_poison_needs_its_attempts(doctored: Doctored) -> None:
    """M-2: 3 was begun by nobody to its end, and is in the dead queue."""

    def dead(reason: str, attempt: int) -> Fetched:
        headers = text("x-dispatch-reason", reason), field("x-dispatch-attempt", "I", attempt.to_bytes(4))
        return Fetched(1, False, b"", b"", 0, properties(*headers), numbered(3).body())

    assert poison([dead("poison", 3)], 3) == {numbered(3)}
    assert not poison([dead("poison", 2), dead("expired", 3)], 3)
    doctored.write(doctored.a, ONE, TWO, handled(3, 3.0, 3, end=False))
    doctored.a.killed_at = 3.1
    assert doctored.found() == {"lost"}
    assert not doctored.found(Found(poison=frozenset([numbered(3)])))


def test_groups_of_one_bucket_have_one_owner(doctored: Doctored) -> None:
    other = handled(3, 3.0, 1, epoch=2).replace(f"{QUEUE} g ", f"{QUEUE} h ")
    doctored.write(doctored.a, ONE, TWO)
    doctored.write(doctored.b, other)
    record = doctored.folder / "p0-1.produced"
    record.write_text(record.read_text().replace("g 0 3", "h 0 3"))
    assert not doctored.found()
    doctored.configure(group_map={"buckets": 1})
    assert doctored.found() == {"owner changed"}


def test_the_seed_decides_the_plan() -> None:
    assert Plan(7, 60.0).faults == Plan(7, 60.0).faults
    assert Plan(7, 60.0).faults != Plan(8, 60.0).faults
    assert all(fault.at_s + fault.length_s <= 60.0 for fault in Plan(7, 60.0).faults)
