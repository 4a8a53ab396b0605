"""A walk through the map page in a real browser, against the real service."""

from __future__ import annotations

import base64
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from frigate.pages.trips import trips_meta
from frigate.pages.wire import decode, encode
from frigate.serve.api.whatif import TRIP_ENDS
from frigate.serve.auth import make_token
from tests.support.browser import PHONE, faults, open_page, wait_drawn, wait_for
from tests.support.live_service import LiveService
from tests.support.service import HORIZON, PAST, Town

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

TILE = base64.b64decode(  # a pixel
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
)
NEXT = f"forecast {PAST}"  # the first step that is forecast


def search(page: Page, text: str) -> None:
    page.keyboard.press("/")
    page.keyboard.type(text)
    page.keyboard.press("Enter")


def inferred_node(live: LiveService) -> tuple[int, str]:
    """The busiest intersection without a sensor: its row and its name."""
    city = live.service.city
    values = live.service.latest.get().issued.forecast.values
    row = int(np.where(city.sensors, -1, values[0]).argmax())
    return row, city.node_names[row]


def a_street(live: LiveService) -> str:
    """One with a name, roads both ways, and a busy one."""
    network = live.service.city.network
    flow = live.service.latest.get().road_forecast[0]
    names = network.edges.name
    return str(names[np.where(names == "", -1, flow).argmax()])


def drawn(page: Page, symbols: str) -> int:
    """How many of these symbols are on the map: spots where trips begin or end, crosses at closed roads."""
    return int(page.locator("body").get_attribute(f"data-{symbols}") or "")


def drawn_are(page: Page, symbols: str, count: int) -> bool:
    return drawn(page, symbols) == count


def point_at(page: Page, kind: str) -> tuple[float, float]:
    """Where the pointer finds a thing whose name begins so, in rows across the map."""
    box = page.locator(".map").bounding_box()
    assert box is not None
    tip = page.locator(".tip")
    for down in range(-60, 100, 40):
        for right in range(-200, 200, 6):
            x = box["x"] + box["width"] / 2 + right
            y = box["y"] + box["height"] / 2 + down
            page.mouse.move(x, y)
            if tip.is_visible() and re.match(kind, tip.inner_text()):
                return x, y
    raise AssertionError(f"no {kind} under the pointer")


def test_the_map_is_drawn_and_slides(page: Page, live: LiveService) -> None:
    assert page.title() == f"{live.service.city.name}: traffic"
    legend = page.locator(".legend").inner_text()
    assert "vehicles per 15 min" in legend and "sensor" in legend and "or more" in legend
    assert f"Forecast made at {live.issued_text}" in page.locator("#panel").inner_text()
    wait_drawn(page, NEXT)
    shown = page.locator(".map canvas").screenshot()
    page.locator("input[type=range]").focus()
    page.keyboard.press("End")
    wait_drawn(page, f"forecast {PAST + HORIZON - 1}")
    assert "in 30 min" in page.locator(".clock").inner_text()
    assert page.locator("input[type=range]").get_attribute("aria-valuetext") == page.locator(".clock").inner_text()
    assert page.locator(".map canvas").screenshot() != shown
    page.keyboard.press("Home")
    wait_drawn(page, "forecast 0")
    assert "60 min ago" in page.locator(".clock").inner_text()
    page.keyboard.press("Space")
    wait_drawn(page, "forecast 2")
    page.get_by_role("button", name="Pause").click()
    assert faults(page) == []


def test_an_intersection_tells_its_past_and_what_it_main_sensors(page: Page, live: LiveService) -> None:
    row, name = inferred_node(live)
    search(page, name)
    panel = page.locator("#panel")
    panel.get_by_text("Based on these sensors").wait_for()
    assert f"Intersection {name}" in panel.inner_text() and "no sensor: inferred" in panel.inner_text()
    value = float(panel.locator(".value b").inner_text())
    assert value == pytest.approx(live.service.latest.get().issued.forecast.values[0, row], rel=0.02)
    assert panel.locator("svg .line.forecast").count() == 1
    assert panel.locator("svg .line.observed").count() == 0
    sensors = [live.service.city.node_names[each] for each, _ in live.service.engine.main_sensors(row)]
    links = panel.locator(".list").first.get_by_role("button")
    assert links.all_inner_texts() == [f"Intersection {each}" for each in sensors]
    links.first.click()
    page.locator("h2", has_text=f"Intersection {sensors[0]}").wait_for()
    panel.locator("svg .line.observed").wait_for()
    assert "has a sensor" in panel.inner_text()
    assert faults(page) == []


def test_an_interval_is_a_band_and_its_width_a_layer(page: Page, live: LiveService) -> None:
    row, name = inferred_node(live)
    service = live.service
    sure = service.engine.with_intervals(service.latest.get().issued, 90)
    assert sure.lower is not None and sure.upper is not None
    search(page, name)
    panel = page.locator("#panel")
    panel.locator("svg path.band").wait_for()
    assert "90 % interval" in panel.locator(".chart .key").inner_text()
    assert (
        panel.locator(".value .sure").inner_text()
        == f"90 % interval: {sure.lower[0, row]:.0f} to {sure.upper[0, row]:.0f}"
    )
    page.locator("select").select_option("width")
    wait_drawn(page, "width 0")
    assert float(panel.locator(".value b").inner_text()) == sure.upper[0, row] - sure.lower[0, row]
    assert "Width of the 90 % interval" in panel.locator(".value").inner_text()
    page.locator("select").select_option("forecast")
    page.locator("input[type=range]").focus()
    page.keyboard.press("Home")
    wait_drawn(page, "forecast 0")
    assert panel.locator(".value .sure").count() == 0  # a reading
    assert faults(page) == []


def test_a_run_without_intervals_has_no_band(browser: Browser, live: LiveService) -> None:
    def without(route: Route) -> None:
        answer = route.fetch()
        meta, arrays = decode(answer.body())
        meta["level"] = None
        route.fulfill(response=answer, body=encode(meta, arrays))

    with open_page(browser, live.link) as page:
        page.route("**/v1/network.bin", without)
        page.reload()
        wait_drawn(page)
        assert page.locator("select option[value=width]").count() == 0
        search(page, inferred_node(live)[1])
        page.locator("#panel svg .line.forecast").wait_for()
        assert page.locator("#panel svg .band").count() == page.locator("#panel .value .sure").count() == 0
        assert faults(page) == []


def test_what_is_clicked_is_what_is_under_the_pointer(page: Page, live: LiveService) -> None:
    search(page, inferred_node(live)[1])
    x, y = point_at(page, "Intersection")
    name = page.locator(".tip b").inner_text().split(",")[0]
    page.mouse.click(x, y)
    page.locator("h2", has_text=name).wait_for()
    x, y = point_at(page, "(?!Intersection)")
    name, ends = page.locator(".tip b").inner_text().rsplit(", ", 1)
    source, target = ends.split(" → ")
    page.mouse.click(x, y)
    page.locator("h2", has_text=name).wait_for()
    assert f"intersection {source} to intersection {target}" in page.locator("#panel").inner_text()
    page.get_by_text("Trips through here").wait_for()
    found = live.service.engine.select_link((source, target), now_s=int(live.time()))
    assert found is not None
    trips = trips_meta(found.through, live.service.city.network, hour=found.hour, ends=TRIP_ENDS)
    wait_for(page, partial(drawn_are, page, "spots", len(trips["from"]) + len(trips["to"])))
    page.keyboard.press("Escape")
    assert drawn(page, "spots") == 0
    page.locator("h2", has_text="The next hour").wait_for()


def test_the_routes_of_the_trips_through_a_road_are_a_layer(page: Page, live: LiveService) -> None:
    network = live.service.city.network
    row = int(live.service.latest.get().road_forecast[0].argmax())
    source, target = (str(network.node_ids[end[row]]) for end in (network.senders, network.receivers))
    search(page, source)
    panel = page.locator("#panel")
    panel.locator("details summary").click()
    panel.get_by_role("button", name=f"{source} → {target}").click()
    panel.get_by_text("The largest of").wait_for()
    found = live.service.engine.select_link((source, target), now_s=int(live.time()))
    assert found is not None
    hourly = trips_meta(found.through, network, hour=found.hour)["vehicles_per_hour"]
    assert f"{round(hourly):,} vehicles an hour" in panel.inner_text()
    assert panel.locator(".table tbody tr").count() == min(10, len(found.through.movements))
    wait_drawn(page, NEXT)
    forecast = page.locator(".map canvas").screenshot()
    panel.get_by_role("button", name="Show their routes").click()
    wait_drawn(page, "through 0")
    assert page.locator(".map canvas").screenshot() != forecast
    assert (
        "vehicles per hour" in page.locator(".legend").inner_text()
        and "trips begin" in page.locator(".legend").inner_text()
    )
    assert faults(page) == []
    page.locator("select").select_option("forecast")
    wait_drawn(page, NEXT)


def test_a_street_is_found_by_part_of_its_name(page: Page, live: LiveService) -> None:
    street = a_street(live)
    page.locator("#search").fill(street[1:].upper())
    assert street in page.get_by_role("option").all_inner_texts()
    page.locator("#search").fill("nowhere at all")
    assert "Nothing found" in page.locator("#found").inner_text()
    page.locator("#search").fill(street)
    page.keyboard.press("Enter")
    assert page.locator("h2").inner_text() == street
    roads = int((live.service.city.network.edges.name == street).sum())
    assert f"{roads} roads" in page.locator("#panel").inner_text()


def test_a_road_closes_after_its_effect_was_shown(page: Page, live: LiveService) -> None:
    search(page, a_street(live))
    page.locator("#panel .link").first.click()
    page.get_by_role("button", name="What if it closes?").click()
    changes = page.locator(".changes li")
    changes.first.wait_for()
    assert changes.count() == 10
    assert "→" in changes.first.inner_text() and "%" in changes.first.inner_text()
    wait_drawn(page, "change 0")
    assert "+" in page.locator(".legend").inner_text()
    assert live.store.closures() == []
    assert faults(page) == []
    page.get_by_role("button", name="Close 2 roads now").click()
    page.get_by_role("button", name="Open again").first.wait_for()
    one, other = live.store.closures()
    assert (one.source, one.target) == (other.target, other.source)
    wait_drawn(page, NEXT)
    assert "closed" in page.locator(".legend").inner_text()
    assert drawn(page, "crosses") == 2
    for left in (1, 0):
        page.get_by_role("button", name="Open again").first.click()
        wait_for(page, partial(drawn_are, page, "crosses", left))
    assert not any(each.active(live.time()) for each in live.store.closures())


def test_what_if_mode_takes_clicks_and_forgets(page: Page, live: LiveService) -> None:
    page.get_by_role("tab", name="What if").click()
    page.get_by_label("What-if mode").check()
    page.get_by_label("Both directions").uncheck()
    x, y = point_at(page, "(?!Intersection)")
    page.mouse.click(x, y)
    page.get_by_role("button", name="Close 1 road now").wait_for()
    page.locator("select").select_option("after")
    wait_drawn(page, "after 0")
    page.get_by_role("button", name="Discard").click()
    wait_drawn(page, NEXT)
    assert page.locator("select option").evaluate_all("all => all.map(({ value }) => value)") == ["forecast", "width"]
    assert not any(each.active(live.time()) for each in live.store.closures())


def test_accuracy_and_sensors_have_panels(page: Page, live: LiveService) -> None:
    page.get_by_role("tab", name="Accuracy").click()
    page.get_by_text(re.compile(r"\d\s% (less|more) error than the last reading")).wait_for()
    page.keyboard.press("ArrowRight")
    page.get_by_text(re.compile(r"^\d+ in order")).wait_for()
    assert page.get_by_role("tab", name="Sensors").get_attribute("aria-selected") == "true"
    for _ in range(3):
        live.step(readings=False)
    page.get_by_text(re.compile(r"^\d+ late")).wait_for()
    assert faults(page) == []


def test_the_page_tells_when_forecasts_are_no_longer_as_promised(page: Page, live: LiveService) -> None:
    told = ["the error at sensors is 2.10 times what it was.", "Train again with readings of the new level."]

    def worse(route: Route) -> None:
        answer = route.fetch()
        found = answer.json()
        found["drift"] = found["drift"] or {"coverage_promised": 91.0, "retraining_pays": True}
        found["drift"] |= {"error": 2.1, "coverage": 62.4, "told": told}
        route.fulfill(response=answer, json=found)

    page.get_by_role("tab", name="Accuracy").click()
    page.get_by_text("Live accuracy").wait_for()
    assert page.locator("#panel").get_by_text("No longer as promised").count() == 0
    page.get_by_role("tab", name="Sensors").click()
    page.route("**/v1/accuracy", worse)
    page.get_by_role("tab", name="Accuracy").click()
    page.get_by_text("No longer as promised").wait_for()
    said = page.locator("#panel .drift").inner_text()
    assert "2.10 times" in said and "62 %" in said and all(text in said for text in told)
    assert faults(page) == []


def test_a_new_forecast_and_a_restarted_service_show_by_themselves(browser: Browser, live: LiveService) -> None:
    with open_page(browser, live.link, forgive="Failed to load resource|ERR_|net::") as page:
        page.locator("body[data-connection=live]").wait_for()
        live.step()
        page.get_by_text(f"Forecast made at {live.issued_text}").wait_for()
        live.stop()
        page.get_by_text("reconnecting").wait_for()
        live.step()
        live.start()
        page.get_by_text(f"Forecast made at {live.issued_text}").wait_for()
        assert page.locator(".status").inner_text() == "live"


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_shows_it_all(browser: Browser, live: LiveService, dark: bool) -> None:
    with open_page(browser, live.link, size=PHONE, dark=dark) as page:
        wait_drawn(page)
        assert page.locator("#panel").is_hidden()
        page.locator("#search").fill(inferred_node(live)[1])
        page.keyboard.press("Enter")
        page.get_by_text("History and forecast").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert faults(page) == []
        page.get_by_role("button", name="Show or hide the panel").click()
        assert page.locator("#panel").is_hidden()
        assert page.locator(":root").get_attribute("data-theme") == ("dark" if dark else "light")


def test_tiles_of_another_lie_below_a_service_that_wants_a_token(browser: Browser, town: Town, tmp_path: Path) -> None:
    live = LiveService(town, tmp_path, basemap="https://tiles.example/{z}/{x}/{y}.png")
    secret = make_token(live.store, "a test", "read", int(live.time()))
    live.stop()
    live.start()
    asked: list[str] = []

    def tile(route: Route) -> None:
        asked.append(route.request.url)
        route.fulfill(body=TILE, content_type="image/png", headers={"Access-Control-Allow-Origin": "*"})

    with open_page(browser, live.url, forgive="401|403") as page:
        page.route("https://tiles.example/**", tile)
        page.locator("#token").fill(secret)
        page.keyboard.press("Enter")
        wait_drawn(page)
        wait_for(page, lambda: len(asked) > 0)
        assert re.fullmatch(r"https://tiles\.example/\d+/\d+/\d+\.png", asked[0])
        page.get_by_text("A mapper").wait_for()
        search(page, a_street(live))
        page.locator("#panel .link").first.click()
        page.get_by_role("button", name="What if it closes?").click()
        page.locator(".changes li").first.wait_for()
        page.get_by_role("button", name="Close 2 roads now").click()
        page.locator(".error", has_text="operate").wait_for()
    live.close()


def test_a_link_signs_in_and_leaves_no_token_where_scripts_or_eyes_find_it(browser: Browser, live: LiveService) -> None:
    with open_page(browser, live.link, forgive="401") as page:
        wait_drawn(page)
        assert page.url == live.url
        (cookie,) = page.context.cookies()
        assert (cookie["value"], cookie["httpOnly"], cookie["sameSite"]) == (live.token, True, "Strict")
        assert live.token not in page.evaluate(
            "JSON.stringify([document.cookie, {...localStorage, ...sessionStorage}])"
        )
        page.reload()
        wait_drawn(page)
        page.get_by_role("button", name="Sign out").click()
        page.locator("#token").fill("frg_wrong")
        page.keyboard.press("Enter")
        page.get_by_role("alert").get_by_text("not valid").wait_for()
        assert page.context.cookies() == []
        page.locator("#token").fill(live.token)
        page.keyboard.press("Enter")
        wait_drawn(page)
