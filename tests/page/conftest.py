"""One browser and one town for each file of tests.

Not for all of them: while Playwright runs, its event loop does, and no other test of the process could have one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.browser import chromium, open_page, wait_drawn
from tests.support.live_service import LiveService
from tests.support.service import Town, train_town

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as made:
        yield made


@pytest.fixture(scope="module")
def town(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Town:
    """After the browser: without one nothing need be trained."""
    return train_town(tmp_path_factory.mktemp("town"))


@pytest.fixture(scope="module")
def live(town: Town, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveService]:
    service = LiveService(town, tmp_path_factory.mktemp("live"))
    yield service
    service.close()


@pytest.fixture
def page(browser: Browser, live: LiveService) -> Iterator[Page]:
    with open_page(browser, live.link) as made:
        wait_drawn(made)
        yield made
