"""The page of `frigate place` in a real browser."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from frigate.city.city import City
from frigate.demand.settings import DemandSettings
from frigate.pages.placement_page import write_placement
from frigate.planning.placement import Placement, place
from frigate.simulate.demo_city import demo_city
from tests.support.browser import open_page, wait_drawn

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@dataclass(frozen=True)
class Planned:
    """A placement and the address of its page."""

    placement: Placement
    url: str


@pytest.fixture(scope="module")
def planned(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Planned:
    made = demo_city(seed=3, intersections=100, days=2, step_s=3600, closures=0)
    observed = made.stream.observed & (np.random.default_rng(0).random(100) < 0.2)
    city = City("Ville <b>", replace(made.stream, observed=observed))
    found = place(city, budget=4, remove=2, settings=DemandSettings(sets=2))
    path: Path = tmp_path_factory.mktemp("sites") / "sites.html"
    return Planned(found, write_placement(path, found, city).as_uri())


def test_sites_are_listed_and_lead_to_their_places(browser: Browser, planned: Planned) -> None:
    first = planned.placement.sites[0]
    with open_page(browser, planned.url) as page:
        wait_drawn(page)
        assert "count here: 4" in page.inner_text("body")
        assert first.reason in page.inner_text("body")
        page.get_by_text(f"{first.node}, {first.street}").first.click()
        page.get_by_text("Site 1: takes away").wait_for()
        page.get_by_role("tab", name="Sensors").click()
        assert planned.placement.redundant[0].reason in page.inner_text("body")
