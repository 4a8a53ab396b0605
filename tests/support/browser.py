"""Debian's Chromium, driven by Playwright, which downloads none of its own."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from frigate.serve.page import STATIC

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page

ARGUMENTS = (
    "--enable-unsafe-swiftshader",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
DESKTOP = (1280, 800)
PHONE = (390, 780)


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser; without one, or without the built page, the test is skipped and says what is missing."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("chromium is not on the path: apt-get install chromium")
    if not (STATIC / "offline.html").exists():
        pytest.skip("the map page is not built: make page")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        yield browser
        browser.close()


@contextmanager
def open_page(
    browser: Browser,
    url: str,
    *,
    size: tuple[int, int] = DESKTOP,
    dark: bool = False,
    touch: bool = False,
    forgive: str = "",
) -> Iterator[Page]:
    """A page. Afterwards nothing may have been written to its console as an error, but what matches `forgive`."""
    page = browser.new_page(
        viewport={"width": size[0], "height": size[1]},
        color_scheme="dark" if dark else "light",
        reduced_motion="reduce",
        has_touch=touch,
    )
    page.set_default_timeout(600_000)  # only for what never comes
    wrong: list[str] = []

    def heard(message: ConsoleMessage) -> None:
        if message.type == "error" and not (forgive and re.search(forgive, message.text)):
            wrong.append(message.text)

    page.on("console", heard)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(url)
    yield page
    assert wrong == []
    page.close()


def wait_drawn(page: Page, what: str = "") -> None:
    """Until a frame is drawn: any, or "layer frame"."""
    page.locator(f'body[data-drawn="{what}"]' if what else "body[data-drawn]").wait_for()


def wait_for(page: Page, true: Callable[[], bool], seconds: float = 20) -> None:
    """Until something holds. The page's content policy lets Playwright wait for no function of its own."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come about"
        page.wait_for_timeout(20)


def faults(page: Page) -> list[str]:
    """What axe-core finds that keeps somebody from using the page."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [f"{each['id']}: {node['html'][:160]}" for each in found for node in each["nodes"]]
