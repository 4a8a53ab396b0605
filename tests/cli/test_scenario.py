"""frigate scenario, as typed."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import fastexcel
import pytest

from tests.support.command_line import assert_refused, frigate
from tests.support.map_page import MapFile
from tests.support.service import Town, train_town

PLAN = """
begin = "2024-03-05T07:00"
end = "2024-03-05T09:00"
[[scenario]]
name = "=Works"
change = [{{ close = ["{road}"], begin = "08:00" }}]
[[scenario]]
name = "All day"
change = [{{ close = ["{road}"] }}]
"""


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Town:
    return train_town(tmp_path_factory.mktemp("town"))


@pytest.fixture
def here(town: Town, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    network = town.city.network
    road = ",".join(str(network.node_ids[end[0]]) for end in (network.senders, network.receivers))
    Path("plan.toml").write_text(PLAN.format(road=road))
    return tmp_path


def test_scenarios_as_a_page_a_table_sheets_and_words(here: Path, town: Town) -> None:
    files = [word for name in ("a.html", "a.csv", "a.xlsx") for word in ("-o", name)]
    said = frigate("scenario", town.folder / "run", "plan.toml", *files, "--device", "cpu")
    assert said.status == 0, said.err
    assert all(len(line) <= 80 for line in said.out.splitlines() if "  " in line)
    assert "=Works" in said.out and "a.xlsx" in said.out
    found = json.loads(frigate("scenario", town.folder / "run", "plan.toml", "--json", "--device", "cpu").out)
    first, second = found["scenarios"]
    assert (found["steps"], first["scenario"], second["scenario"]) == (8, "=Works", "All day")
    rows = list(csv.DictReader(Path("a.csv").read_text(encoding="utf-8").splitlines()))
    moved = [float(row["value"]) for row in rows if row["what"] == "moved"]
    assert moved == [pytest.approx(each["moved"]) for each in (first, second)]
    assert rows[0]["scenario"] == "'=Works"  # no formula
    book = fastexcel.read_excel("a.xlsx")
    assert book.sheet_names == ["scenarios", "streets"]
    sheet = book.load_sheet("scenarios").to_polars()
    assert sheet["scenario"].to_list() == ["=Works", "All day"]
    assert sheet["moved"].to_list() == pytest.approx(moved)
    page = MapFile(Path("a.html"))
    assert [layer["title"] for layer in page.meta["layers"]] == [
        "=Works: change",
        "=Works: traffic",
        "All day: change",
        "All day: traffic",
        "No change",
    ]
    (planned,) = page.rows("after-1", "planned")
    traffic = page.values("after-0", "roads")[:, planned]
    assert (traffic[:4] == page.values("base", "roads")[:4, planned]).all() and (traffic[4:] == 0).all()
    assert (page.values("after-1", "roads")[:, planned] == 0).all()
    assert "Compared with no change" in page.said("scenarios")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("nowhere.toml", ("nowhere.toml",)),
        ("plan.toml -o a.pdf", ("a.pdf", ".html, .csv, .xlsx")),
        ("wrong.toml", ('scenario "A"', "--close", "Nowhere")),
    ],
)
def test_mistakes_are_a_line(here: Path, town: Town, words: str, named: tuple[str, ...]) -> None:
    Path("wrong.toml").write_text('[[scenario]]\nname = "A"\nchange = [{ close = "Nowhere" }]')
    assert_refused(frigate("scenario", town.folder / "run", *words.split()), *named)
