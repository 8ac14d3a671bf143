"""How single values of the configuration are read: each kind says in plain words what it must be.

They are metadata for `Annotated`. A value from a file (the validation context is FROM_FILE) must be written
as people write it, `5s`; code gives plain numbers in the attribute's unit.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema, core_schema

from dispatcher.settings.units import (
    DURATION_PATTERN,
    SIZE_PATTERN,
    a_duration,
    format_duration,
    format_size,
    parse_duration_ms,
    parse_size_bytes,
)

_ANY_TEXT: Final[dict[str, Any]] = {"type": "string", "minLength": 1}
_VARIABLE: Final[dict[str, Any]] = {"type": "string", "pattern": r"\$\{"}
_INTEGER: Final = re.compile(r"-?[0-9]{1,18}")
_FRACTION: Final = re.compile(r"[0-9]{0,3}\.?[0-9]{1,18}")

FROM_FILE: Final = {"source": "file"}


class FromVariable(str):
    """Text that came from an environment variable, where numbers and flags are text too."""

    __slots__ = ()


class ValueKind:
    """A kind of value: `read` checks it, `schema` describes it to editors."""

    def read(self, value: Any, from_file: bool) -> Any:
        raise NotImplementedError

    def schema(self) -> dict[str, Any]:
        raise NotImplementedError

    def show(self, value: Any) -> Any:
        """The value as the file would have it."""
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def validate(value: Any, info: ValidationInfo) -> Any:
            return self.read(value, info.context == FROM_FILE)

        return core_schema.with_info_plain_validator_function(validate)

    def __get_pydantic_json_schema__(self, _: CoreSchema, __: GetJsonSchemaHandler) -> dict[str, Any]:
        return self.schema_with_variable()

    def schema_with_variable(self) -> dict[str, Any]:
        """Also text that names an environment variable, whatever that may hold."""
        schema = self.schema()
        return schema if schema == _ANY_TEXT else {"anyOf": [schema, dict(_VARIABLE)]}


@dataclass(frozen=True)
class Integer(ValueKind):
    """A whole number from `low` to `high`."""

    low: int
    high: int

    def read(self, value: Any, from_file: bool) -> int:
        if isinstance(value, FromVariable) and _INTEGER.fullmatch(value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < self.low:
            wanted = "a positive integer" if self.low == 1 else f"an integer from {self.low}"
            raise ValueError(f"must be {wanted}")
        if value > self.high:
            raise ValueError(f"must be at most {self.high}")
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.low, "maximum": self.high}


@dataclass(frozen=True)
class Fraction(ValueKind):
    """A share, from none (0) to all (1)."""

    def read(self, value: Any, from_file: bool) -> float:
        if isinstance(value, FromVariable) and _FRACTION.fullmatch(value):
            value = float(value)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise ValueError("must be a number from 0 to 1")
        return float(value)

    def schema(self) -> dict[str, Any]:
        return {"type": "number", "minimum": 0, "maximum": 1}


@dataclass(frozen=True)
class Duration(ValueKind):
    """A time span; the bounds and the value are milliseconds."""

    low_ms: int
    high_ms: int

    def read(self, value: Any, from_file: bool) -> int:
        may_be_0 = self.low_ms == 0
        if isinstance(value, str):
            value = parse_duration_ms(value, may_be_0=may_be_0)
        elif isinstance(value, bool) or not isinstance(value, int) or (from_file and value != 0):
            raise ValueError(f"must be {a_duration(may_be_0=may_be_0)}")
        if not self.low_ms <= value <= self.high_ms:
            low, high = format_duration(self.low_ms), format_duration(self.high_ms)
            raise ValueError(f"must be from {low} to {high}")
        return int(value)

    def schema(self) -> dict[str, Any]:
        text = {"type": "string", "pattern": f"^{DURATION_PATTERN}$"}
        return {"anyOf": [text, {"const": 0}]} if self.low_ms == 0 else text

    def show(self, value: Any) -> Any:
        return format_duration(value) if value else 0


@dataclass(frozen=True)
class Size(ValueKind):
    """An amount of memory; the bounds and the value are bytes."""

    low: int
    high: int

    def read(self, value: Any, from_file: bool) -> int:
        if isinstance(value, str):
            value = parse_size_bytes(value)
        elif isinstance(value, bool) or not isinstance(value, int) or from_file:
            raise ValueError("must be a size such as 64KiB, 256MiB or 1GiB")
        if not self.low <= value <= self.high:
            raise ValueError(f"must be from {format_size(self.low)} to {format_size(self.high)}")
        return int(value)

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": f"^{SIZE_PATTERN}$"}

    def show(self, value: Any) -> Any:
        return format_size(value)


@dataclass(frozen=True)
class Text(ValueKind):
    """Text, with what `check` adds to it (it returns the value or raises ValueError)."""

    check: Callable[[str], str] | None = None

    def read(self, value: Any, from_file: bool) -> str:
        if not isinstance(value, str):
            raise ValueError("must be text (put it in quotes)")
        if not value or not value.isprintable():
            raise ValueError("must not be empty or hold control characters")
        return self.check(str(value)) if self.check else str(value)

    def schema(self) -> dict[str, Any]:
        return dict(_ANY_TEXT)


@dataclass(frozen=True)
class Flag(ValueKind):
    """Yes or no."""

    def read(self, value: Any, from_file: bool) -> bool:
        if isinstance(value, FromVariable) and value in ("true", "false"):
            return value == "true"
        if not isinstance(value, bool):
            raise ValueError("must be true or false")
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}


@dataclass(frozen=True)
class Choice(ValueKind):
    """One word of a closed list."""

    words: type[StrEnum]
    formerly: tuple[tuple[str, str], ...] = ()  # former words, each with its present one: both work

    def read(self, value: Any, from_file: bool) -> StrEnum:
        for former, present in self.formerly:
            if value == former:
                value = present
        try:
            return self.words(value)
        except ValueError:
            *most, last = [word.value for word in self.words]
            raise ValueError(f"must be {', '.join(most)} or {last}") from None

    def schema(self) -> dict[str, Any]:
        former = [former for former, _ in self.formerly]
        return {"type": "string", "enum": [*(word.value for word in self.words), *former]}

    def show(self, value: Any) -> Any:
        return value.value


@dataclass(frozen=True)
class Switch(Choice):
    """The same with the word `off`, which YAML takes for false."""

    def read(self, value: Any, from_file: bool) -> StrEnum:
        return super().read("off" if value is False else value, from_file)

    def schema(self) -> dict[str, Any]:
        return {"enum": [*super().schema()["enum"], False]}


class Chosen(NamedTuple):
    """What `OneOf` read: a word alone, or the one key of a mapping with its value."""

    name: str
    value: Any = None


@dataclass(frozen=True)
class OneOf(ValueKind):
    """One of several words (or numbers), or a mapping with one key: `exact`, `{lru: 1024}`."""

    words: tuple[str | int, ...]
    keys: tuple[tuple[str, str, ValueKind], ...]  # key, what its value is called, its kind

    def read(self, value: Any, from_file: bool) -> Chosen:
        if isinstance(value, Chosen):
            return value
        if isinstance(value, dict) and len(value) == 1:
            ((name, argument),) = value.items()
            for key, _, kind in self.keys:
                if name == key:
                    return Chosen(key, self._read_value(kind, key, argument, from_file))
        if type(value) is not bool and any(value in (word, FromVariable(word)) for word in self.words):
            return Chosen(str(value))
        *most, last = [*map(str, self.words), *(f"{{{key}: {name}}}" for key, name, _ in self.keys)]
        raise ValueError(f"must be {', '.join(most)} or {last}")

    @staticmethod
    def _read_value(kind: ValueKind, key: str, value: Any, from_file: bool) -> Any:
        try:
            return kind.read(value, from_file)
        except ValueError as error:
            shown = f", not {value}" if type(value) in (str, int, float, bool) else ""
            raise ValueError(f"{key}: {error}{shown}") from None

    def schema(self) -> dict[str, Any]:
        mappings = [
            {
                "type": "object",
                "properties": {key: kind.schema_with_variable()},
                "required": [key],
                "additionalProperties": False,
            }
            for key, _, kind in self.keys
        ]
        return {"anyOf": [{"enum": list(self.words)}, *mappings]}

    def show(self, value: Any) -> Any:
        number = next((word for word in self.words if str(word) == value.name), value.name)
        return number if value.value is None else {value.name: value.value}
