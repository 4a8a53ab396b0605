"""The pages of `frigate demand` in a real browser."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from frigate.city.city import City
from frigate.city.stream import make_stream
from frigate.demand.estimate import Demand
from frigate.demand.flows import trips_through
from frigate.demand.settings import DemandSettings
from frigate.demand.trip_model import estimate_demand
from frigate.pages.demand_page import write_flows
from frigate.roads.on_roads import on_roads
from frigate.simulate.demo_city import demo_city
from tests.support.browser import PHONE, faults, open_page, wait_drawn

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

HOUR = 17


@dataclass(frozen=True)
class Flows:
    """A demand, its page, and that of the trips through its busiest road."""

    demand: Demand
    row: int
    flows: str
    through: str

    @property
    def ends(self) -> tuple[str, str]:
        network = self.demand.network
        source, target = (str(network.node_ids[end[self.row]]) for end in (network.senders, network.receivers))
        return source, target


@pytest.fixture(scope="module")
def town(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Flows:
    folder: Path = tmp_path_factory.mktemp("flows")
    made = demo_city(seed=3, intersections=100, days=2, step_s=3600, closures=0)
    values = np.where(np.random.default_rng(0).random(100) < 0.33, made.stream.values, np.nan)
    stream = make_stream(
        values,
        made.network,
        start_s=made.stream.start_s,
        step_s=3600,
        quantity="count",
        unit="vehicles",
        timezone=made.stream.timezone,
    )
    city = City("Ville <b>", stream)
    demand = estimate_demand(city, settings=DemandSettings(sets=2))
    row = int(demand.road_flow[HOUR].argmax())
    found = Flows(demand, row, "", "")
    through = trips_through(demand, found.ends)
    pages = [
        write_flows(folder / "flows.html", demand, city),
        write_flows(folder / "through.html", demand, city, through=through),
    ]
    return Flows(demand, row, *(page.as_uri() for page in pages))


def value(page: Page) -> float:
    """The large number of the panel."""
    return float(page.locator("#panel .value b").inner_text().replace(",", ""))


def open_road(page: Page, source: str, target: str) -> None:
    wait_drawn(page)
    page.keyboard.press("/")
    page.keyboard.type(source)
    page.keyboard.press("Enter")
    page.locator("#panel details summary").click()
    page.get_by_role("button", name=re.compile(f"{source} → {target}$")).click()
    page.get_by_text("Flow on this road").wait_for()


def test_the_slider_goes_through_the_hours_of_both_kinds_of_day(browser: Browser, town: Flows) -> None:
    with open_page(browser, town.flows) as page:
        wait_drawn(page, f"flow {HOUR}")
        assert page.title() == "Ville <b>: who drives where"
        clock = page.locator(".clock")
        assert clock.inner_text() == "weekday, 17:00 to 18:00"
        shown = page.locator(".map canvas").screenshot()
        slider = page.locator("input[type=range]")
        slider.focus()
        page.keyboard.press("Home")
        wait_drawn(page, "flow 0")
        assert page.locator(".map canvas").screenshot() != shown
        page.get_by_label("weekend").check()
        wait_drawn(page, "flow 24")
        assert slider.get_attribute("aria-valuetext") == clock.inner_text() == "weekend, 00:00 to 01:00"
        slider.focus()
        page.keyboard.press("End")
        wait_drawn(page, "flow 47")
        page.keyboard.press("Space")
        wait_drawn(page, "flow 25")
        page.get_by_role("button", name="Pause").click()
        legend = page.locator(".legend").inner_text()
        assert all(words in legend for words in ("vehicles per hour", "estimate at sensors", "too high", "too low"))
        assert faults(page) == []


def test_a_road_tells_its_day_and_how_far_route_sets_differ(browser: Browser, town: Flows) -> None:
    with open_page(browser, town.flows) as page:
        open_road(page, *town.ends)
        expected = float(town.demand.road_flow[HOUR, town.row])
        assert value(page) == pytest.approx(expected, rel=1e-2)
        assert "Route sets differ" in page.locator("#panel").inner_text()
        assert page.locator("#panel svg .line").count() == 2 and page.locator("#panel svg .mark").count() == 1
        assert page.locator("body").get_attribute("data-spots") == "0"
        page.get_by_label("weekend").check()
        wait_drawn(page, f"flow {HOUR + 24}")
        assert value(page) == pytest.approx(float(town.demand.road_flow[HOUR + 24, town.row]), rel=1e-2)


def test_a_sensor_is_compared_with_its_estimate(browser: Browser, town: Flows) -> None:
    with open_page(browser, town.flows, dark=True) as page:
        wait_drawn(page)
        page.get_by_role("tab", name="Sensors").click()
        page.get_by_role("button", name="Show all sensors").click()
        wait_drawn(page, f"fit {HOUR}")
        page.locator("#panel .table .link").first.click()
        page.get_by_text("Counted and estimated, weekday").wait_for()
        name = page.locator("#panel h2").inner_text().split()[-1]
        row = town.demand.network.row_of(name)
        said = page.locator("#panel").inner_text()
        counted, estimated = (of[HOUR, row] for of in (town.demand.usual_counts, town.demand.node_flow))
        numbers = re.search(r"([\d.,]+) counted, ([\d.,]+) estimated, \d+\s% (more|less)", said)
        assert numbers is not None
        assert float(numbers[1].replace(",", "")) == pytest.approx(counted, rel=1e-2)
        assert float(numbers[2].replace(",", "")) == pytest.approx(estimated, rel=1e-2)
        assert (numbers[3] == "more") == (estimated >= counted)
        assert faults(page) == []


def test_the_trips_through_a_road_are_shown_at_once(browser: Browser, town: Flows) -> None:
    with open_page(browser, town.through) as page:
        wait_drawn(page, f"through {HOUR}")
        panel = page.locator("#panel")
        page.get_by_text("The largest of").wait_for()
        through = trips_through(town.demand, town.ends)
        network = town.demand.network
        begin = set(network.senders[through.starting > 0].tolist())
        end = set(network.receivers[through.ending > 0].tolist())
        assert page.locator("body").get_attribute("data-spots") == str(len(begin) + len(end))
        assert f"{len(through.movements):,} movements" in panel.inner_text()
        assert panel.locator(".table tbody tr").count() == 10
        assert "trips begin" in page.locator(".legend").inner_text()
        with_spots = page.locator(".map canvas").screenshot()
        page.get_by_role("tab", name="Flows").click()
        assert page.locator("body").get_attribute("data-spots") == "0"
        assert f"{through.vehicles_per_day:,.0f} vehicles a day" in panel.inner_text()
        page.locator("select").select_option("flow")
        wait_drawn(page, f"flow {HOUR}")
        assert page.locator(".map canvas").screenshot() != with_spots
        open_road(page, *reversed(town.ends))
        assert "Trips through here" not in panel.inner_text()  # the file has those of one road
        assert faults(page) == []


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_shows_it_all(browser: Browser, town: Flows, dark: bool) -> None:
    with open_page(browser, town.through, size=PHONE, dark=dark, touch=True) as page:
        wait_drawn(page)
        for name in ("Flows", "Place", "Sensors"):
            page.get_by_role("tab", name=name).tap()
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            assert faults(page) == []


def test_a_city_on_roads_shows_the_flow_of_its_roads(browser: Browser, tmp_path: Path) -> None:
    made = demo_city(seed=3, intersections=100, days=2, step_s=3600, closures=0)
    line = on_roads(made)
    values = np.where(np.arange(line.num_nodes) % 3 == 0, made.stream.values[:, made.network.senders] / 3, np.nan)
    city = City("On roads", make_stream(values, line, start_s=made.stream.start_s, step_s=3600, quantity="count"))
    demand = estimate_demand(city, settings=DemandSettings(sets=2))
    row = int(demand.node_flow[HOUR].argmax())
    road = str(line.node_ids[row])
    url = write_flows(tmp_path / "roads.html", demand, city, through=trips_through(demand, road)).as_uri()
    with open_page(browser, url) as page:
        wait_drawn(page, f"through {HOUR}")
        page.locator("h2", has_text=f"Road {road}").wait_for()
        page.get_by_text("The largest of").wait_for()
        page.locator("select").select_option("flow")
        wait_drawn(page, f"flow {HOUR}")
        assert value(page) == pytest.approx(float(demand.node_flow[HOUR, row]), rel=1e-2)
        assert faults(page) == []
