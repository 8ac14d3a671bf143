"""The run itself: publish everything, let consumers apply it, and remove the queues used for it."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import redis

from dispatcher.demo import queues
from dispatcher.demo.checker import CheckResult, check, shares
from dispatcher.demo.consumer import CONCURRENCY, ConsumerOptions
from dispatcher.demo.consumer_process import ConsumerProcess
from dispatcher.demo.dispatcher_process import DispatcherProcess
from dispatcher.demo.patience import POLL_S, STUCK_S, wait_while_it_goes_on
from dispatcher.demo.producer import publish
from dispatcher.demo.screen import Screen
from dispatcher.demo.table import Table
from dispatcher.demo.workload import Workload, inbound_index
from dispatcher.errors import DispatcherError, StoreUnavailable
from dispatcher.judge.record import HandlingRecord
from dispatcher.nodes import Servers
from dispatcher.wire.protocol import LaneNames

LANE: Final = "changes"
CONSUMERS: Final = 4
#: Name and weight of the inbound queues.
INBOUND: Final = (("high", 3), ("low", 1))
#: When what happens, as a part of all messages.
ADD_CONSUMER_AT: Final = 0.4
KILL_CONSUMER_AT: Final = 0.5
KILL_DISPATCHER_AT: Final = 0.6
#: The time to handle a message is set such that the whole run, and the longest group, takes about this long:
#: time to see what happens. A real consumer has something to do, too.
WORK_S: Final = 5.0
WORK_MS_MAX: Final = 500.0
#: What is on its way from RabbitMQ to the dispatcher is in no count, but in one of the next.
EMPTY_LOOKS: Final = 3
EMPTY_LOOK_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class ConsumerRow:
    """What one consumer did."""

    name: str
    kind: str
    fate: str
    messages: int


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """Everything that the report needs."""

    checked: CheckResult
    seconds: float
    consumers: list[ConsumerRow]
    shares: list[float] | None  # per inbound queue, while there was a choice
    handed_over_s: float | None  # from the consumer's kill until another began with something of its
    left: dict[str, int]  # messages that are still in queues that must be empty
    work_ms: float  # what handling a message was made to take
    problems: list[str]

    @property
    def holds(self) -> bool:
        """Whether everything is as promised."""
        return self.checked.holds and not any(self.left.values()) and not self.problems


def work_ms(workload: Workload) -> float:
    """How long handling a message should take."""
    longest = max(Counter(change.group for change in workload.changes).values())
    handlers = CONSUMERS * CONCURRENCY
    return min(WORK_MS_MAX, WORK_S * 1_000 * handlers / len(workload.changes), WORK_S * 1_000 / longest)


class ReplayRun:
    """One run over one workload. `run` once, inside a `with` block, which takes everything down but the
    ledger that the dispatcher has written to `ledger`."""

    def __init__(
        self, workload: Workload, servers: Servers, screen: Screen, ledger: Path | None = None
    ) -> None:
        self._workload = workload
        self._servers = servers
        self._screen = screen
        self._ledger = ledger
        self._total = len(workload.changes)
        self.work_ms = work_ms(workload)
        run = uuid.uuid4().hex[:8]
        self._prefix = f"demo-{run}"
        self._names = LaneNames(LANE, self._prefix)
        self._inbound = [f"changes-{run}.{name}" for name, _ in INBOUND]
        self._inbound_of = [inbound_index(change.group, len(INBOUND)) for change in workload.changes]
        self._victim: ConsumerProcess | None = None
        self._done: set[int] = set()
        self._running = ExitStack()
        self._restarted_at: float | None = None  # while the dispatcher is on its way back
        self._handled_at = time.monotonic()  # the last one, as far as that was seen
        #: Messages in the queues, and those that the dispatcher has.
        self._unfinished: tuple[int, int | None] = (0, None)
        self._empty_looks = 0
        self._problems: list[str] = []
        self._incidents: list[tuple[float, Callable[[], bool]]] = [
            (ADD_CONSUMER_AT, self._add_consumer),
            (KILL_CONSUMER_AT, self._kill_consumer),
            (KILL_DISPATCHER_AT, self._kill_dispatcher),
        ]

    # --- before and after -----------------------------------------------------------------------------

    def __enter__(self) -> ReplayRun:
        try:
            self._open()
        except BaseException:
            self._running.close()
            raise
        return self

    def _open(self) -> None:
        """Raises BrokerUnavailable or StoreUnavailable when a server does not answer."""
        queues.counts(self._servers.amqp_url, [])
        self._redis = self._running.enter_context(redis.Redis.from_url(self._servers.redis_url))
        try:
            self._redis.ping()
        except redis.RedisError as error:
            raise StoreUnavailable(f"Redis does not answer: {error}") from error
        self._table = Table(self._redis, self._prefix)
        self._running.callback(self._remove_keys)
        self._running.callback(self._remove_queues)
        self._dispatcher = self._running.enter_context(DispatcherProcess(self._configuration()))
        self._consumers = [self._consumer(number) for number in range(1, CONSUMERS + 2)]
        self._running.callback(self._close_consumers)
        self._added = self._consumers[-1]

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def _close_consumers(self) -> None:
        with ThreadPoolExecutor(len(self._consumers)) as pool:
            list(pool.map(ConsumerProcess.close, self._consumers))

    def _remove_queues(self) -> None:
        with suppress(DispatcherError):  # the broker is gone, and they with it
            queues.remove(self._servers.amqp_url, self._names, self._inbound)

    def _remove_keys(self) -> None:
        with suppress(redis.RedisError):
            for key in self._redis.scan_iter(match=f"*{self._prefix}*", count=1_000):
                self._redis.delete(key)

    def _configuration(self) -> dict[str, Any]:
        inbound = [
            {"queue": queue, "weight": weight, "declare": True}
            for queue, (_, weight) in zip(self._inbound, INBOUND, strict=True)
        ]
        ledger = {"ledger": {"path": str(self._ledger)}} if self._ledger is not None else {}
        return {
            **ledger,
            "rabbitmq": {"url": self._servers.amqp_url},
            "redis": {"url": self._servers.redis_url},
            "prefix": self._prefix,
            "lanes": {LANE: {"policy": "exclusive", "inbound": inbound}},
        }

    # --- the run --------------------------------------------------------------------------------------

    def run(self) -> ReplayResult:
        """Raises DispatcherError when something can't be started."""
        for consumer in self._consumers:
            consumer.start()
        self._dispatcher.start()
        self._publish()
        self._open_gate()
        begun_at = time.monotonic()
        self._watch()
        self._stop()
        return self._result(self._handled_at - begun_at)

    def _publish(self) -> None:
        messages = zip(self._inbound_of, self._workload.changes, strict=True)
        show = partial(self._screen.show, "published", total=self._total)
        publish(self._servers.amqp_url, self._inbound, messages, show)
        show(self._total)

    def _consumer(self, number: int) -> ConsumerProcess:
        options = ConsumerOptions(
            name=f"consumer-{number}", blocking=number % 2 == 0, amqp_url=self._servers.amqp_url,
            redis_url=self._servers.redis_url, lane=LANE, prefix=self._prefix, records="",
            gate="", work_ms=self.work_ms,
        )  # fmt: skip
        return ConsumerProcess(options)

    def _open_gate(self) -> None:
        """Let the first consumers join at once, when all are there."""
        while not all(consumer.is_ready for consumer in self._consumers):
            self._look_for_deaths()
            self._read()
            time.sleep(POLL_S)
        for consumer in self._consumers:
            if consumer is not self._added:
                consumer.let_join()

    def _watch(self) -> None:
        """Until everything is handled, all incidents have happened and a dispatcher leads, or nothing goes on
        any more."""
        if not wait_while_it_goes_on(self._is_over, self._signs):
            done = len(self._done)
            self._problems.append(
                f"nothing has happened for {STUCK_S:.0f} s, and {done:,} of {self._total:,} are handled"
            )
            self._problems.append(f"the dispatcher said last: {self._dispatcher.last_words()}")

    def _is_over(self) -> bool:
        self._look_for_deaths()
        before = len(self._done)
        self._read()
        if len(self._done) > before:
            self._handled_at = time.monotonic()
        self._act()
        return len(self._done) == self._total and not self._incidents and self._restarted_at is None

    def _signs(self) -> object:
        begun = sum(len(consumer.handlings) for consumer in self._consumers)
        joined = sum(consumer.has_joined for consumer in self._consumers)
        starting = self._dispatcher.signs() if self._restarted_at is not None else None
        return begun, len(self._done), joined, len(self._incidents), starting

    def _read(self) -> None:
        for consumer in self._consumers:
            self._done.update(handling.message.number for handling in consumer.read())
            self._screen.show_detail(f"{consumer.name} ({consumer.kind})", consumer.done_count, self._total)
        self._screen.show("handled", len(self._done), self._total)

    def _look_for_deaths(self) -> None:
        for consumer in self._consumers:
            if words := consumer.last_words():
                raise DispatcherError(words)

    def _stop(self) -> None:
        """Let all consumers finish: messages settled now must have left the inbound queues when all are
        gone."""
        if self._problems:  # there is nothing to wait for
            return
        with ThreadPoolExecutor(len(self._consumers)) as pool:
            list(pool.map(ConsumerProcess.stop, self._consumers))
        self._read()
        wait_while_it_goes_on(self._is_empty, lambda: self._unfinished)
        self._dispatcher.stop()

    def _is_empty(self) -> bool:
        """Whether the dispatcher has acked everything, as several looks after each other show."""
        ready = queues.counts(self._servers.amqp_url, self._inbound).values()
        self._unfinished = sum(ready), self._dispatcher.unfinished()
        self._empty_looks = self._empty_looks + 1 if self._unfinished == (0, 0) else 0
        time.sleep(EMPTY_LOOK_S)
        return self._empty_looks == EMPTY_LOOKS

    # --- incidents ------------------------------------------------------------------------------------

    def _act(self) -> None:
        """Carry out the incident that is due; the next one waits for the one before it."""
        if self._restarted_at is not None and self._dispatcher.leads():
            after_s = time.monotonic() - self._restarted_at
            self._screen.say(f"The dispatcher leads again, {after_s:.1f} s after it was killed.")
            self._restarted_at = None
        if self._incidents and len(self._done) >= int(self._incidents[0][0] * self._total):
            happened = self._incidents[0][1]()
            if happened:
                self._incidents.pop(0)

    def _add_consumer(self) -> bool:
        self._added.let_join()
        if self._added.has_joined:
            self._screen.say(f"{self._added.name} has joined.")
        return self._added.has_joined

    def _kill_consumer(self) -> bool:
        """The busiest: it has the most in hand."""
        victim = max(self._consumers[:CONSUMERS], key=lambda each: (each.in_hand, each.recent_count))
        victim.kill9()
        self._victim = victim
        self._screen.say(f"{victim.name} was killed (kill -9).")
        return True

    def _kill_dispatcher(self) -> bool:
        self._dispatcher.kill9()
        self._restarted_at = time.monotonic()
        self._screen.say("The dispatcher was killed (kill -9) and is started again.")
        self._dispatcher.launch()
        return True

    # --- the outcome ----------------------------------------------------------------------------------

    def _result(self, seconds: float) -> ReplayResult:
        handlings: list[HandlingRecord] = []
        for consumer in self._consumers:
            handlings += consumer.handlings
        killed = {}
        handed_over_s = None
        undisturbed = handlings
        if self._victim is not None and (killed_at := self._victim.killed_at) is not None:
            killed[self._victim.name] = killed_at
            again_at = [h.start for h in handlings if h.attempt > 1 and h.start > killed_at]
            undisturbed = [h for h in handlings if h.start <= killed_at]
            handed_over_s = min(again_at) - killed_at if again_at else None
        checked = check(self._workload.changes, handlings, killed, self._rows(), self._workload.expected)
        if self._incidents:
            self._problems.append("it ended before all planned incidents had happened")
        return ReplayResult(
            checked=checked, seconds=seconds,
            consumers=[self._row(consumer) for consumer in self._consumers],
            shares=shares(undisturbed, self._inbound_of, len(INBOUND)), handed_over_s=handed_over_s,
            left=queues.counts(self._servers.amqp_url, [*self._inbound, self._names.dead]),
            work_ms=self.work_ms, problems=self._problems,
        )  # fmt: skip

    def _rows(self) -> dict[bytes, bytes]:
        try:
            return self._table.rows()
        except redis.RedisError as error:
            raise StoreUnavailable(f"Redis does not answer: {error}") from error

    def _row(self, consumer: ConsumerProcess) -> ConsumerRow:
        fate = "killed half-way" if consumer is self._victim else ""
        if consumer is self._added:
            fate = "added half-way"
        return ConsumerRow(consumer.name, consumer.kind, fate, consumer.done_count)
