"""What a notebook shows of a city, a run, a forecast, an evaluation and demand: small HTML, safe with foreign names."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pandas as pd
import pytest

import frigate as fg
from frigate.errors import MissingExtraError
from frigate.evaluation.metrics import Measure
from frigate.notebook import MAX_HEIGHT_PX, MAX_SHAPES, WIDTH_PX, card, sketch, table
from tests.support.errors import raises
from tests.support.forecast_runs import forecast, small_city, small_run

EVIL = '<script>alert("1")</script>&\u202e'
VOID = {"path"}  # closed in itself


class Page(HTMLParser):
    """Reads HTML strictly: tags must match. Collects the tags and the text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not any(name.startswith("on") or name in ("href", "src") for name, _ in attrs)
        self.tags.append(tag)
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@cache
def evaluation() -> fg.Evaluation:
    return fg.evaluate(small_run(), small_city(), stride=3, device="cpu")


def shown() -> dict[str, Any]:
    city = replace(small_city(), name=EVIL)
    run = small_run()
    made = replace(forecast(run), street=np.full(city.network.num_nodes, EVIL), notices=(EVIL,))
    return {
        "city": city,
        "run": replace(run, trained_on=replace(run.trained_on, name=EVIL)),
        "forecast": made,
        "evaluation": replace(evaluation(), note=EVIL),
    }


@pytest.mark.parametrize("kind", ["city", "run", "forecast", "evaluation"])
def test_a_foreign_name_is_shown_as_text(kind: str) -> None:
    page = Page(shown()[kind]._repr_html_())
    assert set(page.tags) <= {"div", "b", "table", "caption", "thead", "tbody", "tr", "th", "td", "svg", "path"}
    assert any('<script>alert("1")</script>&\\u202e' in text for text in page.text)


def test_each_object_shows_its_figures() -> None:
    text = {kind: " ".join(Page(each._repr_html_()).text) for kind, each in shown().items()}
    assert "25 nodes" in text["city"] and "snapshots" in text["city"]
    assert "default" in text["run"] and "3 steps of 1 h" in text["run"] and "epoch" in text["run"]
    assert "Total over" in text["forecast"] and "Busiest nodes" in text["forecast"]
    assert "demand alone" in text["evaluation"] or "zero" in text["evaluation"]
    assert "MAE" in text["evaluation"] and evaluation().model.name in text["evaluation"]


def test_demand_shows_its_roads_and_its_fit() -> None:
    demand = fg.estimate_demand(small_city())
    page = Page(demand._repr_html_())
    assert "svg" in page.tags and "mean error at the sensors" in page.text
    assert "25 nodes" in repr(demand) and len(repr(demand)) < 250


def test_a_city_without_roads_or_readings_shows_itself() -> None:
    nowhere = fg.RoadNetwork(
        np.array([1]), np.array([6.1]), np.array([49.6]), small_city().network.edges.take(np.arange(0))
    )
    city = fg.City("one", fg.make_stream(np.zeros((0, 1)), nowhere, start_s=0, step_s=300))
    page = Page(city._repr_html_())
    assert "svg" not in page.tags and "no readings" in page.text


def test_a_map_has_each_street_once_and_each_sensor() -> None:
    network = small_city().network
    drawn = sketch(network.lon, network.lat, network.senders, network.receivers, np.arange(25) < 3)
    both_ways = {frozenset(ends) for ends in zip(network.senders.tolist(), network.receivers.tolist(), strict=True)}
    assert drawn.count("L") == len(both_ways) and drawn.count("h0") == 3


def test_a_map_of_a_large_network_stays_small() -> None:
    rng = np.random.default_rng(0)
    N, E = 100_000, 200_000
    lon = 6 + rng.random(N)
    lat = 49 + rng.random(N)
    senders, receivers = rng.integers(0, N, (2, E))
    drawn = sketch(lon, lat, senders, receivers, np.ones(N, bool))
    assert 0 < drawn.count("L") <= MAX_SHAPES and 0 < drawn.count("h0") <= MAX_SHAPES
    numbers = [float(word) for word in drawn.split('d="M')[1].split('"')[0].replace("L", " ").replace("M", " ").split()]
    assert min(numbers) >= 0 and max(numbers) <= max(WIDTH_PX, MAX_HEIGHT_PX) + 300  # the last cell may reach over


def test_a_table_and_a_card_escape_headings_too() -> None:
    assert EVIL not in table([{EVIL: EVIL}], EVIL) + card(EVIL, {EVIL: EVIL})
    assert table([]) == ""


@pytest.mark.parametrize(
    ("measure", "text"),
    [
        (Measure(2.77, 2.41, 3.12), "2.77 [2.4, 3.1]"),
        (Measure(1.8, 1.78, 1.82), "1.800 [1.78, 1.82]"),
        (Measure(2.8, 2.26, 3.27), "2.80 [2.3, 3.3]"),
        (Measure(230.2, 224.4, 236.1), "230.2 [224, 236]"),
        (Measure(-0.5, -0.76, -0.24), "-0.50 [-0.8, -0.2]"),
        (Measure(2.0, float("nan"), float("nan")), "2.00"),
        (Measure(2.0, 2.0, 2.0), "2.00"),
        (Measure(float("nan"), float("nan"), float("nan")), "undefined"),
    ],
)
def test_an_error_is_printed_with_its_interval(measure: Measure, text: str) -> None:
    assert str(measure) == f"{measure}" == text


# pandas


def test_the_pandas_frame_is_the_polars_one() -> None:
    made = forecast(small_run(), small_city().network.remove_nodes([12]))
    frame = made.to_pandas()
    other = made.to_frame()
    assert list(frame.columns) == other.columns
    assert str(frame["time"].dt.tz) == "UTC" and frame["time"].tolist() == [pd.Timestamp(t) for t in other["time"]]
    assert frame["value"].isna().sum() == other["value"].null_count() == 3
    for name in set(other.columns) - {"time", "value", "moved_m"}:
        assert frame[name].tolist() == other[name].to_list()
    np.testing.assert_array_equal(frame["value"], other["value"].to_numpy())


def test_without_pandas_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)  # as Python marks a module that cannot be imported
    with raises(MissingExtraError, "pandas", "pip install pandas"):
        forecast(small_run()).to_pandas()


def test_a_pandas_frame_needs_neither_polars_nor_pyarrow() -> None:
    code = """
import sys
sys.modules["polars"] = sys.modules["pyarrow"] = None
from tests.support.forecast_runs import START_S
import numpy as np
from frigate.forecasting.result import Forecast
ids = np.array([1, 2])
made = Forecast(ids, ids / 10, ids / 10, START_S + np.arange(3) * 300, np.ones((3, 2)), ids > 1, START_S, 300, "UTC",
                "count", "")
assert len(made.to_pandas()) == 6
"""
    subprocess.run([sys.executable, "-c", code], check=True)
