"""The few lines that a forecast ends with."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from frigate.forecasting.result import Forecast
from frigate.forecasting.summary import STREET_LETTERS, busiest, largest_changes, total_line


def a_forecast(values: list[list[float]], *, quantity: str = "count", street: list[str] | None = None) -> Forecast:
    H, N = np.array(values).shape
    return Forecast(
        np.arange(N), np.full(N, 6.0), np.full(N, 49.0), 300 * np.arange(H), np.array(values, np.float64),
        np.ones(N, bool), 0, 300, "UTC", quantity, "", street=np.array(street or [], np.str_),
    )  # fmt: skip


def test_counts_are_summed_and_an_absent_node_is_left_out() -> None:
    made = a_forecast([[1, 5, np.nan, 2], [3, 900, np.nan, 2]], street=["A", "B" * 50, "C", ""])
    assert " 913 vehicles" in total_line(made) and "10 min" in total_line(made)
    title, rows = busiest(made)
    assert [row["node"] for row in rows] == ["1", "0", "3"]
    assert rows[0]["vehicles"] == "905.0"
    assert len(rows[0]["street"]) == STREET_LETTERS and rows[1]["street"] == "A"
    assert "Busiest" in title


def test_of_speeds_the_mean_is_told_and_the_slowest_are_listed() -> None:
    made = a_forecast([[30, 50, 10], [50, 50, 20]], quantity="speed")
    assert " 35" in total_line(made)
    title, rows = busiest(made)
    assert "Slowest" in title
    assert [(row["node"], row["speed"]) for row in rows] == [("2", "15.0"), ("0", "40.0"), ("1", "50.0")]
    assert busiest(replace(made, quantity="occupancy"))[1][0]["node"] == "1"


def test_changes_are_listed_the_largest_first_and_none_that_is_zero() -> None:
    was, now = a_forecast([[10, 20, 30, np.nan]]), a_forecast([[12, 11, 30, np.nan]])
    rows = largest_changes(now, was)
    assert [(row["node"], row["before"], row["after"], row["change"]) for row in rows] == [
        ("1", "20.0", "11.0", "-9.0"),
        ("0", "10.0", "12.0", "+2.0"),
    ]
    assert " 53 " in total_line(now, was) and " 60)" in total_line(now, was)
    assert largest_changes(was, was) == []
