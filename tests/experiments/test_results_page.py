"""The page over all experiments: complete in one file, true to the numbers, and safe whatever the files hold."""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frigate.experiments import named, plots, render
from frigate.experiments.page import MAX_OPEN, write_page
from frigate.experiments.plan import Plan
from frigate.experiments.runner import reproduce
from frigate.experiments.table import Cell, ResultTable
from tests.support.forecast_runs import small_city
from tests.support.html_page import Page

ODD = '</style><script>alert(1)</script> & "Co" \x00\ud800'
COLUMNS = {
    "model": "forecaster",
    "kind": "ours, baseline, naive, yardstick",
    "mae": "mean absolute error, vehicles in 5 min",
    "mae_low": "95 % interval",
    "mae_high": "95 % interval",
    "mae_spread": "over seeds",
}
ABOUT = {
    "city": "Brackwater",
    "command": "frigate reproduce accuracy Brackwater -o results",
    "hardware": "A fast one",
    "device": "cuda",
    "versions": {"torch": "2.11.0"},
    "seeds": [0, 1],
    "seen": 0.3,
    "settings": {"width": 64},
    "seconds": 3725.0,
}


def put(results: Path, rows: Sequence[dict[str, Cell]], name: str = "accuracy", **changes: Any) -> ResultTable:
    given = {"title": f"The {name}", "columns": COLUMNS, "notes": ["Mind the gap."], "more": ABOUT, **changes}
    table = ResultTable(name, rows=rows, **given)
    (results / f"{name}.json").write_text(json.dumps(table.to_json()), encoding="utf-8")  # NaN and all
    (results / f"{name}.csv").write_text(table.to_csv(), encoding="utf-8", errors="replace")
    return table


def scores(*maes: float | None, kind: str = "baseline") -> list[dict[str, Cell]]:
    return [
        {
            "model": f"M{at}",
            "kind": kind,
            "mae": mae,
            "mae_low": mae and mae - 0.1,
            "mae_high": mae and mae + 0.1,
            "mae_spread": 0.01 * at,
        }
        for at, mae in enumerate(maes)
    ]


def plot(results: Path, name: str) -> None:
    def draw() -> plots.Figure:
        figure, (ax,) = plots.figure()
        plots.bars(ax, ["DCRNN"], [1.5])
        return figure

    plots.save(draw, results / name)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    results = tmp_path_factory.mktemp("results")
    yardstick: dict[str, Cell] = {"model": "own", "kind": "yardstick", "mae": 1.0, "mae_low": 0.9, "mae_high": 1.1}
    put(results, [*scores(3.14159, 2.71828, None), yardstick])
    put(results, scores(1.5, 2.5), "horizon")
    for name in ("accuracy", "horizon"):
        plot(results, name)
    assert write_page(results, order=["horizon", "accuracy"]) == results / "report.html"
    return Page(results / "report.html")


def test_nothing_is_fetched(page: Page) -> None:
    assert not re.search(r"https?://|//\w+\.|url\(|@import", page.raw)
    assert not {tag for tag, _ in page.tags} & {"script", "link", "iframe", "object", "embed", "base", "image", "use"}
    assert all(source.startswith("data:image/svg+xml;base64,") for source in page.having("src"))
    assert all(re.fullmatch(r"#[\w-]+|[\w-]+\.(csv|json|png|svg)", link) for link in page.having("href"))


def test_links_lead_somewhere_and_ids_are_unique(page: Page) -> None:
    ids = page.having("id")
    assert len(ids) == len(set(ids))
    inner = [link[1:] for link in page.having("href") if link.startswith("#")]
    assert inner == ids == ["horizon", "accuracy"]
    outer = {link for link in page.having("href") if not link.startswith("#")}
    assert outer == {f"{name}.{kind}" for name in ids for kind in ("csv", "json", "png", "svg")}


def test_the_figures_are_the_drawings(page: Page) -> None:
    sources = page.having("src")
    assert len(sources) == 2
    assert all(b"</svg>" in base64.b64decode(source.partition(",")[2]) for source in sources)
    assert page.having("alt") == ["Plot: The horizon", "Plot: The accuracy"]


def test_numbers_words_and_origin_are_there(page: Page) -> None:
    for words in (
        "3.14",
        "[3.04, 3.24]",
        "2.72",
        "Mind the gap.",
        "mean absolute error, vehicles in 5 min",
        "A fast one",
        "cuda",
        "torch 2.11.0",
        "0, 1",
        "30 % of the nodes",
        "3,725 (1 h 2 min)",
        str(ABOUT["command"]),
        '"width": 64',
        "Brackwater: all experiments",
    ):
        assert words in page.text
    assert "mean absolute error, vehicles in 5 min" in page.having("title")
    assert "mae_low" not in page.text


def test_the_least_error_is_bold_but_no_yardstick(page: Page) -> None:
    assert page.best() == ["1.50", "2.72"]
    assert ("", "1.00") in page.cells


def test_light_and_dark_and_phones(page: Page) -> None:
    assert "prefers-color-scheme: dark" in page.raw
    assert "width=device-width" in page.raw


def shown(tmp_path: Path, rows: Sequence[dict[str, Cell]], **changes: Any) -> Page:
    put(tmp_path, rows, **changes)
    return Page(write_page(tmp_path))


def test_scores_that_print_the_same_are_equally_good(tmp_path: Path) -> None:
    assert shown(tmp_path, scores(2.001, 2.002, 2.5)).best() == ["2.00", "2.00"]


def test_nobody_wins_alone_or_with_a_wide_spread(tmp_path: Path) -> None:
    assert shown(tmp_path, scores(2.0)).best() == []
    assert shown(tmp_path, scores(None, None)).best() == []


def test_models_compete_under_the_same_circumstances(tmp_path: Path) -> None:
    columns = {"model": "", "seen": "per cent", "step": "ahead", "mae": ""}
    maes = {("A", 10.0): 5.5, ("A", 90.0): 2.5, ("B", 10.0): 4.5, ("B", 90.0): 3.5}
    rows: list[dict[str, Cell]] = [
        {"model": model, "seen": seen, "step": None, "mae": mae} for (model, seen), mae in maes.items()
    ]
    assert shown(tmp_path, rows, columns=columns).best() == ["2.50", "4.50"]
    alone: list[dict[str, Cell]] = [{**row, "model": "A", "seen": 10 * at} for at, row in enumerate(rows)]
    assert shown(tmp_path, alone, columns=columns).best() == ["2.50"]


def test_a_plain_low_and_high_belong_to_the_column_before(tmp_path: Path) -> None:
    columns = {"choice": "", "distortion": "", "low": "", "high": ""}
    page = shown(tmp_path, [{"choice": "random", "distortion": 2.5, "low": 1.5, "high": None}], columns=columns)
    assert "[1.50, –]" in page.text
    assert [words for _, words in page.cells] == ["choice", "distortion", "random", "2.50"]


def test_without_a_drawing_it_says_so(tmp_path: Path) -> None:
    page = shown(tmp_path, scores(1.5, 2.5))
    assert "No plot: matplotlib was not installed" in page.text
    assert "frigate-forecast[reproduce]" in page.text
    assert page.having("src") == []
    assert "1.50" in page.best()


def test_a_long_table_is_folded(tmp_path: Path) -> None:
    assert "Table (" not in shown(tmp_path, scores(*[1.5] * MAX_OPEN)).text
    assert f"Table ({MAX_OPEN + 1} rows)" in shown(tmp_path, scores(*[1.5] * (MAX_OPEN + 1))).text


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"[]",
        b"3",
        b"null",
        b"\xff\xfe",
        b"{}",
        b"[" * 100_000,
        b'{"experiment": 1, "title": 1, "rows": 3, "columns": {}, "notes": []}',
        b'{"experiment": 1, "title": 1, "rows": [3], "columns": {}, "notes": []}',
        b'{"experiment": 1, "title": 1, "rows": [{"a": [3]}], "columns": {}, "notes": []}',
        b'{"experiment": 1, "title": 1, "rows": [], "columns": [], "notes": []}',
    ],
)
def test_a_damaged_file_is_named_and_the_others_stand(damage: bytes, tmp_path: Path) -> None:
    put(tmp_path, scores(1.5, 2.5))
    (tmp_path / "layers.json").write_bytes(damage)
    (tmp_path / "folder.json").mkdir()
    page = Page(write_page(tmp_path))
    assert "layers.json cannot be read: " in page.text
    assert "frigate reproduce layers" in page.text
    assert "folder.json cannot be read: " in page.text
    assert str(tmp_path) not in page.raw
    assert page.best() == ["1.50"]


def test_everything_is_escaped(tmp_path: Path) -> None:
    more = dict.fromkeys((*ABOUT, "effort", "unit"), ODD)
    rows: list[dict[str, Cell]] = [{"model": ODD, "kind": ODD, ODD: ODD}]
    columns = {"model": ODD, "kind": ODD, ODD: ODD}
    put(tmp_path, rows, title=ODD, columns=columns, notes=[ODD], more=more)
    (tmp_path / 'a"><i>.json').write_text(json.dumps({"<b>": 1}))
    page = Page(write_page(tmp_path))
    assert not {tag for tag, _ in page.tags} & {"script", "i", "b"}
    assert page.raw.count("</style>") == 1
    assert page.text.count("alert(1)") >= 10
    ids = page.having("id")
    assert [link[1:] for link in page.having("href") if link.startswith("#")] == ids
    assert not any(re.search(r"\s", each) for each in ids)


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from([*COLUMNS]),
            st.none() | st.booleans() | st.text("a<é\0", max_size=3) | st.floats() | st.integers(-(10**400), 10**400),
        ),
        max_size=5,
    )
)
def test_any_cells_make_a_page(tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Cell]]) -> None:
    page = shown(tmp_path_factory.mktemp("any"), rows)
    assert sum(tag == "tr" for tag, _ in page.tags) == (len(rows) + 1 if rows else 0)


def test_experiments_without_a_place_come_last(tmp_path: Path) -> None:
    for name in ("b", "a", "last", "first"):
        put(tmp_path, scores(1.5), name)
    assert Page(write_page(tmp_path, order=["first", "absent", "last"])).having("id") == ["first", "last", "a", "b"]


def test_no_results_make_a_page_that_says_so(tmp_path: Path) -> None:
    assert "No results yet." in Page(write_page(tmp_path / "none")).text


@pytest.mark.parametrize("package", ["jinja2", "matplotlib"])
def test_experiments_are_done_without_what_draws_them(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    render._environment.cache_clear()
    said: list[str] = []
    done = reproduce(named("datasets"), Plan(small_city(), tmp_path, device="cpu"), say=said.append)
    assert sum(f"{package} is not installed. Run: pip install" in line for line in said) == 1
    assert (tmp_path / "datasets.csv").exists()
    assert (done.page is None) == (package == "jinja2")
    assert (tmp_path / "report.html").exists() == (package != "jinja2")
    render._environment.cache_clear()
