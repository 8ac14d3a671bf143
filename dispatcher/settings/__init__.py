"""The settings of a dispatcher, and the file that they come from. This is the one import:

    from dispatcher.settings import Settings, load

- `file` reads the configuration (`document`: YAML and the environment), names every problem at once
- `model` has what the whole file says, `lane` what it says of a lane and which keys contradict each other,
  `parts` smaller models and the choices
- `kinds` are the kinds of values: durations, sizes, choices; `schema` makes the JSON schema of all this
- `urls`, `units` and `work_file` parse what stands in the values, `secret` reads what stands elsewhere
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from dispatcher.settings.file import load, parse
    from dispatcher.settings.kinds import Chosen
    from dispatcher.settings.lane import (
        GROUP_PROPERTIES,
        SHORT_STRING_BYTES_MAX,
        GroupWindowSettings,
        InboundSettings,
        LaneDefaults,
        LaneSettings,
        RetrySettings,
    )
    from dispatcher.settings.model import HttpSettings, RabbitSettings, RedisSettings, Settings, TokenSettings
    from dispatcher.settings.parts import (
        DedupSettings,
        ExhaustedAct,
        HandOverConsumerSettings,
        HistorySettings,
        LedgerSettings,
        Model,
        OverdueAct,
        PauseName,
        PlacementName,
        PolicyName,
        QueueKind,
        RebalanceSettings,
        Reload,
        SequenceCheck,
        StartSettings,
        TraceSettings,
    )
    from dispatcher.settings.schema import json_schema
    from dispatcher.settings.work_file import VERSION, WorkFile

_MODULES: Final = {
    "Chosen": "kinds",
    "DedupSettings": "parts",
    "ExhaustedAct": "parts",
    "GROUP_PROPERTIES": "lane",
    "HandOverConsumerSettings": "parts",
    "HistorySettings": "parts",
    "HttpSettings": "model",
    "InboundSettings": "lane",
    "LaneDefaults": "lane",
    "LaneSettings": "lane",
    "LedgerSettings": "parts",
    "Model": "parts",
    "OverdueAct": "parts",
    "PauseName": "parts",
    "PlacementName": "parts",
    "PolicyName": "parts",
    "QueueKind": "parts",
    "RabbitSettings": "model",
    "RebalanceSettings": "parts",
    "RedisSettings": "model",
    "Reload": "parts",
    "GroupWindowSettings": "lane",
    "RetrySettings": "lane",
    "SHORT_STRING_BYTES_MAX": "lane",
    "SequenceCheck": "parts",
    "Settings": "model",
    "StartSettings": "parts",
    "TokenSettings": "model",
    "TraceSettings": "parts",
    "VERSION": "work_file",
    "WorkFile": "work_file",
    "json_schema": "schema",
    "load": "file",
    "parse": "file",
}

__all__ = [
    "Chosen",
    "DedupSettings",
    "ExhaustedAct",
    "GROUP_PROPERTIES",
    "HandOverConsumerSettings",
    "HistorySettings",
    "HttpSettings",
    "InboundSettings",
    "LaneDefaults",
    "LaneSettings",
    "LedgerSettings",
    "Model",
    "OverdueAct",
    "PauseName",
    "PlacementName",
    "PolicyName",
    "QueueKind",
    "RabbitSettings",
    "RebalanceSettings",
    "RedisSettings",
    "Reload",
    "GroupWindowSettings",
    "RetrySettings",
    "SHORT_STRING_BYTES_MAX",
    "SequenceCheck",
    "Settings",
    "StartSettings",
    "TokenSettings",
    "TraceSettings",
    "VERSION",
    "WorkFile",
    "json_schema",
    "load",
    "parse",
]

if not TYPE_CHECKING:  # to a type checker it would mean that every name exists

    def __getattr__(name: str) -> Any:
        """Imports at first use: commands begin at once, and the SDK parses URLs without pydantic."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
