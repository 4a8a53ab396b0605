"""The few lines that a forecast ends with."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from frigate.forecasting.result import Forecast
from frigate.forecasting.summary import STREET_LETTERS, busiest, change_table, largest_changes, total_line


def a_forecast(values: list[list[float]], *, quantity: str = "count", street: list[str] | None = None) -> Forecast:
    H, N = np.array(values).shape
    return Forecast(
        np.arange(N),
        np.full(N, 6.0),
        np.full(N, 49.0),
        300 * np.arange(H),
        np.array(values, np.float64),
        np.ones(N, bool),
        0,
        300,
        "UTC",
        quantity,
        "",
        street=np.array(street or [], np.str_),
    )


def test_counts_are_summed_and_an_absent_node_is_left_out() -> None:
    made = a_forecast([[1, 5, np.nan, 2], [3, 900, np.nan, 2]], street=["A", "B" * 50, "C", ""])
    assert " 913 vehicles" in total_line(made) and "10 min" in total_line(made)
    title, rows = busiest(made)
    assert [row["node"] for row in rows] == ["1", "0", "3"]
    assert rows[0]["vehicles"] == "905.0"
    assert len(rows[0]["street"]) == STREET_LETTERS and rows[1]["street"] == "A"
    assert "Busiest" in title


def test_streets_are_a_column_where_any_is_known() -> None:
    values = [[1.0, 2.0]]
    for street, shown in ((["A", "B"], "B A"), (["", "B"], "B "), (["", ""], "- -"), (None, "- -")):
        made = a_forecast(values, street=street)
        was = a_forecast([[9.0, 9.5]], street=street)
        for rows in (busiest(made)[1], change_table(made, was)[::-1]):
            assert " ".join(row.get("street", "-") for row in rows) == shown


def test_a_summary_of_speeds_has_the_mean_and_the_slowest() -> None:
    made = a_forecast([[30, 50, 10], [50, 50, 20]], quantity="speed")
    assert " 35" in total_line(made)
    title, rows = busiest(made)
    assert "Slowest" in title
    assert [(row["node"], row["speed"]) for row in rows] == [("2", "15.0"), ("0", "40.0"), ("1", "50.0")]
    assert busiest(replace(made, quantity="occupancy"))[1][0]["node"] == "1"


def test_changes_are_listed_the_largest_first_and_none_that_is_zero() -> None:
    was = a_forecast([[10, 20, 30, np.nan]])
    now = a_forecast([[12, 11, 30, np.nan]])
    rows = change_table(now, was)
    assert [(row["node"], row["before"], row["after"], row["change"]) for row in rows] == [
        ("1", "20.0", "11.0", "-9.0"),
        ("0", "10.0", "12.0", "+2.0"),
    ]
    assert " 53 " in total_line(now, was) and " 60)" in total_line(now, was)
    assert change_table(was, was) == []


def test_nodes_that_change_most_come_first_and_ties_in_order() -> None:
    before = np.array([1.0, 5.0, np.nan, 2.0, 7.0, 0.0])
    after = np.array([2.0, 2.0, 3.0, 1.0, 7.0, np.nan])
    assert largest_changes(before, after, count=9) == [1, 0, 3]
    assert largest_changes(before, after, count=2) == [1, 0]
