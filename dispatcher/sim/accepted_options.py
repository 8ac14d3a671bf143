"""Options that a lane may have: seeds draw them without knowing which ones go together."""

from __future__ import annotations

from typing import Any

from dispatcher.settings import HandOverConsumerSettings, LaneDefaults


def accepted_options(options: dict[str, Any], **lane: Any) -> dict[str, Any]:
    """These fields of LaneSettings, but with its default for each that `dispatcher check` would refuse in a
    lane with the fields `lane` (policy, group_map, handover). The settings alone say which ones these are."""
    consumers = (HandOverConsumerSettings(id="c0"),) if lane.get("handover") else ()
    known = {"sequence_header": "number", "consumers": consumers, **lane}
    accepted = dict(options)
    while refused := _refused(accepted, known):
        for name in refused:
            accepted[name] = LaneDefaults.model_fields[name].get_default(call_default_factory=True)
    return accepted


def _refused(options: dict[str, Any], lane: dict[str, Any]) -> list[str]:
    """Fields of these options that differ from their defaults and contradict others."""
    fields = LaneDefaults.model_fields
    said = {
        name: value for name, value in options.items()
        if value != fields[name].get_default(call_default_factory=True)
    }  # fmt: skip
    found = LaneDefaults.model_construct(**said, **lane).conflicts()
    keys = {fields[name].alias or name: name for name in said}
    return [keys[conflict.keys[0]] for conflict in found if conflict.keys[0] in keys]
