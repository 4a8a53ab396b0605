"""Signing in: the first start's link, the cookie, and who may not use either; and the Unix socket."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx2
import pytest

from frigate.cli.serve import welcome
from frigate.errors import ServiceError
from frigate.serve.auth import TokenCheck, first_token, link, make_token
from frigate.serve.client import ServiceClient
from frigate.serve.server import Server, listen_at
from frigate.serve.service import Service
from frigate.serve.store import Store, open_store
from tests.support.errors import raises
from tests.support.running_service import Running, running
from tests.support.service import FakeTime, Served, Town, serve_town

CLOSURE = {"source": "34", "target": "41"}


@pytest.fixture
def served(town: Town, tmp_path: Path) -> Iterator[Served]:
    store = open_store(str(tmp_path / "store.db"))
    with serve_town(town, store) as served:
        yield served
    store.close()


def test_the_first_start_makes_a_token_and_a_link_and_no_other_start_does(town: Town, tmp_path: Path) -> None:
    with closing(open_store(str(tmp_path / "store.db"))) as store:
        service = Service(town.run, town.city, store, now=FakeTime(0.0), device="cpu")
        server = Server(service)
        (where, opened), again = welcome(service, server), welcome(service, server)
        address, _, token = opened.rpartition(": ")[2].partition("#token=")
        assert address == server.url and server.url in where and "frg_" not in where and again == [where]
        server._socket.close()
        gate = TokenCheck(store)
        gate.refresh()
        found = gate.caller(token)
        assert found is not None and found.role == "admin"


def test_two_first_starts_at_once_make_one_token(store: Store) -> None:
    assert first_token(store, 0) and first_token(store, 0) is None
    assert len(store.tokens()) == 1


def test_nothing_is_open_where_there_is_no_token(town: Town, tmp_path: Path) -> None:
    """As a proxy on this machine asks that adds no header, and as a page makes a browser ask under its own name."""
    with closing(open_store(str(tmp_path / "store.db"))) as store, serve_town(town, store) as served:
        with store.transaction(write=True) as sql:
            sql.run("DELETE FROM tokens")
        for host in ("127.0.0.1:8350", "localhost", "[::1]:8350", "rebound.example"):
            assert served.stranger.get("/v1/closures", headers={"Host": host}).status_code == 401
            assert served.stranger.post("/v1/closures", json=CLOSURE, headers={"Host": host}).status_code == 401


def test_a_token_is_exchanged_for_a_cookie_that_no_script_and_no_other_page_can_use(served: Served) -> None:
    token = make_token(served.service.store, "Ana", "operate", 0)
    browser = served.stranger
    signed_in = browser.post("/v1/session", json={"token": token})
    assert signed_in.json() == {"name": "Ana", "role": "operate", "rights": ["operate", "read"], "by": "cookie"}
    (cookie,) = signed_in.headers.get_list("set-cookie")
    name, _, attributes = cookie.partition("=")
    assert name == served.service.gate.cookie and {"HttpOnly", "SameSite=strict"} <= set(attributes.split("; "))
    assert "Secure" not in cookie and "Path" not in cookie
    assert browser.get("/v1/session").json()["by"] == "cookie"
    assert browser.post("/v1/closures", json=CLOSURE).status_code == 201
    for site in ("same-site", "cross-site"):  # same-site is also a page of another port of this machine
        headers = {"Sec-Fetch-Site": site}
        assert browser.get("/v1/closures", headers=headers).status_code == 401
        assert browser.post("/v1/closures", json=CLOSURE, headers=headers).status_code == 403
    left = browser.delete("/v1/session")
    assert left.status_code == 204 and browser.get("/v1/session").status_code == 401


def test_over_https_the_cookie_stays_there(served: Served) -> None:
    token = make_token(served.service.store, "Ana", "read", 0)
    headers = {"Origin": "https://traffic.example", "Host": "traffic.example"}
    assert "Secure" in served.stranger.post("/v1/session", json={"token": token}, headers=headers).headers["set-cookie"]


def test_the_cookies_of_two_services_have_different_names(tmp_path: Path) -> None:
    """Browsers send the cookies of a host to all its ports."""
    with closing(open_store(str(tmp_path / "a"))) as a, closing(open_store(str(tmp_path / "b"))) as b:
        assert TokenCheck(a).cookie == TokenCheck(a).cookie != TokenCheck(b).cookie


@pytest.mark.parametrize("token", ["", "frg_", "frg_00000000_x", "x" * 200])
def test_a_wrong_token_is_no_way_in(served: Served, token: str) -> None:
    answer = served.stranger.post("/v1/session", json={"token": token})
    assert answer.status_code == 401 and "set-cookie" not in answer.headers
    assert (
        served.stranger.get("/v1/session", headers={"Cookie": f"{served.service.gate.cookie}={token}"}).status_code
        == 401
    )


FOREIGN = [
    {"Origin": "https://elsewhere.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:9999"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "cross-site", "Origin": "http://127.0.0.1"},
]
OWN = [
    {},
    {"Origin": "http://127.0.0.1"},
    {"Sec-Fetch-Site": "same-origin", "Origin": "https://traffic.example"},  # a proxy that keeps its own Host
    {"Sec-Fetch-Site": "none"},
]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/closures", CLOSURE),
        ("DELETE", "/v1/closures/aa", None),
        ("POST", "/v1/readings", {"readings": []}),
        ("POST", "/v1/what-if", {"close": [["34", "41"]]}),
        ("PUT", "/v1/time", {"time": "2024-03-04T08:00:00Z"}),
        ("POST", "/v1/session", {"token": "frg_"}),
        ("DELETE", "/v1/session", None),
    ],
)
def test_no_page_but_our_own_changes_anything(served: Served, method: str, path: str, body: object) -> None:
    for headers in FOREIGN:
        answer = served.client.request(method, path, json=body, headers=headers)
        assert answer.status_code == 403 and "page of another address" in answer.json()["detail"], headers
    for headers in OWN:
        assert served.client.request(method, path, json=body, headers=headers).status_code != 403, headers
    assert len(served.service.store.closures()) == (path == "/v1/closures")


def test_every_change_from_another_site_is_refused(served: Served) -> None:
    """A new address that forgets its door would not be asked where its requests come from."""
    for path, methods in served.client.get("/v1/openapi.json").json()["paths"].items():
        for method in methods.keys() - {"get"}:
            answer = served.client.request(method, path.replace("{closure_id}", "aa"), headers=FOREIGN[0])
            assert answer.status_code == 403, (method, path)


@pytest.mark.parametrize("path", ["/v1/closures", "/v1/what-if", "/v1/session"])
@pytest.mark.parametrize(
    "media_type", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/jsonx"]
)
def test_a_body_is_json_only_where_it_says_so(served: Served, path: str, media_type: str) -> None:
    """A form of any page can send these types without asking first."""
    body = b'{"source": "34", "target": "41"}'
    answer = served.client.post(path, content=body, headers={"Content-Type": media_type} if media_type else {})
    assert answer.status_code == 415 and "application/json" in answer.json()["detail"]
    assert served.service.store.closures() == []


@pytest.fixture
def by_socket(town: Town, tmp_path: Path) -> Iterator[tuple[Running, httpx2.Client]]:
    path = tmp_path / "socket"
    store = open_store(str(tmp_path / "store.db"))
    transport = httpx2.HTTPTransport(uds=str(path))
    with running(town, store, path=path) as one, httpx2.Client(transport=transport, base_url="http://localhost") as own:
        yield one, own
    store.close()
    assert not path.exists()


def test_at_the_unix_socket_the_same_user_needs_no_token(
    by_socket: tuple[Running, httpx2.Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, client = by_socket
    path = Path(one.server.url.removeprefix("unix:"))
    assert path.stat().st_mode & 0o777 == 0o660
    assert client.get("/v1/session").json() == {
        "name": "owner of the process",
        "role": "admin",
        "rights": ["admin", "operate", "read", "write"],
        "by": "socket",
    }
    with closing(ServiceClient(one.server.url)) as own:
        assert own.get("/v1/time")["replay"] is False
    for headers in ({"X-Forwarded-For": "10.0.0.1"}, {"Via": "1.1 proxy"}, {"Origin": "http://localhost"}):
        assert client.get("/v1/session", headers=headers).status_code == 401, headers
    mine = os.getuid()
    monkeypatch.setattr("os.getuid", lambda: mine + 1)  # as if the other end, such as a proxy, were another user
    assert client.get("/v1/session").status_code == 401
    assert client.get("/v1/session", headers={"Authorization": f"Bearer {one.token}"}).status_code == 200


def test_a_socket_left_by_a_crash_is_replaced_and_one_in_use_is_not(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    listen_at(path).close()  # the file stays
    with closing(listen_at(path)), raises(ServiceError, "--socket", str(path)):
        listen_at(path)
    (tmp_path / "file").write_text("mine")
    with raises(ServiceError, "--socket", "file"):
        listen_at(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"
    with raises(ServiceError, "--socket"):
        listen_at(tmp_path / ("x" * 200))


def test_a_port_does_not_know_the_user_at_its_other_end(town: Town, tmp_path: Path) -> None:
    with closing(open_store(str(tmp_path / "store.db"))) as store, running(town, store) as one:
        assert one.raw("GET /v1/session HTTP/1.1\r\nHost: localhost\r\n\r\n") == 401


def test_a_link_hides_its_token_from_every_server() -> None:
    assert re.fullmatch(r"http://host/#token=frg_a_b", link("http://host/", "frg_a_b"))
