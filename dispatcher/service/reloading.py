"""What a changed configuration file does to lanes that run.

A key of a lane is taken over at once, or the lane is led anew with it (as after a fail-over: nothing is lost,
doubled or out of order, and owners stay), or it can't change while the process runs. The settings themselves
say which (`Reload` in the metadata of their fields).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum

import structlog
from pydantic.fields import FieldInfo

from dispatcher.errors import ConfigurationError
from dispatcher.settings import LaneSettings, Model, Reload, Settings
from dispatcher.wire.shards import whole_name

log = structlog.get_logger()

#: Reads the configuration file again. Raises ConfigurationError.
Reread = Callable[[], Settings]


class Change(Enum):
    """How a lane goes on with the changed file."""

    UNCHANGED = "unchanged"
    AT_ONCE = "changed"
    ANEW = "led anew"
    STARTED = "started"
    STOPPED = "stopped"


def read_again(reread: Reread, old: Settings) -> Settings:
    """What the file says now. Raises ConfigurationError when it is wrong, or a change needs a restart."""
    new = reread()
    if refused := refusals(old, new):
        raise ConfigurationError(refused)
    return new


def settings_of_one_more(reread: Reread, others: Settings) -> Settings:
    """For a process that starts beside others, which go on with what needs a restart: what the file says now;
    what the others began with, if that is wrong or refused."""
    try:
        return read_again(reread, others)
    except ConfigurationError as error:
        log.error("configuration_refused", problems=error.problems)
        return others


def refusals(old: Settings, new: Settings) -> list[str]:
    """Every change that needs a restart, by the path of its key."""
    paths = [*_fixed(old, new)]
    for name in _in_both(old, new):
        was, is_now = old.lanes[name], new.lanes[name]
        paths += [f"lanes.{whole_name(name)}.{key}" for key in _fixed(was, is_now)]
        if is_now.shard is not None and was.group_header != is_now.group_header:  # RabbitMQ goes by it
            paths.append(f"lanes.{whole_name(name)}.group_header")
    before, after = _shards(old), _shards(new)
    paths += [f"lanes.{name}.shards" for name in after if before.get(name, after[name]) != after[name]]
    return [f"{path}: can't change while the dispatcher runs: restart it" for path in dict.fromkeys(paths)]


def _shards(settings: Settings) -> dict[str, int]:
    """By the names in the file. One shard and several are different lanes."""
    return {whole_name(name): lane.shards for name, lane in settings.lanes.items()}


def changes(old: Settings, new: Settings) -> dict[str, Change]:
    """What becomes of each lane, in the order of the new file; those that are gone come last."""
    known = {name: change_of(old.lanes[name], new.lanes[name]) for name in _in_both(old, new)}
    plan = {name: known.get(name, Change.STARTED) for name in new.lanes}
    return plan | {name: Change.STOPPED for name in old.lanes if name not in new.lanes}


def change_of(old: LaneSettings, new: LaneSettings) -> Change:
    """How a lane that runs with the old settings comes to the new ones."""
    if old == new:
        return Change.UNCHANGED
    is_live = all(Reload.AT_ONCE in field.metadata for field in _differing(old, new))
    return Change.AT_ONCE if is_live else Change.ANEW


def _in_both(old: Settings, new: Settings) -> list[str]:
    return [name for name in new.lanes if name in old.lanes]


def _fixed(old: Model, new: Model) -> Iterator[str]:
    """The keys that differ and need a restart, as the file has them."""
    for name, field in type(new).model_fields.items():
        was, is_now = getattr(old, name), getattr(new, name)
        if was == is_now or Reload.RESTART not in field.metadata:
            continue
        key = field.alias or name
        if isinstance(was, Model) and isinstance(is_now, Model):
            yield from (f"{key}.{inner}" for inner in _changed(was, is_now))
        else:
            yield key


def _changed(old: Model, new: Model) -> list[str]:
    fields = type(new).model_fields
    return [field.alias or name for name, field in fields.items() if getattr(old, name) != getattr(new, name)]


def _differing(old: Model, new: Model) -> Iterator[FieldInfo]:
    """The fields whose values differ, those within smaller models and lists of these by themselves."""
    for name, field in type(new).model_fields.items():
        was, is_now = getattr(old, name), getattr(new, name)
        if was == is_now:
            continue
        pairs = [(was, is_now)]
        if isinstance(was, tuple) and isinstance(is_now, tuple) and len(was) == len(is_now):
            pairs = list(zip(was, is_now, strict=True))
        if all(isinstance(one, Model) and isinstance(other, Model) for one, other in pairs):
            for one, other in pairs:
                yield from _differing(one, other)
        else:
            yield field
