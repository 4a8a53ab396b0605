"""Which claims of the paper hold: from the tables alone, and never more than they show."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from frigate.experiments import EXPERIMENTS
from frigate.experiments.page import write_page
from frigate.experiments.table import Cell, ResultTable, Row, read_table
from frigate.experiments.verdict import BASELINES, FAILS, HOLDS, IN_PART, JUDGES, OPEN, OURS, verdicts
from tests.support.html_page import Page

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "reproduce" / "sf-taxi-core"


def stored(name: str) -> ResultTable:
    table = read_table(RESULTS / f"{name}.json")
    assert isinstance(table, ResultTable)
    return table


def changed(name: str, change: Callable[[Row], Mapping[str, Cell]]) -> ResultTable:
    """A table of the results with some cells of each row changed."""
    table = stored(name)
    rows = [dict(row) | dict(change(dict(row))) for row in table.rows]
    return ResultTable(table.experiment, table.title, rows, table.columns, table.notes, table.more)


def answer(table: ResultTable) -> str:
    (verdict,) = verdicts([table])
    return verdict.holds


def scaled(row: Row, factor: float, *, of: tuple[str, ...] = ("mae",)) -> dict[str, Cell]:
    return {name: factor * float(row[name] or 0) for name in of}


def test_every_experiment_with_a_claim_is_judged() -> None:
    assert set(JUDGES) == {each.name for each in EXPERIMENTS} - {"datasets", "profile"}
    assert len(verdicts([stored(name) for name in JUDGES])) == len(JUDGES)


@pytest.mark.parametrize(("factor", "expected"), [(0.5, HOLDS), (1.0, IN_PART), (1.08, OPEN), (2.0, FAILS)])
def test_the_least_error_is_judged_by_the_closest_baseline(factor: float, expected: str) -> None:
    table = changed("accuracy", lambda row: scaled(row, factor) if row["model"] == OURS else {})
    assert answer(table) == expected


def test_a_small_difference_decides_nothing() -> None:
    near = changed("accuracy", lambda row: {"mae": 1.0 if row["model"] == OURS else 1.05})
    assert answer(near) == OPEN
    far = changed("accuracy", lambda row: {"mae": 1.0 if row["model"] == OURS else 1.2})
    assert answer(far) == HOLDS


def test_each_claim_can_fail() -> None:
    ours_worse = {
        name: changed(name, lambda row: scaled(row, 9) if row["model"] == OURS else {})
        for name in ("accuracy", "horizon")
    }
    never = [
        *ours_worse.values(),
        changed(
            "traffic-buckets",
            lambda row: {"mae": 1.0 if row["model"] in BASELINES else 9 - 8.5 * (row["traffic"] == "low")},
        ),
        changed("seen-sweep", lambda row: {"of_zero": 1.0 if row["model"] == OURS else 0.5}),
        changed("ablation", lambda row: {"more_percent": -9.0}),
        changed("layers", lambda row: {"mae": 1.0 / float(row["layers"] or 1) if row["layers"] != 1 else 0.01}),
        changed("topology", lambda row: {"more_percent": 50.0}),
        changed("irregular", lambda row: {"more_percent": 50.0}),
        changed("parameters", lambda row: {"parameters": 5, "of_paper_percent": 3.0}),
        changed("inference-time", lambda row: {"median_s": 1 / float(row["paper_s"] or 1)}),
        changed("expressivity", lambda row: {"equal": "yes" if row["equal"] == "no" else "no"}),
    ]
    assert {table.experiment: answer(table) for table in never} == {table.experiment: FAILS for table in never}
    assert answer(changed("ablation", lambda row: {"more_percent": 3.0})) == OPEN


def test_a_table_without_our_model_says_nothing() -> None:
    for name in ("accuracy", "horizon", "traffic-buckets", "seen-sweep", "topology", "irregular", "parameters"):
        table = stored(name)
        rows = [row for row in table.rows if row["model"] != OURS]
        assert verdicts([ResultTable(name, table.title, rows, table.columns)]) == []


def test_the_page_opens_with_the_verdict(tmp_path: Path) -> None:
    for name in ("accuracy", "irregular"):
        shutil.copy(RESULTS / f"{name}.json", tmp_path)
    page = Page(write_page(tmp_path))
    text = " ".join(page.text.split())
    assert "Of 2 claims of the paper tested here, 1 holds, 1 holds in part." in text
    assert text.index("Of 2 claims") < text.index("Accuracy at intersections")
    for words in ("claim", "paper", "verdict", "+1.0 % in Chengdu, +0.2 % in Harbin", "+0.6 %"):
        assert words in text
    assert "#irregular" in page.having("href")


def test_a_caption_names_the_city() -> None:
    assert stored("accuracy").caption == "Accuracy at intersections without a sensor: sf-taxi-core"
    assert stored("inference-time").caption == "Time to forecast all nodes once: sf-taxi-core"
    assert "sf-taxi" not in stored("expressivity").caption
