"""Names with escape sequences, markup and formulas: shown as what they are, written so that nothing runs them."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frigate.city.folder import read_city, write_city
from frigate.cli import console
from frigate.forecasting.result import Forecast
from frigate.sources.tables.importer import import_tables
from frigate.text import FORMULA, NUMBER, no_formula, printable, printable_json, without_formulas
from tests.support.command_line import frigate

RISKY = ["=1+1", "+x", "-A", "@SUM(A1)", "'=q", "''-z", "-", "=", "\tz", "+49 621", "-5x", "-1e5e"]
HARMLESS = ["A1", "-5", "+5", "-0.25", "1e-5", "-.5", "'quoted", "a=b", "", "é"]
EVIL = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202eRue\x7f\r"


def runs(cell: str) -> bool:
    """Whether a spreadsheet would take a cell for a formula."""
    return cell[:1] in tuple("=+-@\t\r") and not re.match(NUMBER, cell)


def cells_of(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline="")))


@pytest.mark.parametrize("cell", RISKY)
def test_a_formula_is_written_as_text(cell: str) -> None:
    assert no_formula(cell) == f"'{cell}" and re.match(FORMULA, cell)


@pytest.mark.parametrize("cell", HARMLESS)
def test_anything_else_is_written_as_it_is(cell: str) -> None:
    assert no_formula(cell) == cell


@given(st.lists(st.text(), min_size=1))
def test_tables_are_written_alike_and_nothing_in_them_runs(cells: list[str]) -> None:
    wanted = [no_formula(cell) for cell in cells]
    assert without_formulas(pl.DataFrame({"a": cells, "n": [1] * len(cells)}))["a"].to_list() == wanted
    assert not any(runs(cell) for cell in wanted)


def test_a_city_with_formulas_for_ids_comes_back_as_it_was(tmp_path: Path) -> None:
    ids = [name for name in (*RISKY, *HARMLESS) if name]
    (tmp_path / "city.toml").write_text('step = "5min"\n')
    nodes = pl.DataFrame({"node_id": ids, "lon": np.linspace(6, 7, len(ids)), "lat": [49.6] * len(ids)})
    nodes.write_parquet(tmp_path / "nodes.parquet")
    edges = pl.DataFrame(
        {"source": ids, "target": [*ids[1:], ids[0]], "name": ids, "road_class": ["=class"] * len(ids)}
    )
    edges.write_parquet(tmp_path / "edges.parquet")
    times = ["2024-01-01T00:00Z"] * len(ids)
    readings = pl.DataFrame({"time": times, "node_id": ids, "value": range(len(ids))})
    readings.write_parquet(tmp_path / "readings.parquet")
    city = read_city(tmp_path)
    write_city(city, tmp_path / "again", csv=True)
    for path in (tmp_path / "again").glob("*.csv"):
        assert not any(runs(cell) for row in cells_of(path.read_text()) for cell in row), path.name
    again = read_city(tmp_path / "again")
    assert again.stream.node_ids.tolist() == ids
    assert again.network.edges.name.tolist() == city.network.edges.name.tolist()
    assert set(again.network.edges.road_class) == {"=class"}
    np.testing.assert_array_equal(again.stream.values, city.stream.values)


def test_a_report_of_rejected_rows_holds_no_formula(tmp_path: Path) -> None:
    (tmp_path / "nodes.csv").write_text("node_id,lon,lat\nA,6.1,49.6\nB,6.11,49.6\nC,=HYPERLINK(1),49.6\n")
    (tmp_path / "edges.csv").write_text("source,target\nA,B\nB,A\n")
    import_tables(nodes=tmp_path / "nodes.csv", edges=tmp_path / "edges.csv", report=tmp_path / "report.csv")
    assert cells_of((tmp_path / "report.csv").read_text())[1][3] == "'=HYPERLINK(1)"


def test_a_forecast_holds_no_formula(tmp_path: Path) -> None:
    place = np.zeros(2)
    sensor = np.array([True, False])
    ids = np.array(["=1+1", "-5"])
    streets = np.array(["@street", "Rue"])
    times_s = np.array([1_704_067_200])
    values = np.array([[1.0, -2.0]])
    made = Forecast(ids, place, place, times_s, values, sensor, 0, 300, "UTC", "speed", "", street=streets)
    made.write(tmp_path / "ahead.csv")
    rows = [row[:4] for row in cells_of((tmp_path / "ahead.csv").read_text())[1:]]
    assert rows == [["'=1+1", "0.0", "0.0", "'@street"], ["-5", "0.0", "0.0", "Rue"]]


# Terminals


def test_control_characters_are_written_out() -> None:
    assert printable(EVIL) == "\\x1b[2J\\x1b]0;owned\\x07\\x9b31m\\u202eRue\\x7f\\x0d"
    assert printable("Rue à l'Eau\t😀\n") == "Rue à l'Eau\t😀\n"


@given(st.text())
def test_json_for_a_terminal_is_the_same_data(text: str) -> None:
    shown = printable_json(json.dumps({"name": text}, ensure_ascii=False))
    assert json.loads(shown) == {"name": text} and shown == printable(shown)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_names_cannot_write_on_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    name = f"{EVIL} [red]:bomb:[/red]"
    for stream in (Terminal(), io.StringIO()):
        monkeypatch.setattr("sys.stdout", stream)
        monkeypatch.setattr("sys.stderr", stream)
        console.say(name)
        console.log(name)
        console.notice(name)
        console.complain(name)
        console.print_json({"name": name})
        console.print_table([{"street": name, "cars": "1"}])
        with console.status(name), console.progress(name) as update:
            update(1, 2, name)
        shown = stream.getvalue()
        for bad in ("\x1b]", "\x1b[2J", "\x07", "\x9b", "\u202e", "💣"):
            assert bad not in shown, bad
        assert "[red]:bomb:[/red]" in shown


def test_check_shows_what_a_name_is(tmp_path: Path) -> None:
    (tmp_path / "city.toml").write_text('step = "5min"\nname = "\\u001b[2Jtown :bomb:"\n')
    (tmp_path / "nodes.csv").write_text(f"node_id,lon,lat\n{EVIL[:-1]},6.1,49.6\nB,6.11,49.6\nC,6.2,49.6\n")
    (tmp_path / "edges.csv").write_text(f"source,target\n{EVIL[:-1]},B\nB,{EVIL[:-1]}\n")
    (tmp_path / "readings.csv").write_text(f"time,node_id,value\n2024-01-01T00:00Z,{EVIL[:-1]},0\n")
    for more in ([], ["--json"]):
        said = frigate("check", tmp_path, *more)
        assert said.status == 0 and "\x1b" not in said.out + said.err and "\x9b" not in said.out + said.err
