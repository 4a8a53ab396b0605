"""The map page on the service itself: what one asks the other answers, and its content policy lets the map be drawn."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from frigate.serve.server import Server
from frigate.serve.service import Service
from frigate.serve.store import open_store
from tests.support.browser import chromium, open_page, wait_drawn
from tests.support.service import HORIZON, PAST, STEP_S, FakeTime, train_town

FIRST = 36


@pytest.fixture
def live(tmp_path: Path) -> Iterator[tuple[Service, str]]:
    """A service after a few steps; its address."""
    town, store = train_town(tmp_path), open_store(str(tmp_path / "store.db"))
    time = FakeTime(0)
    service = Service(town.run, town.city, store, now=time, device="cpu")
    for snapshot in range(FIRST - PAST - 1, FIRST + 1):
        store.add_readings(town.reading_rows(snapshot, snapshot + 1), 0)
        time.now_s = float(town.city.stream.times_s[snapshot]) + STEP_S + 20
        assert service.clock.turn()
    server = Server(service, host="127.0.0.1", port=0)
    thread = threading.Thread(target=server.run)
    thread.start()
    yield service, server.url  # it listens already
    server.should_exit = True
    thread.join()
    store.close()


@pytest.mark.slow
def test_a_walk_through_the_page_of_a_service(live: tuple[Service, str]) -> None:
    service, url = live
    with chromium() as browser, open_page(browser, url) as page:
        wait_drawn(page, f"forecast {PAST}")
        panel = page.locator("#panel")
        page.keyboard.press("/")
        page.keyboard.type("41")
        page.keyboard.press("Enter")
        panel.get_by_text("Leans on these sensors").wait_for()
        assert panel.locator("svg").count() == 1
        panel.locator("summary").click()
        panel.locator("details li button").first.click()
        panel.get_by_text("vehicles per hour pass").wait_for()
        panel.get_by_text("What if it closes?").click()
        panel.get_by_text("Largest changes").wait_for()
        wait_drawn(page, "change 0")
        panel.locator("button.danger").click()
        panel.get_by_role("button", name="Open again").first.wait_for()
        assert len(service.store.closures()) == 2  # both ways
        panel.get_by_role("button", name="Open again").first.click()
        panel.get_by_role("button", name="Open again").nth(1).wait_for(state="detached")
        page.get_by_role("tab", name="Accuracy").click()
        panel.get_by_text("mean absolute error").wait_for()
        page.get_by_role("tab", name="Sensors").click()
        panel.get_by_text("100 in order").wait_for()
        page.locator("input[type=range]").focus()
        page.keyboard.press("End")
        wait_drawn(page, f"forecast {PAST + HORIZON - 1}")
