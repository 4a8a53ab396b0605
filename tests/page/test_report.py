"""A report in a real browser, opened as a file: it needs no service."""

from __future__ import annotations

import re
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from PIL import Image

from frigate.city.city import City
from frigate.evaluation.evaluate import evaluate
from frigate.pages.run_page import write_report
from frigate.roads.on_roads import on_roads
from frigate.training.run import Run
from frigate.training.train import train
from tests.support.browser import PHONE, faults, open_page, wait_drawn
from tests.support.forecast_runs import grid, readings, small_city, small_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


def report(path: Path, run: Run, city: City, *, close: list[str]) -> str:
    evaluation = evaluate(run, city, stride=12, device="cpu")
    return write_report(path, run, evaluation, city=city, close=close, device="cpu").as_uri()


@pytest.fixture(scope="module")
def counts(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of a run with demand; a road closes."""
    return report(tmp_path_factory.mktemp("report") / "counts.html", small_run(), small_city(), close=["7,12"])


@pytest.fixture(scope="module")
def speeds(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of one without."""
    path = tmp_path_factory.mktemp("report") / "speeds.html"
    return report(path, small_run(quantity="speed"), small_city(quantity="speed"), close=[])


@pytest.fixture(scope="module")
def on_its_roads(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of a city whose nodes are roads; one of them closes."""
    line = on_roads(grid())
    city = City("On roads", readings(line, quantity="speed"))
    run = train(city, seen=0.5, settings=small_run(quantity="speed").settings, device="cpu")
    return report(tmp_path_factory.mktemp("report") / "roads.html", run, city, close=["7>12"])


def layers(page: Page) -> list[str]:
    return page.locator("select option").evaluate_all("options => options.map(({ value }) => value)")


def crosses(page: Page) -> int:
    """On the map, at what is closed."""
    return int(page.locator("body").get_attribute("data-crosses") or "")


def test_every_layer_is_drawn_and_plays(browser: Browser, counts: str) -> None:
    with open_page(browser, counts) as page:
        wait_drawn(page)
        closed = ["closure-change", "closure-after", "closure-before"]
        assert layers(page) == ["forecast", "truth", "width", "error", "skill", *closed]
        assert faults(page) == []
        opened = page.locator("input[type=range]").input_value()
        wait_drawn(page, f"closure-change {opened}")
        for layer in ("error", "forecast"):  # one without times between two of the same time
            page.locator("select").select_option(layer)
        wait_drawn(page, f"forecast {opened}")
        assert opened != "0"
        seen = set()
        for layer in layers(page):
            page.locator("select").select_option(layer)
            frame = page.locator("input[type=range]").input_value()
            wait_drawn(page, f"{layer} {frame}")
            seen.add(page.locator(".map canvas").screenshot())
        assert len(seen) == 8
        assert crosses(page) == 0  # before
        page.locator("select").select_option("closure-after")
        assert crosses(page) == 1
        page.locator("input[type=range]").focus()
        page.keyboard.press("Home")
        wait_drawn(page, "closure-after 0")
        page.keyboard.press("Space")
        wait_drawn(page, "closure-after 2")


def test_scores_places_and_the_closure_have_panels(browser: Browser, counts: str) -> None:
    with open_page(browser, counts, dark=True) as page:
        wait_drawn(page)
        panel = page.locator("#panel")
        assert panel.locator(".changes li").count() == 10  # a report with a closure opens on it
        page.get_by_role("tab", name="How accurate is it?").click()
        assert "The model was trained on the sensors only" in panel.inner_text()
        assert panel.locator("table tbody tr").count() >= 8
        shown = panel.inner_text()
        assert (
            "Place by place" in shown
            and "GEH by hourly volume" in shown
            and "How often intervals of each level" in shown
        )
        page.keyboard.press("/")
        page.keyboard.type(str(small_run().nodes.node_ids[small_run().split.seen][0]))
        page.keyboard.press("Enter")
        page.get_by_text("History and forecast").wait_for()
        assert panel.locator("svg .line.forecast").count() == panel.locator("svg .line.observed").count() == 1
        assert panel.locator("svg path.band").count() == 1 and "90 % interval" in panel.inner_text()
        assert faults(page) == []
        page.get_by_role("tab", name="Closure").click()
        assert panel.locator(".changes li").count() == 10
        panel.get_by_role("button", name="change").click()
        wait_drawn(page, f"closure-change {page.locator('input[type=range]').input_value()}")
        assert faults(page) == []


@pytest.mark.parametrize("dark", [False, True])
def test_a_city_of_speeds_without_shapes_on_a_phone(browser: Browser, speeds: str, dark: bool) -> None:
    with open_page(browser, speeds, size=PHONE, dark=dark, touch=True) as page:
        wait_drawn(page)
        assert "closure-after" not in layers(page)
        shades = Image.open(BytesIO(page.locator(".map canvas").screenshot())).convert("L").histogram()
        assert (shades.index(max(shades)) < 60) == dark  # the ground
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert faults(page) == []
        page.get_by_role("tab", name="Place").tap()
        page.get_by_text("A day, everywhere").wait_for()
        page.locator("#panel .link").first.tap()
        page.get_by_text("Based on these sensors").wait_for()
        assert "by road" in page.locator("#panel").inner_text()
        assert "vehicles per" not in page.locator(".legend").inner_text()
        assert faults(page) == []


def test_a_city_on_roads_has_roads_to_click(browser: Browser, on_its_roads: str) -> None:
    with open_page(browser, on_its_roads) as page:
        wait_drawn(page)
        page.get_by_role("tab", name="How accurate is it?").click()
        assert "80 roads, 38 of them with a sensor" in page.locator("#panel").inner_text()
        box = page.locator(".map").bounding_box()
        assert box is not None
        for right in range(0, 200, 5):
            page.mouse.move(box["x"] + box["width"] / 2 + right, box["y"] + box["height"] / 2)
            if page.locator(".tip").is_visible():
                break
        name = page.locator(".tip b").inner_text().split(",")[0]
        assert re.fullmatch(r"Road \d+>\d+", name)
        page.mouse.down()
        page.mouse.up()
        page.locator("h2", has_text=name).wait_for()
        page.locator("select").select_option("closure-after")
        assert crosses(page) > 1
        assert faults(page) == []


def test_an_empty_form_says_how_to_fill_it(browser: Browser) -> None:
    from frigate.pages.map_page import FORM

    with open_page(browser, FORM.as_uri()) as page:
        page.get_by_text("frigate report RUN -o report.html").wait_for()
