"""HEAD and Allow at every address, answers that need not be sent again, and clients that do not read."""

from __future__ import annotations

import gzip
import socket
from collections.abc import Iterator
from contextlib import closing
from functools import reduce
from pathlib import Path

import pytest

from frigate.serve.limits import Limits
from frigate.serve.store import open_store
from tests.support.running_service import running, wait_for
from tests.support.service import Served, Town, serve_town

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
EXAMPLES = {"{form}": "json", "{node}": "34", "{closure_id}": "aa"}
QUERIES = {"/v1/history.json": "?node=34", "/v1/trips": "?source=34&target=41", "/v1/trips.bin": "?source=34&target=41"}


@pytest.fixture(scope="module")
def served(town: Town, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    store = open_store(str(tmp_path_factory.mktemp("methods") / "store.db"))
    with serve_town(town, store, limits=Limits(rate=1e9)) as served:
        yield served
    store.close()


def addresses(served: Served) -> Iterator[tuple[str, set[str]]]:
    """The addresses of the API, and their methods."""
    for path, methods in served.client.get("/v1/openapi.json").json()["paths"].items():
        where = reduce(lambda text, name: text.replace(name, EXAMPLES[name]), EXAMPLES, path)
        yield where, {method.upper() for method in methods}


def test_allow_lists_the_methods_that_an_address_has(served: Served) -> None:
    for path, methods in addresses(served):
        has = methods | ({"HEAD"} if "GET" in methods else set())
        for method in set(METHODS) - has:
            answer = served.client.request(method, path)
            assert answer.status_code == 405, (method, path)
            assert set(answer.headers["allow"].split(", ")) == has, (method, path)


def test_head_is_get_without_a_body(served: Served) -> None:
    """Also where the answer has no end."""
    for path, methods in addresses(served):
        if "GET" in methods:
            where = path + QUERIES.get(path, "")
            head = served.client.head(where)
            assert (head.status_code, head.content) == (200, b""), path
            if path not in ("/v1/events", "/metrics"):  # the number of requests is in the metrics
                got = served.client.get(where)
                names = ("content-type", "content-length", "etag", "content-encoding")
                assert [head.headers.get(name) for name in names] == [got.headers.get(name) for name in names], path
    assert served.stranger.head("/v1/closures").status_code == 401
    assert served.client.app.state.frigate.events.listeners == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_unknown_addresses_allow_no_method(served: Served, method: str) -> None:
    for path in ("/v1/nothing", "/nothing", "/v1/", "/%00", "/" + "x" * 5000, "/../app.py"):
        answer = served.client.request(method, path)
        assert (answer.status_code, "allow" in answer.headers) == (404, False), path


@pytest.mark.parametrize("name", ["forecast.json", "flows.json", "forecast.csv", "flows.arrow"])
def test_tables_are_packed_and_not_sent_twice(served: Served, name: str) -> None:
    whole = served.client.get(f"/v1/{name}", headers={"Accept-Encoding": "gzip"})
    plain = served.client.get(f"/v1/{name}", headers={"Accept-Encoding": "identity"})
    assert whole.headers["content-encoding"] == "gzip" and "content-encoding" not in plain.headers
    assert whole.content == plain.content and int(whole.headers["content-length"]) < len(plain.content)
    assert len(gzip.compress(plain.content)) < len(plain.content)
    tag = whole.headers["etag"]
    again = served.client.get(f"/v1/{name}", headers={"If-None-Match": tag})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    some = served.client.get(f"/v1/{name}", params={"box": "6,48,7.01,50"}, headers={"If-None-Match": tag})
    assert some.status_code == 200 and some.headers["etag"] != tag and some.content != plain.content
    assert served.client.get(f"/v1/{name}").content == plain.content  # what is kept is the whole


def test_a_new_forecast_has_a_new_tag(town: Town, tmp_path: Path) -> None:
    with closing(open_store(str(tmp_path / "store.db"))) as store, serve_town(town, store) as served:
        before = [served.client.get(f"/v1/{name}.json") for name in ("forecast", "flows")]
        served.step(37)
        after = [served.client.get(f"/v1/{name}.json") for name in ("forecast", "flows")]
        for old, new in zip(before, after, strict=True):
            assert old.headers["etag"] != new.headers["etag"] and old.json()["issued_at"] < new.json()["issued_at"]


def test_a_client_that_never_reads_its_answers_is_left(
    town: Town, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frigate.serve.connections.WRITE_S", 0.2)
    with closing(open_store(str(tmp_path / "store.db"))) as store, running(town, store, limits=Limits(rate=1e9)) as one:
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.connect(("127.0.0.1", one.port))
            before = len(one.server.server_state.connections)
            request = f"GET /v1/forecast.json HTTP/1.1\r\nHost: localhost\r\n{one.authorization}\r\n".encode()
            deaf.sendall(request * 400)  # together far more than the system's buffers hold
            wait_for(lambda: len(one.server.server_state.connections) >= before)
            wait_for(lambda: len(one.server.server_state.connections) < before)
        assert one.client.get("/healthz").status_code == 200
