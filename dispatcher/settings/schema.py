"""The configuration file as a JSON schema, for editors; `file` checks what a schema can't say."""

from __future__ import annotations

from typing import Any, Final, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from dispatcher.settings.kinds import ValueKind
from dispatcher.settings.lane import InboundSettings, LaneDefaults, LaneSettings, RetrySettings
from dispatcher.settings.model import HttpSettings, RabbitSettings, RedisSettings, Settings
from dispatcher.settings.parts import (
    DedupSettings,
    LedgerSettings,
    RebalanceSettings,
    StartSettings,
    TraceSettings,
)

_MODELS: Final[tuple[type[BaseModel], ...]] = (
    RabbitSettings, RedisSettings, HttpSettings, InboundSettings, RetrySettings, StartSettings,
    RebalanceSettings, DedupSettings, LedgerSettings, TraceSettings, LaneDefaults, LaneSettings,
)  # fmt: skip
#: Top keys that are no mappings of lane keys.
_BEFORE_LANES: Final = (
    "rabbitmq", "redis", "http", "ledger", "traces", "prefix", "spread_lanes", "workers",
)  # fmt: skip


class _Generator(GenerateJsonSchema):
    def field_title_should_be_set(self, schema: Any) -> bool:
        return False  # a key is its own best title


def json_schema() -> dict[str, Any]:
    """The schema of the whole file (JSON Schema 2020-12)."""
    schema = Settings.model_json_schema(schema_generator=_Generator)
    definitions = schema["$defs"]
    lane, defaults = definitions["LaneSettings"], _of(LaneDefaults)
    definitions["LaneDefaults"] = defaults
    defaults.pop("$defs", None)  # they are in the whole schema's
    for model in _MODELS:
        _show_defaults(model, definitions[model.__name__]["properties"])
    del lane["properties"]["name"]  # it is the key under lanes
    lane["required"].remove("name")
    pattern = {"type": "string", "description": "Pattern of lane names: * one segment, # any number."}
    definitions["LaneMatch"] = {
        **defaults,
        "title": "LaneMatch",
        "properties": {"lanes": pattern, **defaults["properties"]},
        "required": ["lanes"],
    }
    properties = schema["properties"]
    for section in ("rabbitmq", "redis", "http"):
        properties[section].pop("default", None)
    schema["properties"] = {
        **{key: properties[key] for key in _BEFORE_LANES},
        "defaults": {"$ref": "#/$defs/LaneDefaults", "description": "Keys for every lane."},
        "match": {
            "type": "array",
            "items": {"$ref": "#/$defs/LaneMatch"},
            "description": "Keys for the lanes whose names fit; the first fitting entry counts.",
        },
        "lanes": properties["lanes"],
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "Configuration of the dispatcher",
    }


def _of(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema(schema_generator=_Generator)


def _show_defaults(model: type[BaseModel], properties: dict[str, Any]) -> None:
    """Defaults as the file would have them: `5s`, not 5000."""
    for name, field in model.model_fields.items():
        kind = next((item for item in _metadata(field) if isinstance(item, ValueKind)), None)
        shown = properties.get(field.alias or name, {})
        if isinstance(field.default, BaseModel):
            del shown["default"]  # its keys have theirs
        if kind is not None and shown.get("default") is not None:
            shown["default"] = kind.show(field.default)


def _metadata(field: FieldInfo) -> list[Any]:
    """Also that of a value that may be null instead."""
    parts = get_args(field.annotation)
    if type(None) not in parts:
        return field.metadata
    return [item for part in parts for item in getattr(part, "__metadata__", ())]
