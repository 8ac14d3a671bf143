"""The machine of one lane: events in, effects out, time as an argument.

The edges commit `effects.records` and the tables in one atomic write and then carry out the actions in
order; steps may be pipelined as long as both happen in the order of the steps. One task owns a Lane.
"""

from __future__ import annotations

from collections.abc import Iterable

from dispatcher.core.checkpoint import RECORDS_PER_CHECKPOINT, checkpoint
from dispatcher.core.delivery import DeliveryPass
from dispatcher.core.effects import Effects, Snapshot
from dispatcher.core.events import Event
from dispatcher.core.feature import has, merge_handlers
from dispatcher.core.features import make_features
from dispatcher.core.holds import HoldKind
from dispatcher.core.operators.commands import Commands
from dispatcher.core.options import LaneOptions
from dispatcher.core.state import LaneState


class Lane:
    """One lane's decisions, from the snapshot that its leader read to the end of its leadership."""

    def __init__(self, options: LaneOptions, snapshot: Snapshot, now_ms: int) -> None:
        self.state = state = LaneState(options, snapshot.lane_epoch, now_ms)
        self._delivery = DeliveryPass(state)
        self._features = make_features(state, snapshot, self._delivery)
        self.commands = state.feature(Commands)
        self._handlers = merge_handlers(self._features)
        self._load(snapshot)
        self._before = [feature for feature in self._features if has(feature, "before_pass")]
        self._after = [feature for feature in self._features if has(feature, "after_pass")]
        self._last = [feature for feature in self._features if has(feature, "finish_step")]
        self._timed = [feature for feature in self._features if has(feature, "next_deadline_ms")]
        self._complete = snapshot.complete
        self._begun = False

    def _load(self, snapshot: Snapshot) -> None:
        """Take over what the former leader has left."""
        for feature in self._features:
            feature.load_first(snapshot)
        for feature in self._features:
            feature.load(snapshot)

    def start(self, now_ms: int) -> Effects:
        """The first effects of a leader: a checkpoint under its own epoch, and a ping to every consumer's
        queue."""
        self.state.now_ms = now_ms
        self._begun = True
        for feature in self._features:
            feature.begin()
        begun = self.state.take_effects()
        effects = self.checkpoint()  # it says all that the records of `begun` say
        effects.actions, effects.operator_rows = begun.actions, begun.operator_rows
        effects.owners, effects.incarnations = begun.owners, begun.incarnations
        effects.commands = begun.commands
        return effects

    def step(self, events: Iterable[Event], now_ms: int) -> Effects:
        """Take in what happened, then decide all that may happen now. `now_ms` never goes back."""
        self.state.now_ms = now_ms
        handlers = self._handlers
        for event in events:
            for handle in handlers[type(event)]:
                handle(event)
        for feature in self._before:
            if any(feature.pending):
                feature.before_pass()
        idle = self._delivery.run()
        for feature in self._after:
            if any(feature.pending) and feature.after_pass(idle=idle):
                self._delivery.run()
        for feature in self._last:
            feature.finish_step()
        return self.state.take_effects()

    def suspend(self) -> None:
        """Dispatch nothing from now on: the dispatcher is about to stop."""
        self.state.lane_holds.put(HoldKind.STOPPING)

    def reconfigure(self, options: LaneOptions) -> None:
        """Go on with these options (L-2). Only weights, and options that are read when they are needed, may
        differ."""
        self.state.options = options
        for inbound, (_, weight) in zip(self.state.inbounds, options.inbounds, strict=True):
            inbound.weight = weight

    def next_deadline_ms(self) -> int | None:
        """When `step` must run again even if nothing happens."""
        state = self.state
        suspended_until_ms = state.lane_holds.suspended_until_ms
        known = [suspended_until_ms] if state.now_ms < suspended_until_ms else []
        for feature in self._timed:
            if any(feature.pending):
                deadline = feature.next_deadline_ms()
                if deadline is not None:
                    known.append(deadline)
        return min(known) if known else None

    # -- journal --

    def is_complete(self) -> bool:
        """False while consumers may still tell us of things that Redis has forgotten."""
        return self._complete or (self._begun and not self.state.lane_holds.consumers_asked)

    def checkpoint_is_due(self) -> bool:
        return self.state.records_since_checkpoint >= RECORDS_PER_CHECKPOINT

    def checkpoint(self, *, everything: bool = False) -> Effects:
        """All that is still true, as records that replace the journal before them.

        With `everything` also all owners, incarnations and results: for a Redis that has lost some.
        """
        return checkpoint(self.state, self._features, everything=everything)
