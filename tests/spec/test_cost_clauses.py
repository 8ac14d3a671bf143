"""docs/semantics.md, F-1, F-5, F-6 and O-2: shares of cost, and placement by measured work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count

import pytest

from dispatcher.core.optional.measured_cost import MeasuredWork
from dispatcher.core.options import Cost, KnownWork
from tests.spec.lane_bench import LaneBench, clause

QUANTA = tuple(range(4, 41, 4))  # of the article: ten queues, sum 220


def work_of(bench: LaneBench) -> MeasuredWork:
    work = bench.lane.state.find(MeasuredWork)
    assert work is not None
    return work


class Market:
    """A lane whose inbound queues never run empty, and a consumer that settles at once."""

    def __init__(self, weights: tuple[int, ...], cost: Callable[[int], int] = lambda inbound: 1) -> None:
        self.bench = LaneBench(weights=weights, cost=Cost.SAID, look_ahead_bytes=1 << 40)
        self._cost = cost
        self._names: Iterator[int] = count()
        self.served: Counter[int] = Counter()
        self._fill()
        self.bench.join("one", prefetch=200)

    def serve(self, messages: int) -> None:
        """Until about so many went out."""
        while self.served.total() < messages:
            self._settle()
            self._fill()

    def _fill(self) -> None:
        """All queues have more than can go at once; whoever has free capacity gets it from all of them."""
        for inbound in self.bench.lane.state.inbounds:
            if inbound.waiting < 500:
                groups = (f"g{chr(97 + next(self._names) % 26)}{n}" for n in range(500))
                self.bench.arrive(*groups, inbound=inbound.index, cost=self._cost(inbound.index))

    def _settle(self) -> None:
        bench = self.bench
        self.served.update(copy.message.inbound for copy in bench.sent)
        bench.sent.clear()
        bench.settle_seqs("one", *bench.lane.state.by_id["one"].in_flight)


def test_f1_ten_full_queues_share_exactly_by_weight() -> None:
    """D11. The article measured errors of up to 2.87 % with the same quanta."""
    clause(
        "F-1", "Ten queues of weights 4 to 40 that never run empty share exactly by weight, round by round"
    )
    market = Market(QUANTA)
    market.serve(220 * 100)
    total = market.served.total()
    for inbound, quantum in enumerate(QUANTA):
        share = market.served[inbound] / total
        assert share == pytest.approx(quantum / 220, rel=0.005), f"weight {quantum}"
    # All of it is whole rounds but the one that is under way.
    rounds = [market.served[inbound] / quantum for inbound, quantum in enumerate(QUANTA)]
    assert max(rounds) - min(rounds) <= 1


@pytest.mark.parametrize("costs", [(10, 1), (1_000_000, 100_000)], ids=str)
def test_f5_shares_are_of_cost(costs: tuple[int, int]) -> None:
    clause("F-5", "A queue whose messages cost ten times as much gets a tenth of the messages")
    market = Market((1, 1), cost=lambda inbound: costs[inbound])
    market.serve(11_000)
    assert market.served[1] / market.served[0] == pytest.approx(10, rel=0.01)
    rows = market.bench.status()["inbound"]
    assert [row["share"] for row in rows] == pytest.approx([0.5, 0.5], abs=0.01)


def test_f5_weights_and_costs_go_together() -> None:
    market = Market((3, 1), cost=lambda inbound: (2, 5)[inbound])
    market.serve(17_000)
    assert market.served[0] * 2 / (market.served[1] * 5) == pytest.approx(3, rel=0.01)


Kind = tuple[int, bytes | None]


class Shop:
    """A lane that measures, over two inbound queues, and a consumer that works on one message at a time."""

    def __init__(self, *known: KnownWork) -> None:
        self.bench = LaneBench(weights=(1, 1), cost=Cost.MEASURED, heartbeat_ms=3_600_000, known_work=known)
        self._names = count(1)

    def open(self, messages: int, kinds: tuple[bytes, ...] = (b"",)) -> None:
        """So many of each type in each queue, in turn, each of its own group; then the consumer comes."""
        for number in range(messages):
            for inbound in self.bench.lane.state.inbounds:
                for kind in kinds:
                    self.bench.arrive(f"g{next(self._names)}x{number}", inbound=inbound.index, kind=kind)
        self.bench.join("one", prefetch=2)

    def work(self, steps: int, ms_of: Callable[[Kind], int]) -> Counter[Kind]:
        """What it got; it has two in hand and works on the first."""
        got: Counter[Kind] = Counter()
        for _ in range(steps):
            seq, message = next(iter(self.bench.lane.state.by_id["one"].in_flight.items()))
            kind = (message.inbound, message.kind)
            got[kind] += 1
            self.bench.settle_seqs("one", seq, after_ms=ms_of(kind))
        return got


def test_f6_a_queue_whose_messages_take_longer_gets_fewer() -> None:
    clause(
        "F-6",
        "a message costs the time that messages of its queue and `type` took so far. "
        "That is a moving average",
    )
    shop = Shop()
    shop.open(1_100)
    took: dict[Kind, int] = {(0, b""): 50, (1, b""): 5}
    shop.work(50, lambda kind: took[kind])
    got = shop.work(1_100, lambda kind: took[kind])
    assert got[1, b""] / got[0, b""] == pytest.approx(10, rel=0.1)


def test_f6_types_of_one_queue_have_costs_of_their_own() -> None:
    shop = Shop()
    shop.open(200, kinds=(b"slow", b"quick"))
    shop.work(200, lambda kind: {b"slow": 80, b"quick": 4}[kind[1] or b""])
    costs = work_of(shop.bench).kinds_ms
    assert [costs[0, b"slow"], costs[0, b"quick"]] == pytest.approx([80, 4], rel=0.1)


def test_f6_with_a_file_it_begins_with_what_is_known() -> None:
    clause("F-6c", "With a file the measurement begins with the means")
    shop = Shop(KnownWork(0, b"", 50.0, 700), KnownWork(1, b"", 5.0, 300))
    shop.open(110)
    got = shop.work(110, lambda kind: {0: 50, 1: 5}[kind[0]])
    assert got[1, b""] / got[0, b""] == pytest.approx(10, rel=0.05), "from the first message on"


def test_f6_what_is_known_is_only_the_beginning() -> None:
    shop = Shop(KnownWork(0, b"", 5.0, 1_000_000), KnownWork(1, b"", 50.0, 1_000_000))
    shop.open(300)
    shop.work(100, lambda kind: {0: 50, 1: 5}[kind[0]])
    costs = work_of(shop.bench).kinds_ms
    assert [costs[0, b""], costs[1, b""]] == pytest.approx([50, 5], rel=0.1)


def test_f6_what_is_not_known_costs_what_all_do_on_average() -> None:
    bench = LaneBench(
        cost=Cost.MEASURED, known_work=(KnownWork(0, b"a", 8.0, 100), KnownWork(0, b"b", 2.0, 300))
    )
    bench.join("one")
    bench.arrive("g1", kind=b"other")
    assert work_of(bench).cost_us(bench.latest("g1").message) == 3_500


def test_f6_types_that_are_settled_together_are_told_apart() -> None:
    """Consumers coalesce settles: a plain average would find all types alike."""
    clause("F-6a", "divided among their types in proportion to the expected times")
    bench = LaneBench(cost=Cost.MEASURED, heartbeat_ms=3_600_000)
    bench.join("one", prefetch=100)
    number = count()
    for round_ in range(400):
        mix = {b"slow": 1 + round_ % 3, b"quick": 9 - round_ % 5}
        for kind, messages in mix.items():
            bench.arrive(*(f"g{next(number) % 7}x{n}" for n in range(messages)), kind=kind)
        busy_ms = 20 * mix[b"slow"] + 2 * mix[b"quick"]
        bench.settle_seqs("one", *bench.lane.state.by_id["one"].in_flight, after_ms=busy_ms)
    costs = {}
    for kind in (b"slow", b"quick"):
        bench.arrive("probe1", kind=kind)
        costs[kind] = work_of(bench).cost_us(bench.sent[-1].message)
    assert costs[b"slow"] == pytest.approx(20_000, rel=0.25)
    assert costs[b"quick"] == pytest.approx(2_000, rel=0.4)


def test_f6_waiting_for_a_turn_is_not_work() -> None:
    clause("F-6", "from the hand-over, or from the consumer's previous settle if that is later")
    bench = LaneBench(cost=Cost.MEASURED, heartbeat_ms=3_600_000)
    bench.join("one", prefetch=10)
    bench.arrive(*(f"{group}1" for group in "abcdefghij"))
    bench.step(after_ms=4)
    for group in "abcdefghij":
        bench.settle_seqs("one", bench.latest(f"{group}1").seq, after_ms=5)
    cost_us = work_of(bench).cost_us(bench.sent[0].message)
    assert cost_us == pytest.approx(5_000, rel=0.3), "not 50 ms for the last one"


def test_f6_an_hour_in_the_debugger_counts_for_little() -> None:
    bench = LaneBench(cost=Cost.MEASURED, heartbeat_ms=1 << 40)
    bench.join("one")
    for number, busy_ms in enumerate((10, 10, 3_600_000, 10, 10, 10, 10)):
        bench.arrive(f"a{number}")
        bench.settle_seqs("one", bench.latest(f"a{number}").seq, after_ms=busy_ms)
    assert work_of(bench).cost_us(bench.sent[0].message) < 25_000


def test_f6_a_type_that_was_mistaken_for_an_expensive_one_can_show_that_it_is_not() -> None:
    clause("F-6b", "at most 100 times the average")
    bench = LaneBench(cost=Cost.MEASURED, heartbeat_ms=1 << 40)
    bench.join("one")
    for number in range(100):
        bench.arrive(f"a{number}", kind=b"usual" if number else b"first")
        bench.settle_seqs("one", bench.latest(f"a{number}").seq, after_ms=10 if number else 3_600_000)
    assert work_of(bench).cost_us(bench.sent[0].message) == pytest.approx(100 * 10_000, rel=0.1)


def test_f6_unmeasured_types_cost_the_average() -> None:
    bench = LaneBench(cost=Cost.MEASURED, heartbeat_ms=3_600_000)
    bench.join("one")
    bench.arrive("a1", kind=b"known")
    work = work_of(bench)
    assert work.cost_us(bench.sent[0].message) == 1_000, "before anything is known all are alike"
    bench.settle_seqs("one", bench.latest("a1").seq, after_ms=30)
    bench.arrive("b1", kind=b"new")
    assert work.cost_us(bench.sent[-1].message) == 30_000


def test_f6_invented_types_are_bounded() -> None:
    bench = LaneBench(cost=Cost.MEASURED, heartbeat_ms=3_600_000)
    bench.join("one")
    for number in range(1_100):
        bench.arrive("a1", kind=b"%d" % number)
        bench.settle_seqs("one", *bench.lane.state.by_id["one"].in_flight, after_ms=1)
    assert len(work_of(bench).kinds_ms) <= 1_001


def test_o2_a_slow_consumer_gets_fewer_new_groups() -> None:
    clause("O-2", "With `placement: measured` the consumer with the least work comes first")
    bench = LaneBench(placement_is_measured=True, heartbeat_ms=3_600_000)
    for name in ("slow", "quick"):
        bench.join(name, prefetch=500)
    took = {"slow": 40, "quick": 4}
    for round_ in range(40):
        for group in "ab":
            name = f"{group}{round_}"
            bench.arrive(name)
            bench.settle_seqs(bench.holder(name), bench.latest(name).seq, after_ms=took[bench.holder(name)])
    bench.arrive(*(f"new{chr(97 + n % 26)}{'x' * (n // 26)}1" for n in range(220)))
    owners = Counter(g.owner.id for g in bench.lane.state.groups.values() if g.owner is not None)
    assert owners["quick"] / owners["slow"] == pytest.approx(10, rel=0.25)


def test_o2_consumers_that_nobody_has_measured_are_alike() -> None:
    bench = LaneBench(placement_is_measured=True, heartbeat_ms=3_600_000)
    bench.join("one")
    bench.join("two")
    bench.arrive("a1", "b1", "c1", "d1")
    assert Counter(bench.holder(f"{group}1") for group in "abcd") == {"one": 2, "two": 2}


def test_o2_a_concurrent_lane_places_messages_by_work() -> None:
    bench = LaneBench("concurrent", placement_is_measured=True)
    for name in ("slow", "quick"):
        bench.join(name, prefetch=1)
    took = {"slow": 40, "quick": 4}
    for n in range(20):
        bench.arrive(f"-{n}")
        holder = bench.holder(f"-{n}")
        bench.settle_seqs(holder, bench.latest(f"-{n}").seq, after_ms=took[holder])
    late = [bench.holder(f"-{n}") for n in range(5, 20)]
    assert late.count("quick") > late.count("slow")
