"""The file with which measured costs begin: what counts of it, and what is no such file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dispatcher.errors import ConfigurationError
from dispatcher.service.lane_options import lane_options
from dispatcher.settings import WorkFile
from dispatcher.settings import file as config
from dispatcher.settings.work_file import KINDS_MAX, KnownKind, read_known_work


def band(messages: int = 100, mean_us: float = 1_000.0, **values: Any) -> dict[str, Any]:
    return {
        "type": None, "size_below": 256, "messages": messages, "mean_us": mean_us, "error_us": 10.0, **values
    }  # fmt: skip


def written(folder: Path, *bands: dict[str, Any], **values: Any) -> str:
    model = {"version": 2, "unit": "µs", "lanes": {"orders": {"in": list(bands)}}, **values}
    (folder / "cost_model.json").write_text(json.dumps(model))
    return str(folder / "cost_model.json")


def test_the_bands_of_a_type_are_put_together(tmp_path: Path) -> None:
    path = written(
        tmp_path, band(300, 1_000), band(100, 5_000, size_below=512), band(50, 700, type="a%FF"),
    )  # fmt: skip
    found = read_known_work(path)
    assert found == path
    assert found.lanes == {
        "orders": (KnownKind("in", None, 2_000.0, 400), KnownKind("in", b"a\xff", 700.0, 50))
    }


def test_a_band_of_which_little_is_known_does_not_count(tmp_path: Path) -> None:
    unsure = band(40, 100, error_us=51.0), band(29, 100, error_us=1.0), band(1, 100, error_us=None)
    assert read_known_work(written(tmp_path, *unsure)).lanes == {"orders": ()}
    assert read_known_work(written(tmp_path, band(40, 100, error_us=50.0))).lanes["orders"] != ()


def test_of_many_types_those_with_most_messages_are_taken(tmp_path: Path) -> None:
    bands = (band(100 + number, type=f"t{number}") for number in range(KINDS_MAX + 100))
    kinds = read_known_work(written(tmp_path, *bands)).lanes["orders"]
    assert [each.messages for each in kinds] == list(range(KINDS_MAX + 199, 199, -1))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is not a cost model"),
        ("[]", "is not a cost model"),
        ('{"version": 2}', "is not a cost model"),
        ('{"version": 1, "lanes": {}}', "is a cost model of version 1, not 2: make it with the"),
        ('{"version": 3, "lanes": {}}', "is a cost model of version 3, not 2"),
        ('{"version": 2, "lanes": {"orders": []}}', "is a damaged cost model: make it again"),
        ('{"version": 2, "lanes": {"orders": {"in": [{}]}}}', "is a damaged cost model"),
        ('{"version": 2, "lanes": {"orders": {"in": [1]}}}', "is a damaged cost model"),
    ],
)
def test_what_is_no_such_file_is_named_with_its_key(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "model.json"
    file.write_text(text)
    with pytest.raises(ConfigurationError) as refused:
        parse(str(file))
    (line,) = refused.value.problems
    assert line.startswith(f"lanes.orders.cost: measured: {file} {problem}")


@pytest.mark.parametrize("value", [-1, "NaN", "Infinity", '"a lot"'])
def test_a_mean_is_a_number(tmp_path: Path, value: object) -> None:
    path = Path(written(tmp_path, band(100, 77_777)))
    path.write_text(path.read_text().replace("77777", str(value)))
    with pytest.raises(ValueError, match="is a damaged cost model"):
        read_known_work(str(path))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"^lanes\.orders\.cost: measured: \S+none.json can't be read"
    ):
        parse(str(tmp_path / "none.json"))


def parse(path: str) -> Any:
    text = f'lanes: {{orders: {{inbound: [{{queue: other}}, {{queue: in}}], cost: {{measured: "{path}"}}}}}}'
    return config.parse(text, {}).lanes["orders"]


def test_a_lane_takes_what_is_said_of_its_queues(tmp_path: Path) -> None:
    lanes = {
        "orders": {"in": [band(mean_us=2_500)], "gone": [band()]}, "bills": {"in": [band(mean_us=1)]},
    }  # fmt: skip
    lane = parse(written(tmp_path, lanes=lanes))
    assert isinstance(lane.cost.value, WorkFile)
    (known,) = lane_options(lane, "dispatch", ()).known_work
    assert known == (1, None, 2.5, 100)


def test_another_content_under_the_same_path_is_no_other_setting(tmp_path: Path) -> None:
    """The costs are learnt anew all the time: for that alone no lane has to be led anew."""
    before = parse(written(tmp_path, band()))
    assert parse(written(tmp_path, band(mean_us=5))) == before
