"""The page of `frigate check --html` in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from frigate.check.city import check_city
from frigate.city.city import City
from frigate.city.stream import make_stream
from frigate.pages.check_page import write_check_page
from frigate.roads.on_roads import on_roads
from tests.support.browser import PHONE, faults, open_page, wait_drawn
from tests.support.grids import grid_network, grid_stream
from tests.support.odd_cities import ODD_CITIES, spoilt

if TYPE_CHECKING:
    from playwright.sync_api import Browser

LAYERS = ["mean", "missing", "distance", "changes"]


def written(path: Path, city: City) -> str:
    return write_check_page(path, city, check_city(city)).as_uri()


@pytest.fixture(scope="module")
def checked(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A grid with broken sensors, and a road that closes for a time."""
    stream = spoilt(grid_stream())
    shut = stream.network.close([(100, 101)])
    network_of = np.zeros(stream.num_snapshots, np.int64)
    network_of[50:90] = 1
    city = City(
        "Ville <b>", replace(stream, networks=(stream.network, shut), network_of=network_of), ("A <i>row</i>.",)
    )
    return written(tmp_path_factory.mktemp("check") / "check.html", city)


def test_every_layer_and_panel_is_shown(browser: Browser, checked: str) -> None:
    with open_page(browser, checked) as page:
        wait_drawn(page, "mean 0")
        assert page.title() == "Ville <b>: data check"
        assert page.locator("body").get_attribute("data-crosses") == "3"
        assert "dead, stuck or silent" in page.locator(".legend").inner_text()
        chooser = page.locator("select")
        keys = chooser.locator("option").evaluate_all("options => options.map(({ value }) => value)")
        assert keys == LAYERS
        seen = set()
        for key in LAYERS:
            chooser.select_option(key)
            wait_drawn(page, f"{key} 0")
            seen.add(page.locator(".map canvas").screenshot())
        assert len(seen) == 4
        assert "closed or open for a time: 1" in page.locator(".legend").inner_text()
        panel = page.locator("#panel")
        tiles = panel.locator(".tiles div").all_inner_texts()
        assert [tile.split("\n")[:2] for tile in tiles][:2] == [["Network", "36"], ["Sensors", "12"]]
        assert panel.locator("svg .line").count() == 1  # Monday only
        assert faults(page) == []
        page.get_by_role("tab", name="Roads").click()
        panel.get_by_role("button", name="100 → 101").first.click()
        page.locator("h2", has_text="Unnamed road").wait_for()
        assert "closed or open for a time" in panel.locator(".value").inner_text()
        page.get_by_role("tab", name="Notices").click()
        assert "A <i>row</i>." in panel.inner_text()


def test_the_gap_chart_names_its_rows_and_grows_with_its_panel(browser: Browser, checked: str) -> None:
    with open_page(browser, checked, dark=True) as page:
        page.get_by_role("tab", name="Sensors").click()
        gaps = page.locator(".gaps")
        assert gaps.locator("path.row").count() == 12 and gaps.locator("path.stuck").count() == 1
        gaps.locator("path.row").first.hover()
        gaps.get_by_text("102: 50 % missing").wait_for()
        narrow = gaps.locator("svg").bounding_box()
        page.get_by_role("button", name="Widen the panel").click()
        page.locator("aside.wide").wait_for()
        wide = gaps.locator("svg").bounding_box()
        assert narrow is not None and wide is not None and wide["width"] > 1.5 * narrow["width"]
        assert faults(page) == []
        page.locator("#panel .table .link").first.click()
        page.locator("h2", has_text="Intersection").wait_for()
        said = page.locator("#panel").inner_text()
        assert "Possible fault" in said and "Readings missing" in said


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_shows_it_all(browser: Browser, checked: str, dark: bool) -> None:
    with open_page(browser, checked, size=PHONE, dark=dark, touch=True) as page:
        wait_drawn(page)
        for name in ("Overview", "Sensors", "Roads", "Notices"):
            page.get_by_role("tab", name=name).tap()
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            assert faults(page) == []


def test_keys_walk_through_panels_and_layers(browser: Browser, checked: str) -> None:
    with open_page(browser, checked) as page:
        wait_drawn(page)
        page.get_by_role("tab", name="Overview").focus()
        for name in ("Place", "Sensors", "Roads", "Notices"):
            page.keyboard.press("ArrowRight")
            assert page.get_by_role("tab", name=name).get_attribute("aria-selected") == "true"
        page.locator("select").focus()
        page.keyboard.press("ArrowDown")
        wait_drawn(page, "missing 0")
        page.keyboard.press("Escape")
        page.locator(".map").click(position={"x": 5, "y": 300})
        page.keyboard.press("/")
        page.keyboard.type("101")
        page.keyboard.press("Enter")
        page.locator("h2", has_text="Intersection 101").wait_for()


def test_a_city_on_roads_has_its_roads_marked(browser: Browser, tmp_path: Path) -> None:
    network = on_roads(City("Grid", make_stream(np.zeros((1, 25)), grid_network(5), start_s=0, step_s=300)))
    road = network.node_ids.tolist()[0]
    shut = network.close_nodes([road])
    values = np.random.default_rng(0).normal(50, 5, (20, network.num_nodes))
    values[:, 10:] = np.nan
    stream = make_stream(values, (network, shut), start_s=0, step_s=300, network_of=np.repeat([0, 1], 10))
    with open_page(browser, written(tmp_path / "roads.html", City("On roads", stream))) as page:
        wait_drawn(page)
        page.get_by_role("tab", name="Roads").click()
        page.get_by_role("button", name="Show them on the map").click()
        wait_drawn(page, "changes 0")
        page.locator("#panel .table .link").first.click()
        page.locator("h2", has_text=f"Road {road}").wait_for()
        assert "different at the end than at the start" in page.locator("#panel .value").inner_text()
        assert faults(page) == []


@pytest.mark.parametrize("make", ODD_CITIES)
def test_odd_cities_open(browser: Browser, make: Callable[[], City], tmp_path: Path) -> None:
    with open_page(browser, written(tmp_path / "odd.html", make())) as page:
        wait_drawn(page)
        for tab in page.get_by_role("tab").all():
            tab.click()
        assert faults(page) == []
