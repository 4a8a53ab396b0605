"""Numbers for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from frigate.serve.store import open_store
from tests.support.service import Served, Town, serve_town


@pytest.fixture
def two(town: Town, tmp_path: Path) -> Iterator[list[Served]]:
    """Two services in one process."""
    with ExitStack() as stack:
        stores = [open_store(str(tmp_path / name)) for name in ("a.db", "b.db")]
        yield [stack.enter_context(serve_town(town, store)) for store in stores]
    for store in stores:
        store.close()


def metrics(served: Served) -> dict[tuple[str, ...], float]:
    """By name and values of the labels, which are in alphabetical order."""
    answer = served.client.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    families = text_string_to_metric_families(answer.text)
    return {(each.name, *each.labels.values()): each.value for family in families for each in family.samples}


def test_requests_are_counted_and_timed_by_each_service(two: list[Served]) -> None:
    for path in ("/healthz", "/healthz", "/v1/nodes/nowhere"):
        two[0].client.get(path)
    values, others = map(metrics, two)
    assert values["frigate_requests_total", "GET", "/healthz", "200"] == 2
    assert values["frigate_requests_total", "GET", "/v1/nodes/{node:path}", "404"] == 1
    assert values["frigate_request_seconds_bucket", "+Inf", "/healthz"] == 2
    assert values["frigate_request_seconds_count", "/healthz"] == 2
    assert values["frigate_request_seconds_sum", "/healthz"] > 0
    assert ("frigate_requests_total", "GET", "/healthz", "200") not in others


def test_the_state_is_that_of_the_moment(two: list[Served]) -> None:
    served = two[0]
    before = metrics(served)
    assert before["frigate_forecast_age_seconds",] >= 0 and before["frigate_clock_error",] == 0
    served.service.clock.state.error = "no readings"
    served.service.clock.state.issued_s = None
    after = metrics(served)
    assert after["frigate_clock_error",] == 1 and ("frigate_forecast_age_seconds",) not in after


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only Linux lists descriptors")
def test_descriptors_and_memory_are_told(two: list[Served], tmp_path: Path) -> None:
    before = metrics(two[0])
    with ExitStack() as stack:
        for k in range(20):
            stack.enter_context((tmp_path / f"{k}").open("w"))
        assert metrics(two[0])["process_open_fds",] - before["process_open_fds",] >= 20
    assert 1e7 < before["process_resident_memory_bytes",] < 1e11
