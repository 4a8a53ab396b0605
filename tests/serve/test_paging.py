"""Lists that can grow are answered page by page; each row comes once, whatever comes and goes meanwhile."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from frigate.serve.store import Reading, open_store
from tests.support.service import Served, Town, serve_town


@pytest.fixture
def served(town: Town, tmp_path: Path) -> Iterator[Served]:
    store = open_store(str(tmp_path / "store.db"))
    with serve_town(town, store) as served:
        yield served
    store.close()


def pages(served: Served, path: str, name: str) -> Iterator[list[Any]]:
    """As a client follows them."""
    url = served.client.base_url.join(path)
    while True:
        answer = served.client.get(url)
        assert answer.status_code == 200, answer.text
        yield answer.json()[name]
        if "next" not in answer.links:
            return
        url = url.join(answer.links["next"]["url"])


def close_roads(served: Served, count: int) -> list[str]:
    store = served.service.store
    roads = served.roads()[:count]
    now_s = int(served.time())
    return [store.add_closure(*road, begin_s=now_s + k // 2, end_s=None, now_s=0)[0].id for k, road in enumerate(roads)]


def test_closures_come_in_pages_in_the_same_order(served: Served) -> None:
    close_roads(served, 7)
    (whole,) = pages(served, "/v1/closures", "closures")
    parts = list(pages(served, "/v1/closures?limit=3&ended=true", "closures"))
    assert [len(part) for part in parts] == [3, 3, 1] and [each for part in parts for each in part] == whole
    assert len(list(pages(served, "/v1/closures?limit=7", "closures"))) == 1  # no empty page


def test_rows_that_go_and_come_meanwhile_hide_and_repeat_no_other(served: Served) -> None:
    ids = close_roads(served, 6)
    found = pages(served, "/v1/closures?limit=2", "closures")
    first = next(found)
    for each in first:  # they are no longer in the list
        served.client.delete(f"/v1/closures/{each['id']}")
    rest = [each["id"] for page in found for each in page]
    assert sorted([*rest, *(each["id"] for each in first)]) == sorted(ids)


def test_the_quarantine_comes_in_pages(served: Served) -> None:
    readings = [Reading(name, k, 1.0) for name in served.service.city.node_names[:3] for k in range(3)]
    served.service.store.add_readings(readings, 0.0, implausible=range(9))
    parts = list(pages(served, "/v1/quarantine?limit=4", "readings"))
    assert [len(part) for part in parts] == [4, 4, 1]
    assert [each["node"] for part in parts for each in part] == sorted(reading.node for reading in readings)


@pytest.mark.parametrize("path", ["/v1/closures", "/v1/quarantine"])
@pytest.mark.parametrize(
    "cursor", ["x", "%00", base64.b64encode(b"[1]").decode(), base64.b64encode(b"[" * 300).decode()]
)
def test_an_invalid_cursor_is_refused(served: Served, path: str, cursor: str) -> None:
    answer = served.client.get(path, params={"cursor": cursor})
    assert answer.status_code == 422 and "Link header" in answer.json()["detail"]


def test_the_cursor_of_another_list_or_a_number_of_no_database_is_said(served: Served) -> None:
    for text in ('["A", 1]', f'[{2**63}, "A"]', '[true, "A"]', '[1, "\\u0000"]', '[1, "\\ud800"]'):
        cursor = base64.urlsafe_b64encode(text.encode()).decode()
        assert served.client.get("/v1/closures", params={"cursor": cursor}).status_code == 422
    for limit in (0, 1001, "x"):
        assert served.client.get("/v1/closures", params={"limit": limit}).status_code == 422
