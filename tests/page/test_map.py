"""A walk through the map page in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from tests.support.browser import PHONE, chromium, faults, open_page, wait_drawn
from tests.support.map_server import ISSUED, MapServer, Town, grid_city

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SIDE = 10
MIDDLE = 1000 + SIDE * SIDE // 2 + SIDE // 2  # an intersection


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as made:
        yield made


@pytest.fixture
def server() -> Iterator[MapServer]:
    with MapServer(Town(grid_city(SIDE))) as made:
        yield made


@pytest.fixture
def page(browser: Browser, server: MapServer) -> Iterator[Page]:
    with open_page(browser, server.url) as made:
        wait_drawn(made)
        yield made


def search(page: Page, text: str) -> None:
    page.keyboard.press("/")
    page.keyboard.type(text)
    page.keyboard.press("Enter")


def point_at(page: Page, kind: str) -> tuple[float, float]:
    """Where the pointer finds a thing of this kind, to the right of the middle of the map."""
    box = page.locator(".map").bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 2
    for dx in range(0, 300, 3):
        x = box["x"] + box["width"] / 2 + dx
        page.mouse.move(x, y - 33)
        tip = page.locator(".tip")
        if tip.is_visible() and tip.inner_text().startswith(kind):
            return x, y - 33
    raise AssertionError(f"no {kind} under the pointer")


def test_the_map_is_drawn_and_slides(page: Page) -> None:
    assert page.title() == "Gridford: traffic"
    legend = page.locator(".legend").inner_text()
    assert "vehicles per 5 min" in legend and "sensor" in legend and "or more" in legend
    assert "2 sensors are silent." in page.locator("#panel").inner_text()
    wait_drawn(page, "forecast 12")
    shown = page.locator(".map canvas").screenshot()
    page.locator("input[type=range]").focus()
    page.keyboard.press("End")
    wait_drawn(page, "forecast 23")
    assert "in 55 min" in page.locator(".clock").inner_text()
    assert page.locator("input[type=range]").get_attribute("aria-valuetext") == page.locator(".clock").inner_text()
    assert page.locator(".map canvas").screenshot() != shown
    page.keyboard.press("Home")
    wait_drawn(page, "forecast 0")
    assert "60 min ago" in page.locator(".clock").inner_text()
    page.keyboard.press("Space")
    wait_drawn(page, "forecast 2")
    page.get_by_role("button", name="Pause").click()
    assert faults(page) == []


def test_an_intersection_tells_its_past_and_what_it_leans_on(page: Page, server: MapServer) -> None:
    inferred = next(i for i in range(MIDDLE, MIDDLE + SIDE) if not server.town.sensors[i - 1000])
    search(page, str(inferred))
    panel = page.locator("#panel")
    panel.get_by_text("Leans on these sensors").wait_for()
    text = panel.inner_text()
    assert f"Intersection {inferred}" in text and "no sensor: inferred" in text and "Row 5" in text
    assert panel.locator("svg .band").count() == 1
    value = float(panel.locator(".value b").inner_text())
    assert value == pytest.approx(server.town.values()[12, inferred - 1000], rel=0.02)
    sensor = panel.get_by_role("button", name="Intersection").first
    name = sensor.inner_text()
    sensor.click()
    page.locator("h2", has_text=name).wait_for()
    assert "has a sensor" in panel.inner_text()
    assert faults(page) == []


def test_what_is_clicked_is_what_is_under_the_pointer(page: Page) -> None:
    search(page, str(MIDDLE))
    x, y = point_at(page, "Intersection")
    name = page.locator(".tip b").inner_text().split(",")[0]
    page.mouse.click(x, y)
    page.locator("h2", has_text=name).wait_for()
    x, y = point_at(page, "Column")
    name, ends = page.locator(".tip b").inner_text().split(", ")
    page.mouse.click(x, y)
    page.locator("h2", has_text=name).wait_for()
    assert " to intersection ".join(ends.split(" → ")) in page.locator("#panel").inner_text()
    page.locator("#panel").get_by_text("312 vehicles per hour").wait_for()
    assert page.locator(".map .spot").count() == 8
    page.keyboard.press("Escape")
    assert page.locator(".map .spot").count() == 0
    page.locator("h2", has_text="The next hour").wait_for()


def test_a_street_is_found_by_part_of_its_name(page: Page) -> None:
    page.locator("#search").fill("olumn 7")
    assert page.get_by_role("option").all_inner_texts() == ["Column 7"]
    page.locator("#search").fill("nowhere")
    assert "Nothing found" in page.locator("#found").inner_text()
    page.locator("#search").fill("row")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert page.locator("h2").inner_text() == "Row 1"
    assert "18 roads" in page.locator("#panel").inner_text()


def test_a_road_closes_after_its_effect_was_shown(page: Page, server: MapServer) -> None:
    search(page, "row 4")
    page.locator("#panel .link").first.click()
    page.get_by_role("button", name="What if it closes?").click()
    changes = page.locator(".changes li")
    changes.first.wait_for()
    assert changes.count() == 10
    assert "→" in changes.first.inner_text() and "%" in changes.first.inner_text()
    wait_drawn(page, "change 0")
    assert "+" in page.locator(".legend").inner_text()
    assert server.town.closures == []
    assert faults(page) == []
    page.get_by_role("button", name="Close 2 roads now").click()
    page.get_by_role("button", name="Open again").first.wait_for()
    assert sorted((c["source"], c["target"]) for c in server.town.closures) == [(1040, 1041), (1041, 1040)]
    wait_drawn(page, "forecast 12")
    assert "closed" in page.locator(".legend").inner_text()
    assert page.locator(".map .cross").count() == 2
    for left in (1, 0):
        page.get_by_role("button", name="Open again").first.click()
        page.wait_for_function("left => document.querySelectorAll('.map .cross').length === left", arg=left)
    assert server.town.closures == []


def test_what_if_mode_takes_clicks_and_forgets(page: Page, server: MapServer) -> None:
    page.get_by_role("tab", name="What if").click()
    page.get_by_label("What-if mode").check()
    page.get_by_label("Both directions").uncheck()
    x, y = point_at(page, "Column")
    page.mouse.click(x, y)
    page.get_by_role("button", name="Close 1 road now").wait_for()
    page.locator("select").select_option("after")
    wait_drawn(page, "after 0")
    page.get_by_role("button", name="Discard").click()
    wait_drawn(page, "forecast 12")
    assert page.locator("select").is_hidden()
    assert server.town.closures == []


def test_accuracy_and_sensors_have_panels(page: Page) -> None:
    page.get_by_role("tab", name="Accuracy").click()
    page.get_by_text(re.compile(r"24\s% less error")).wait_for()
    page.keyboard.press("ArrowRight")
    page.get_by_text("1 stuck, 1 silent, 1 late").wait_for()
    assert page.get_by_role("tab", name="Sensors").get_attribute("aria-selected") == "true"
    assert faults(page) == []


def test_a_new_forecast_and_a_restarted_service_show_by_themselves(browser: Browser, server: MapServer) -> None:
    with open_page(browser, server.url, forgive="Failed to load resource") as page:
        wait_drawn(page)
        page.wait_for_function("document.body.dataset.connection === 'live'")
        server.town.issued = ISSUED + timedelta(minutes=5)
        server.publish("forecast")
        page.get_by_text("Forecast made at Mon 4 Mar, 17:05").wait_for()
        server.stop()
        page.get_by_text("reconnecting").wait_for()
        server.town.issued = ISSUED + timedelta(minutes=10)
        with MapServer(server.town, port=server.port):
            page.get_by_text("Forecast made at Mon 4 Mar, 17:10").wait_for()
            assert page.locator(".status").inner_text() == "live"


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_shows_it_all(browser: Browser, server: MapServer, dark: bool) -> None:
    with open_page(browser, server.url, size=PHONE, dark=dark) as page:
        wait_drawn(page)
        assert page.locator("#panel").is_hidden()
        page.locator("#search").fill(str(MIDDLE))
        page.keyboard.press("Enter")
        page.get_by_text("History and forecast").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert faults(page) == []
        page.get_by_role("button", name="Show or hide the panel").click()
        assert page.locator("#panel").is_hidden()
        assert page.locator(":root").get_attribute("data-theme") == ("dark" if dark else "light")


def test_a_service_that_wants_a_token_is_given_one(browser: Browser) -> None:
    with MapServer(Town(grid_city(4)), token="secret") as server, open_page(browser, server.url, forgive="401") as page:
        page.locator("#token").fill("secret")
        page.keyboard.press("Enter")
        wait_drawn(page)
