"""Every option that has a range, as the settings say: what lies outside is refused in one line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel

from dispatcher.errors import ConfigurationError
from dispatcher.settings import Settings
from dispatcher.settings import file as config
from dispatcher.settings.kinds import Duration, Integer, Size
from dispatcher.settings.units import format_size

Path = tuple[str, ...]
Ranged = Integer | Duration | Size


def _ranges(annotation: Any, metadata: Any) -> Iterator[Ranged]:
    yield from (kind for kind in metadata if isinstance(kind, Ranged))
    for part in get_args(annotation):
        yield from _ranges(part, getattr(part, "__metadata__", ()))


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _sections(part)


def _options(section: type[BaseModel] = Settings, path: Path = ()) -> Iterator[tuple[Path, Ranged]]:
    """Every option with a range, by its keys in the file."""
    for name, field in section.model_fields.items():
        here = (*path, field.alias or name)
        yield from ((here, kind) for kind in _ranges(field.annotation, field.metadata))
        for part in _sections(field.annotation):
            yield from _options(part, here)


OPTIONS = dict(_options())


def _written(kind: Ranged) -> tuple[list[Any], list[Any]]:
    """Values outside and inside, as the file has them."""
    match kind:
        case Integer(low, high):
            return [low - 1, high + 1, -(10**9)], [low, high]
        case Duration(low, high):
            return [f"{low - 1}ms", f"{high + 1}ms"], [f"{low}ms", f"{high}ms"]
        case Size(low, high):
            return [f"{low - 1}B", f"{high + 1}B"], [format_size(low), format_size(high)]


def _document(path: Path, value: Any) -> tuple[str, str]:
    """A configuration with this value, and how an error names its place."""
    lane: dict[str, Any] = {"inbound": [{"queue": "q"}]}
    document: dict[str, Any] = {"lanes": {"a": lane}}
    match path:
        case ("lanes", "inbound", key):
            lane["inbound"][0][key] = value
            place = f"lanes.a.inbound[0].{key}"
        case ("lanes", "consumers", key):
            lane |= {"handover": True, "consumers": [{"id": "c", key: value}]}
            place = f"lanes.a.consumers[0].{key}"
        case ("lanes", *keys):
            if keys == ["max_in_flight_per_group"]:
                lane["policy"] = "concurrent"
            lane[keys[0]] = {keys[1]: value} if len(keys) > 1 else value
            place = ".".join(("lanes.a", *keys))
        case (section, key):
            document[section] = {"path": "/tmp/ledger", key: value} if section == "ledger" else {key: value}
            place = f"{section}.{key}"
        case (key,):
            document[key] = value
            place = key
        case _:
            raise AssertionError(f"{path}: the test does not know how to write it")
    return yaml.safe_dump(document), place


def test_the_options_are_found() -> None:
    wanted = {("redis", "timeout"), ("lanes", "look_ahead_bytes"), ("lanes", "consumers", "prefetch")}
    assert wanted <= OPTIONS.keys()


@pytest.mark.parametrize("path", OPTIONS, ids=".".join)
def test_what_is_out_of_range_is_refused_and_the_bounds_are_not(path: Path) -> None:
    outside, inside = _written(OPTIONS[path])
    for value in outside:
        text, place = _document(path, value)
        with pytest.raises(ConfigurationError) as refused:
            config.parse(text, {})
        (line,) = refused.value.problems
        assert line.startswith(f"{place}: must be "), line
    for value in inside:
        config.parse(_document(path, value)[0], {})
