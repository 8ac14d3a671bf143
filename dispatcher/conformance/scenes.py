"""What happens to the programs under test, and what must come of it.

A scene raises SceneFailed, or adds to the stage's problems. What the record as a whole says (loss, order,
overlap) is judged at the end of all.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from dispatcher.conformance.program import Call, Program
from dispatcher.conformance.stage import (
    ATTEMPTS,
    BACKOFF_S,
    CONCURRENCY,
    CONSUMERS,
    HEARTBEAT_S,
    PREFETCH,
    RECONNECT_GRACE_S,
    SceneFailed,
    Stage,
    reason_of,
)
from dispatcher.judge.record import UNGROUPED, MessageKey

Scene = Callable[[Stage], Awaitable[None]]
GROUPS: Final = tuple(f"g{number}" for number in range(30))
#: Three missing ones, and a consumer gets no new groups.
MISSING_HEARTBEATS: Final = 3
LEAVE_S: Final = 15.0
#: Of new groups, until a consumer has its hands full.
ROUNDS_MAX: Final = 30


async def joins_and_works(stage: Stage) -> None:
    """joins, works, settles, and sends heartbeats"""
    for consumer in CONSUMERS:
        await stage.start(consumer)
    for consumer in CONSUMERS:
        await stage.joined(consumer)
    await stage.publish([*GROUPS, UNGROUPED], 20)
    await stage.all_ended()


async def groups_in_parallel(stage: Stage) -> None:
    """works on groups in parallel, and never on more than it may"""
    stage.holds = lambda *_: True
    await stage.publish(GROUPS, 3)
    await stage.until(
        lambda: all(len(p.open) == CONCURRENCY for p in stage.programs.values()),
        lambda: f"{CONCURRENCY} calls at a time at each consumer: {open_calls(stage)}",
    )
    for program in stage.programs.values():
        groups = [call.message.group for call in program.open.values()]
        if len(set(groups)) != len(groups):
            stage.problems.append(f"{program.consumer} works on two messages of one group: {groups}")
    stage.release()
    await stage.all_ended()


async def retries_in_place(stage: Stage) -> None:
    """calls again what failed, after the lane's pauses, and gives it up in time"""
    mends = await stage.publish(["mends"], 1, ["raise", "ack"])
    fails = await stage.publish(["fails"], 1, ["raise"] * ATTEMPTS)
    rejected = await stage.publish(["rejected"], 1, ["reject"])
    await stage.publish(["mends", "fails", "rejected"], 3)
    await stage.all_ended()
    for (key,), calls in ((mends, 2), (fails, ATTEMPTS), (rejected, 1)):
        check_calls(stage, key, calls)
    wanted = {fails[0]: ATTEMPTS, rejected[0]: 1}

    async def dead() -> bool:
        return {key for key, _ in await stage.dead()} >= wanted.keys()

    await stage.until_async(dead, "what was given up in the dead queue")
    for key, headers in await stage.dead():
        found = headers.get("x-dispatch-calls")
        if found != wanted.get(key) or "as planned" not in reason_of(headers):
            problem = f"{key.group} is dead with the reason {reason_of(headers)!r} after {found} calls"
            stage.problems.append(problem)


def check_calls(stage: Stage, key: MessageKey, calls: int) -> None:
    """It was called as often, and each pause was at least twice the one before."""
    for program in stage.all_programs:
        times = program.times.get((key, 1))
        if times is None:
            continue
        if len(times.begun) != calls:
            stage.problems.append(f"{key.group} was called {len(times.begun)} times, not {calls}")
        for number, (ended, begun) in enumerate(zip(times.ended, times.begun[1:], strict=False)):
            wanted = BACKOFF_S * 2**number
            if begun - ended < wanted:
                problem = f"{key.group} was called again after {begun - ended:.3f} s, not {wanted} s"
                stage.problems.append(problem)


async def says_what_has_begun(stage: Stage) -> None:
    """says what it has begun, and its heartbeats go on while handlers are busy"""
    stage.holds = lambda *_: True
    await stage.publish(GROUPS, 2)
    program = stage.programs[CONSUMERS[0]]
    await stage.until(lambda: len(program.open) == CONCURRENCY, "a busy consumer")
    beats = stage.tap.heartbeats[program.consumer]
    before = len(beats)
    await stage.until(lambda: len(beats) > before + MISSING_HEARTBEATS, "heartbeats of a busy consumer")
    numbers = {call.handling.seq for call in program.open.values()}
    for _, beat in beats[before + 1 :]:
        if beat.in_hand is None or beat.begun is None:
            raise SceneFailed(f"{program.consumer} sends heartbeats without in_hand or begun")
        if not numbers <= spread(beat.in_hand) or spread(beat.begun.ranges) != numbers:
            stage.problems.append(f"{program.consumer} works on {sorted(numbers)}, and says {beat}")
        if beat.begun.concurrency != CONCURRENCY:
            stage.problems.append(f"{program.consumer} says concurrency {beat.begun.concurrency}")
    gaps = [
        later - former for (former, _), (later, _) in zip(beats[before:], beats[before + 1 :], strict=False)
    ]
    if max(gaps) > MISSING_HEARTBEATS * HEARTBEAT_S:
        stage.problems.append(f"{program.consumer} sent no heartbeat for {max(gaps):.1f} s")
    stage.release()
    await stage.all_ended()


async def short_cut(stage: Stage) -> None:
    """keeps what it has in hand when its connection is cut and comes back"""
    program = await hold_one(stage)
    joins = stage.tap.joins[program.consumer]
    incarnation, before = joins[-1].incarnation, len(joins)
    numbers = {call.handling.seq for call in program.open.values()}
    stage.ways[program.consumer].cut()
    await stage.until(lambda: len(joins) > before, "a join after the cut")
    again = joins[before]
    if again.incarnation != incarnation or again.n != joins[before - 1].n + 1:
        stage.problems.append(
            f"{program.consumer} joined as another incarnation, or with the wrong n: {again}"
        )
    if not numbers <= {held.seq for held in again.in_hand}:
        stage.problems.append(f"{program.consumer} did not name what it has in hand: {again}")
    await stage.joined(program.consumer)
    stage.release()
    await stage.all_ended()
    if program.lost:
        stage.problems.append(f"{program.consumer} lost messages although it was back in time")


async def long_cut(stage: Stage) -> None:
    """drops what was taken back when it was away for too long, and goes on as a new incarnation"""
    program = await hold_one(stage)
    held = list(program.open.values())
    joins = stage.tap.joins[program.consumer]
    incarnation = joins[-1].incarnation
    way = stage.ways[program.consumer]
    way.is_open = False
    stage.killed_at[program.life] = time.monotonic()
    way.cut()
    others = [other for other in stage.programs.values() if other is not program]
    await stage.until(
        lambda: {call.message for call in held} <= {h.message for o in others for h in o.handlings},
        f"others to get its messages after {RECONNECT_GRACE_S:.0f} s",
    )
    way.is_open = True
    await stage.until(
        lambda: {call.id for call in held} <= {call.id for call in program.lost},
        "it to say that the messages in hand are lost",
    )
    stage.new_life(program)
    await stage.until(
        lambda: joins[-1].incarnation != incarnation and joins[-1].n == 1, "a join as a new incarnation"
    )
    await stage.joined(program.consumer)
    stage.release()
    await stage.publish(GROUPS, 2)
    await stage.all_ended()


async def killed(stage: Stage) -> None:
    """is killed with messages in hand: others get them, and say so before they begin"""
    program = await hold_one(stage)
    messages = {call.message for call in program.open.values()}
    await stage.kill(program)
    del stage.programs[program.consumer]
    stage.release()
    await stage.all_ended()
    again = [
        (other, handling)
        for other in stage.programs.values()
        for handling in other.handlings
        if handling.message in messages and handling.attempt > 1
    ]
    for other, handling in again:
        said = stage.tap.settles[other.consumer]
        if not any(s.begun and handling.seq in spread(s.begun.ranges) for s in said):
            stage.problems.append(
                f"{other.consumer} began {handling.seq}, handed over before, without a word"
            )


async def starts_late(stage: Stage) -> None:
    """starts when messages wait for it, and takes them in bundles if its join asks for that"""
    late = next(consumer for consumer in CONSUMERS if consumer not in stage.programs)
    way = stage.ways[late]
    before = way.bundles
    stage.holds = lambda *_: True
    await stage.publish(stage.new_groups(len(CONSUMERS) * PREFETCH), 1)
    await stage.start(late)
    await stage.joined(late)
    await stage.until(
        lambda: all(len(p.open) == CONCURRENCY for p in stage.programs.values()),
        lambda: f"{CONCURRENCY} calls at a time at each consumer: {open_calls(stage)}",
    )
    # The others have all that they may have at a time. What is left came to it at the same moment.
    if stage.tap.joins[late][-1].bundle is not None and way.bundles == before:
        stage.problems.append(f"{late} asks for bundles, and {PREFETCH} messages came one by one")
    stage.release()
    await stage.publish(GROUPS, 2)
    await stage.all_ended()


async def leader_killed(stage: Stage) -> None:
    """goes on when the dispatcher that leads is killed"""
    stage.holds = lambda *_: True
    await stage.publish(GROUPS, 10)
    await stage.until(lambda: open_calls(stage) > 0, "messages in hand")
    leader, standby = stage.dispatchers
    await asyncio.to_thread(leader.kill9)
    stage.release()

    async def leads() -> bool:
        return await asyncio.to_thread(standby.leads)

    await stage.until_async(leads, "the other dispatcher to lead")
    stage.dispatchers.reverse()
    await asyncio.to_thread(leader.launch)
    await stage.all_ended()


async def poison(stage: Stage) -> None:
    """dies of one message again and again: that one is given up, and no other"""
    before = {key for key, _ in await stage.dead()}
    killing: list[asyncio.Task[None]] = []

    async def die(program: Program) -> None:
        await stage.kill(program)
        await stage.start(program.consumer)

    def kills(program: Program, call: Call) -> bool:
        if call.message not in stage.poison or program.life in stage.killed_at:
            return program.life in stage.killed_at
        killing.append(asyncio.create_task(die(program)))
        return True

    stage.poison = {MessageKey(stage.inbound[sum(b"deadly") % 2], "deadly", 0, 1)}
    stage.on_call = kills
    await stage.publish(["deadly"], 1)
    last = await stage.publish([*GROUPS, "deadly"], 5)

    async def dead() -> bool:
        return stage.poison <= {key for key, _ in await stage.dead()}

    async def alive() -> bool:
        return all(program.is_alive for program in stage.programs.values())

    await wait_for_poison(stage, dead)
    await asyncio.gather(*killing)
    await stage.until_async(alive, "programs that were started again")
    stage.on_call = lambda *_: False
    for consumer in stage.programs:
        await stage.joined(consumer)
    await stage.all_ended(last)
    for key, headers in await stage.dead():
        if key not in before and (key not in stage.poison or reason_of(headers) != "poison"):
            stage.problems.append(f"{key.group} is dead: {reason_of(headers)}")


async def wait_for_poison(stage: Stage, dead: Callable[[], Awaitable[bool]]) -> None:
    """Others need something to settle meanwhile: else they might all be dying of something else."""
    for _ in range(30):
        if await dead():
            return
        await stage.publish(GROUPS, 1)
        await asyncio.sleep(0.5)
    raise SceneFailed("a message that kills its consumers did not come to the dead queue")


async def leaves(stage: Stage) -> None:
    """leaves: finishes what it has in hand, settles it, and ends with exit code 0"""
    program = await hold_one(stage)
    stage.left_at[program.life] = time.monotonic()
    del stage.programs[program.consumer]
    program.stop()
    await stage.until(lambda: bool(stage.tap.leaves[program.consumer]), "the word that it leaves")
    later = await stage.publish(GROUPS, 2)
    for call in list(program.open.values()):
        stage.answer(program, call)
    stage.holds = lambda *_: False
    stage.release()
    await ends_in_order(stage, program)
    await stage.all_ended(later)
    for other in list(stage.programs.values()):
        stage.left_at[other.life] = time.monotonic()
        del stage.programs[other.consumer]
        other.stop()
        await ends_in_order(stage, other)


async def ends_in_order(stage: Stage, program: Program) -> None:
    try:
        async with asyncio.timeout(LEAVE_S):
            code = await program.ended()
    except TimeoutError:
        raise SceneFailed(
            f"{program.consumer} did not end within {LEAVE_S:.0f} s after it was told to"
        ) from None
    if code != 0:
        stage.problems.append(f"{program.consumer} ended with exit code {code}: {program.last_words()}")


async def hold_one(stage: Stage) -> Program:
    """The first consumer, with as many messages in hand as it works on at a time, and more behind them.

    New groups: the old ones may all belong to others. If it has more of the old ones than the others have,
    these get the new ones until they have as many.
    """
    program = stage.programs[CONSUMERS[0]]
    stage.holds = lambda called, _: called is program
    for _ in range(ROUNDS_MAX):
        sent = await stage.publish(stage.new_groups(len(GROUPS)), 3)

        def others_are_through(sent: list[MessageKey] = sent) -> bool:
            held = {call.message.group for call in program.open.values()}
            return all(key.group in held for key in set(sent) - stage.ended())

        await stage.until(
            lambda: len(program.open) == CONCURRENCY or others_are_through(), "a consumer with its hands full"
        )
        if len(program.open) == CONCURRENCY:
            return program
    raise SceneFailed(f"{program.consumer} got hardly any of {ROUNDS_MAX * len(GROUPS)} new groups")


def open_calls(stage: Stage) -> int:
    return sum(len(program.open) for program in stage.programs.values())


def spread(ranges: tuple[tuple[int, int], ...]) -> set[int]:
    return {number for first, last in ranges for number in range(first, last + 1)}


SCENES: Final[tuple[Scene, ...]] = (
    joins_and_works, groups_in_parallel, retries_in_place, says_what_has_begun, short_cut, long_cut, killed,
    starts_late, leader_killed, poison, leaves,
)  # fmt: skip
