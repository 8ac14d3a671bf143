"""Reads the configuration file: one YAML document, everything that is wrong with it said at once.

What a lane does not say comes from the first entry of `match` whose pattern fits its name, and what that
does not say from `defaults`; keys are taken whole. A pattern works as a topic binding does in RabbitMQ:
`#` stands for any number of segments, `*` for one; inside a segment `*` also stands for any characters.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path as FilePath
from typing import Any, Final, NamedTuple, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from dispatcher.errors import ConfigurationError
from dispatcher.settings.document import BROKEN, Path, Problems, path_text, read_document
from dispatcher.settings.kinds import FROM_FILE, Choice, Integer
from dispatcher.settings.lane import (
    INBOUND_MAX,
    SHORT_STRING_BYTES_MAX,
    InboundSettings,
    LaneDefaults,
    LaneSettings,
    RetrySettings,
)
from dispatcher.settings.model import (
    WORKERS_MAX,
    HttpSettings,
    RabbitSettings,
    RedisSettings,
    Settings,
    lane_name_problem,
)
from dispatcher.settings.parts import LedgerSettings, TraceSettings
from dispatcher.wire.protocol import DEFAULT_PREFIX, LaneNames, dotted_name_problem
from dispatcher.wire.shards import shard_name

TOP_KEYS: Final = (
    "rabbitmq", "redis", "http", "ledger", "traces", "prefix", "spread_lanes", "workers", "defaults", "match",
    "lanes",
)  # fmt: skip
#: A file written by hand is smaller, and YAML is slow to read.
FILE_BYTES_MAX: Final = 4 << 20
_PATTERN_SEGMENT = re.compile(r"#|[A-Za-z0-9_*-]+")
_Model = TypeVar("_Model", bound=BaseModel)


def former_words(path: str | FilePath, environ: Mapping[str, str]) -> list[str]:
    """Values of this file that have another name by now, each with the path of its key; they work as before.

    The file must be one that `load` takes.
    """
    with open(path, encoding="utf-8") as file:
        document = read_document(file.read(), environ, Problems())
    renamed: dict[tuple[str | int, Any], str] = {
        (field.alias or name, former): present
        for name, field in RetrySettings.model_fields.items()
        for kind in field.metadata
        if isinstance(kind, Choice)
        for former, present in kind.formerly
    }
    return [
        f"{path_text(place)}: {value} is called {renamed[place[-1], value]} by now; both work"
        for place, value in _leaves(document, ())
        if place[-2:-1] == ("retry",) and (place[-1], value) in renamed
    ]


def _leaves(value: Any, place: Path) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, (*place, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _leaves(inner, (*place, index))
    else:
        yield place, str(value)


class _Layer(NamedTuple):
    """Lane keys from one place: the lane itself, an entry of `match`, or `defaults`."""

    origin: str  # empty: the lane itself
    keys: dict[str, Any]


class _Match(NamedTuple):
    pattern: list[str]
    layer: _Layer


def load(path: str | FilePath, environ: Mapping[str, str]) -> Settings:
    """The settings in this file, with variables from `environ`.

    Raises ConfigurationError with every problem, each beginning with the path of its key.
    """
    try:
        with open(path, "rb") as file:
            raw = file.read(FILE_BYTES_MAX + 1)
        text = raw.decode()
    except OSError as error:
        raise ConfigurationError(
            f"{path}: {error.strerror or error}; name the file with -c FILE or DISPATCHER_CONFIG"
        ) from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path}: not a text file in UTF-8") from None
    if len(raw) > FILE_BYTES_MAX:
        raise ConfigurationError(f"{path}: larger than {FILE_BYTES_MAX >> 20} MiB")
    return parse(text, environ, f"{path}, ")


def parse(text: str, environ: Mapping[str, str], origin: str = "") -> Settings:
    """The settings in this text; see load. The error for what is no YAML at all begins with `origin`."""
    problems = Problems()
    try:
        document = read_document(text, environ, problems)
    except ConfigurationError as unreadable:
        raise ConfigurationError(f"{origin}{unreadable}") from None
    if not isinstance(document, dict):
        problems.add((), "the configuration must be a mapping with the key lanes")
        raise ConfigurationError(problems.lines())
    settings = _Loader(document, problems).settings()
    if settings is None or problems:
        raise ConfigurationError(problems.lines())
    return settings


class _Loader:
    """One document on its way to Settings; whatever is wrong goes to `problems`."""

    def __init__(self, document: dict[str, Any], problems: Problems) -> None:
        self._document, self._problems = document, problems

    def settings(self) -> Settings | None:
        """None when a part could not be made."""
        _refuse_unknown(self._document, TOP_KEYS, (), self._problems)
        rabbitmq = self._section("rabbitmq", RabbitSettings)
        redis = self._section("redis", RedisSettings)
        http = self._section("http", HttpSettings)
        ledger = None
        if self._document.get("ledger") is not None:
            ledger = self._section("ledger", LedgerSettings)
        traces = None
        if self._document.get("traces") is not None:
            traces = self._section("traces", TraceSettings)
        prefix = self._prefix()
        spread_lanes, workers = self._spread_lanes(), self._workers()
        lanes = self._lanes(prefix or DEFAULT_PREFIX)
        if rabbitmq is None or redis is None or http is None or prefix is None or not lanes:
            return None
        settings = Settings(
            rabbitmq=rabbitmq, redis=redis, http=http, ledger=ledger, traces=traces, prefix=prefix,
            spread_lanes=spread_lanes, workers=workers, lanes=lanes,
        )  # fmt: skip
        for conflict in settings.conflicts():
            self._problems.add((conflict.keys[0],), conflict.text)
        return settings

    def _section(self, key: str, model: type[_Model]) -> _Model | None:
        value = self._document.get(key, {})
        section, _ = _validate(model, value, (key,), self._problems)
        if isinstance(section, RabbitSettings | RedisSettings | HttpSettings):
            for conflict in section.conflicts():
                self._problems.add((key, conflict.keys[0]), conflict.text)
            for name in ("ca_file", "cert_file", "key_file"):
                file = getattr(section, name)
                if file is not None and not FilePath(file).is_file():
                    self._problems.add((key, name), f"there is no file {file}")
        return section

    def _prefix(self) -> str | None:
        prefix = self._document.get("prefix", DEFAULT_PREFIX)
        if prefix is BROKEN:
            return None
        problem = (
            dotted_name_problem(prefix) if isinstance(prefix, str) else "must be text (put it in quotes)"
        )
        if not problem and str(prefix).split(".")[0] == "amq":
            problem = "must not begin with amq, which RabbitMQ keeps for itself"
        if problem:
            self._problems.add(("prefix",), problem)
            return None
        return str(prefix)

    def _spread_lanes(self) -> bool:
        value = self._document.get("spread_lanes", True)
        if not isinstance(value, bool) and value is not BROKEN:
            self._problems.add(("spread_lanes",), "must be true or false")
        return value is True

    def _workers(self) -> int:
        value = self._document.get("workers", 1)
        if value is BROKEN:
            return 1
        try:
            return Integer(1, WORKERS_MAX).read(value, from_file=True)
        except ValueError as wrong:
            self._problems.add(("workers",), str(wrong))
            return 1

    def _matches(self) -> list[_Match]:
        """The entries of `match` whose pattern can be used, with those of their keys that are in order."""
        entries = self._document.get("match", [])
        if not isinstance(entries, list):
            _refuse(entries, ("match",), "must be a list, each with lanes and lane keys", self._problems)
            return []
        matches = []
        for index, entry in enumerate(entries):
            path: Path = ("match", index)
            if not isinstance(entry, dict):
                _refuse(entry, path, "must be a mapping with lanes and lane keys", self._problems)
                continue
            pattern = self._pattern(entry, path)
            keys = self._preset_keys({k: v for k, v in entry.items() if k != "lanes"}, path)
            if pattern is not None:
                matches.append(_Match(pattern, _Layer(f"match[{index}]", keys)))
        return matches

    def _pattern(self, entry: dict[str, Any], path: Path) -> list[str] | None:
        pattern = entry.get("lanes")
        if isinstance(pattern, str) and all(_PATTERN_SEGMENT.fullmatch(s) for s in pattern.split(".")):
            return pattern.split(".")
        text = "must be a pattern of lane names: segments joined by dots, * for one, # for any number"
        _refuse(pattern, (*path, "lanes"), text, self._problems)
        return None

    def _preset_keys(self, keys: Any, path: Path) -> dict[str, Any]:
        if isinstance(keys, dict) and "inbound" in keys:
            self._problems.add((*path, "inbound"), "belongs to one lane: give it under lanes")
            keys = {key: value for key, value in keys.items() if key != "inbound"}
        _, broken = _validate(LaneDefaults, keys, path, self._problems)
        return (
            {key: value for key, value in keys.items() if key not in broken} if isinstance(keys, dict) else {}
        )

    def _lanes(self, prefix: str) -> dict[str, LaneSettings] | None:
        """Every lane, or None when one could not be made."""
        matches = self._matches()
        defaults = _Layer("defaults", self._preset_keys(self._document.get("defaults", {}), ("defaults",)))
        raw_lanes = self._document.get("lanes", {})
        if not isinstance(raw_lanes, dict) or not raw_lanes:
            _refuse(raw_lanes, ("lanes",), "must be a mapping with at least one lane", self._problems)
            return None
        lanes = {}
        lane_of_queue: dict[str, str] = {}
        for name, raw in raw_lanes.items():
            if problem := lane_name_problem(name, prefix):
                self._problems.add(("lanes", name), problem)
            fitting = [match.layer for match in matches if _fits(match.pattern, name.split("."))][:1]
            if (lane := self._lane(name, raw, [*fitting, defaults])) is not None:
                lanes[name] = lane
                self._check_consumers(lane, prefix)
                self._check_shards(lane, prefix)
            self._check_queues(name, raw, prefix, lane_of_queue)
        self._check_shards_queues(lanes, lane_of_queue)
        if len(lanes) != len(raw_lanes):
            return None
        return {each.name: each for lane in lanes.values() for each in lane.split()}

    def _lane(self, name: str, raw: Any, layers: list[_Layer]) -> LaneSettings | None:
        path: Path = ("lanes", name)
        if not isinstance(raw, dict):
            _refuse(raw, path, "must be a mapping with inbound and lane keys", self._problems)
            return None
        merged: dict[str, Any] = {}
        origin_of: dict[str, str] = {}
        for layer in [_Layer("", raw), *layers]:
            for key in [key for key in layer.keys if key not in merged]:
                merged[key], origin_of[key] = layer.keys[key], layer.origin
        inbound = self._inbound(merged.pop("inbound", None), path)
        own, broken = _validate(LaneDefaults, merged, path, self._problems)
        if own is None:
            kept = {key: value for key, value in merged.items() if key not in broken}
            own = LaneDefaults.model_validate(kept, context=FROM_FILE, by_alias=True, by_name=False)
        for conflict in own.conflicts():
            if not broken.intersection(conflict.keys):
                origin = origin_of.get(conflict.keys[0])
                suffix = f" (set in {origin})" if origin else ""
                self._problems.add((*path, conflict.keys[0]), conflict.text + suffix)
        if broken or inbound is None:
            return None
        return LaneSettings(name=name, inbound=inbound, **dict(own))

    def _inbound(self, raw: Any, path: Path) -> tuple[InboundSettings, ...] | None:
        path = (*path, "inbound")
        if not isinstance(raw, list) or not 1 <= len(raw) <= INBOUND_MAX:
            _refuse(
                raw,
                path,
                f"must be a list of 1 to {INBOUND_MAX} entries with queue and weight",
                self._problems,
            )
            return None
        entries = [
            _validate(InboundSettings, entry, (*path, index), self._problems)[0]
            for index, entry in enumerate(raw)
        ]
        return tuple(entry for entry in entries if entry is not None) if None not in entries else None

    def _check_consumers(self, lane: LaneSettings, prefix: str) -> None:
        names = LaneNames(lane.name, prefix)
        for index, consumer in enumerate(lane.consumers):
            if len(names.consumer(consumer.id)) > SHORT_STRING_BYTES_MAX:
                text = f"the queue's name would have more than {SHORT_STRING_BYTES_MAX} bytes"
                self._problems.add(("lanes", lane.name, "consumers", index, "id"), text)

    def _check_shards(self, lane: LaneSettings, prefix: str) -> None:
        if lane.shards == 1:
            return
        if problem := lane_name_problem(lane.name, prefix, shards=lane.shards):
            self._problems.add(("lanes", lane.name, "shards"), problem)
        for index, inbound in enumerate(lane.inbound):
            if len(shard_name(inbound.queue, lane.shards).encode()) > SHORT_STRING_BYTES_MAX:
                text = f"with the shard's number the name has more than {SHORT_STRING_BYTES_MAX} bytes"
                self._problems.add(("lanes", lane.name, "inbound", index, "queue"), text)

    def _check_shards_queues(self, lanes: dict[str, LaneSettings], lane_of_queue: dict[str, str]) -> None:
        """Refuse a queue of a shard that is listed as another lane's."""
        for lane in lanes.values():
            for index, inbound in enumerate(lane.inbound):
                for number in range(1, lane.shards + 1) if lane.shards > 1 else ():
                    queue = shard_name(inbound.queue, number)
                    if queue in lane_of_queue:
                        text = f"{queue!r} is an inbound queue of lane {lane_of_queue[queue]} already"
                        self._problems.add(("lanes", lane.name, "inbound", index, "queue"), text)

    def _check_queues(self, lane: str, raw: Any, prefix: str, lane_of_queue: dict[str, str]) -> None:
        """Refuse a queue that is listed twice or is our own; also in a lane that has other faults."""
        entries = raw.get("inbound") if isinstance(raw, dict) else None
        for index, entry in enumerate(entries if isinstance(entries, list) else []):
            queue = entry.get("queue") if isinstance(entry, dict) else None
            if not isinstance(queue, str):
                continue
            path: Path = ("lanes", lane, "inbound", index, "queue")
            if queue in lane_of_queue:
                self._problems.add(
                    path, f"{queue!r} is an inbound queue of lane {lane_of_queue[queue]} already"
                )
            lane_of_queue.setdefault(queue, lane)
            if queue.startswith(f"{prefix}."):
                text = f"{queue!r} is under the dispatcher's own prefix {prefix!r}"
                self._problems.add(path, f"{text}; lanes can't be chained: choose another queue or prefix")
            is_declared = entry.get("declare") in (True, "true")
            if queue.startswith("amq.rabbitmq.") or (queue.startswith("amq.") and is_declared):
                self._problems.add(path, f"{queue!r} begins with amq., which RabbitMQ keeps for itself")


def _fits(pattern: list[str], segments: list[str]) -> bool:
    if not pattern:
        return not segments
    head, *rest = pattern
    if head == "#":
        return any(_fits(rest, segments[skipped:]) for skipped in range(len(segments) + 1))
    return bool(segments) and fnmatchcase(segments[0], head) and _fits(rest, segments[1:])


def _refuse(value: Any, path: Path, text: str, problems: Problems) -> None:
    """Say it unless the value could not even be read, which has been said."""
    if value is not BROKEN:
        problems.add(path, text)


def _refuse_unknown(keys: Any, known: tuple[str, ...], path: Path, problems: Problems) -> None:
    for key in keys:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            text = f"unknown key; is {near[0]} meant?" if near else "unknown key"
            problems.add((*path, key), text, shows_value=False)  # it may be a password


def _validate(
    model: type[_Model], value: Any, path: Path, problems: Problems
) -> tuple[_Model | None, frozenset[str]]:
    """The model, or None and the keys that are wrong (unknown ones too)."""
    if not isinstance(value, dict):
        _refuse(value, path, "must be a mapping of keys to values", problems)
        return None, frozenset()
    try:
        return model.model_validate(value, context=FROM_FILE, by_alias=True, by_name=False), frozenset()
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False)
    _refuse_unknown(value, _known_keys(model), path, problems)
    for fault in faults:
        place = fault["loc"]
        if fault["type"] == "extra_forbidden" and len(place) > 1:
            inner = _model_at(model, place[:-1])
            _refuse_unknown([place[-1]], _known_keys(inner), (*path, *place[:-1]), problems)
            continue
        if fault["type"] == "extra_forbidden" or _at(value, place) is BROKEN:
            continue
        if fault["type"] == "too_short" and _at(value, place):
            continue  # pydantic counts only the good entries, and the bad ones have their own faults
        problems.add((*path, *place), _fault_text(fault))
    return None, frozenset(str(fault["loc"][0]) for fault in faults)


def _known_keys(model: type[BaseModel]) -> tuple[str, ...]:
    return tuple(field.alias or name for name, field in model.model_fields.items())


def _model_at(model: type[BaseModel], place: Path) -> type[BaseModel]:
    """The model of the mapping at that place of another one."""
    for step in place:
        if isinstance(step, int):  # of a list: its entries are of the model that its key is of
            continue
        fields = {field.alias or name: field for name, field in model.model_fields.items()}
        annotation = fields[str(step)].annotation
        kinds = (annotation, *get_args(annotation))  # of `X | None` it is X
        model = next(kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel))
    return model


def _at(value: Any, place: Path) -> Any:
    """What the file says at that place; None when it says nothing."""
    for step in place:
        if isinstance(value, dict):
            value = value.get(str(step))
        elif isinstance(value, list) and isinstance(step, int):
            value = value[step]
        else:
            return None
    return value


def _fault_text(fault: Any) -> str:
    match fault["type"]:
        case "value_error":
            return str(fault["ctx"]["error"])
        case "missing":
            return "is required"
        case "tuple_type":
            return "must be a list"
        case "model_type" | "dict_type":
            return "must be a mapping of keys to values"
        case "too_short":
            return "must have at least one entry"
        case "too_long":
            return f"must have at most {fault['ctx']['max_length']} entries"
        case _:
            return str(fault["msg"])
