"""Ledgers by URL and in object stores: what reads them, and what is refused and why."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from dispatcher.cli import app
from dispatcher.errors import ConfigurationError
from dispatcher.pipeline.ledger_files import Found, LedgerFile, find_files
from dispatcher.pipeline.ledger_reading import read_records, spark_prefix
from dispatcher.pipeline.run import clear_errors
from dispatcher.pipeline.stream_reading import LedgerLocation, parts_of, read_parts
from dispatcher.pipeline.stream_state import StreamState
from tests.pipeline.ledgers import Leader, Numbers, in_order


def test_a_ledger_may_be_named_by_a_url(spark: SparkSession, tmp_path: Path) -> None:
    leader = Leader(tmp_path / "a ledger")
    leader.hand(*map(Numbers().number, in_order("g", 3)))
    leader.end()
    url = (tmp_path / "a ledger").as_uri()
    assert "%20" in url
    assert read_records(spark, url, find_files(url)).where("event = 'settled'").count() == 3
    place = LedgerLocation(url)
    assert place.url == LedgerLocation(str(tmp_path / "a ledger")).url
    state = StreamState()
    (file,) = (tmp_path / "a ledger").rglob("*.parquet")
    parts, bad = parts_of(place, state, [f"file://{file}"])
    read = read_parts(spark, place, state, parts)
    assert (bad, read.bad, [each.event for each in read.facts]) == ([], [], ["lane_started", "lane_ended"])


def test_old_files_may_lie_in_folders_further_down_and_of_any_name(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, numbers = Leader(tmp_path), Numbers()
    for first in 1, 3, 5:
        leader.hand(*map(numbers.number, in_order("g", 2, first=first)))
        leader.close()
    leader.end()
    old = sorted(tmp_path.rglob("*.parquet"))
    for file, folder in (old[0], "archive/lane=orders"), (old[1], "archive/2025/lane=gr%C3%B6%C3%9Fe"):
        place = tmp_path / folder / file.parent.name
        place.mkdir(parents=True)
        file.rename(place / file.name)
    records = read_records(spark, str(tmp_path), find_files(str(tmp_path)))
    monkeypatch.chdir(tmp_path.parent)
    for name in str(tmp_path), tmp_path.name:
        nothing = find_files(name).of_dates([])
        assert read_records(spark, name, nothing).isEmpty()
    rows = records.where("event = 'settled'").select("lane", "arrival").collect()
    assert sorted(tuple(row) for row in rows) == [("orders", number) for number in range(1, 7)]


def test_a_store_that_spark_has_no_connector_for_is_one_line(spark: SparkSession) -> None:
    path = "bucket/ledger/lane=orders/date=2026-11-22/7-0000000a-000000000001.parquet"
    found = Found("bucket/ledger", [LedgerFile(path, "orders", "orders", "7-0000000a", 7, 1, 1)], [], [])
    for url, scheme in (("s3://bucket/ledger", "s3a"), ("gs://bucket/ledger", "gs")):
        line = rf"^Spark has no connector for {scheme}://: start with spark-submit and its package"
        with pytest.raises(ConfigurationError, match=line), clear_errors():
            read_records(spark, url, found).count()


def test_spark_gets_names_as_it_has_them() -> None:
    for url, root, before in (
        ("/var/ledger", "/var/ledger", "file://"),
        ("s3://bucket/ledger?region=eu-west-1", "bucket/ledger", "s3a://"),
        ("gs://bucket/a%20ledger/", "bucket/a ledger", "gs://"),
        ("hdfs://ledger/ledger", "/ledger", "hdfs://ledger"),
        ("hdfs://name:8020/ledger", "/ledger", "hdfs://name:8020"),
    ):
        assert spark_prefix(url, root) == before
    with pytest.raises(ConfigurationError, match="stores of this kind are not supported: use s3, gs, hdfs"):
        spark_prefix("abfss://box@account.dfs.core.windows.net/ledger", "box/ledger")


@pytest.mark.parametrize(
    "command",
    ["run --input {0} --output s3://bucket/x", "stream --input {0} --output s3://bucket/x",
     "stream --input {0} --output {0}/live --checkpoint s3://bucket/x", "report --report s3://bucket/x",
     "plan --report s3://bucket/x --output plan.json", "advise --report s3://bucket/x"],
)  # fmt: skip
def test_results_are_on_a_disk(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["pipeline", *command.format(tmp_path).split()])
    assert result.exit_code == 2
    said = " ".join(result.output.replace("│", " ").split())
    assert "s3://bucket/x is a URL, and this must be a directory" in said
    assert list(tmp_path.iterdir()) == []
