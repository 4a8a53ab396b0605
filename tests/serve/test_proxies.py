"""What a proxy says of a client and its user is believed of a trusted proxy only."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.datastructures import Headers
from starlette.testclient import TestClient

from frigate.errors import ServiceError
from frigate.serve.app import make_app
from frigate.serve.auth import make_token
from frigate.serve.limits import Limits
from frigate.serve.proxies import STREAM_S, Proxies
from frigate.serve.store import Store, open_store
from tests.support.errors import raises
from tests.support.service import Served, Town, serve_town

ANNA = {"x-forwarded-email": "anna@city.example", "x-forwarded-groups": "staff,traffic control"}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = open_store(str(tmp_path / "store.db"))
    yield store
    store.close()


@pytest.fixture
def served(town: Town, store: Store) -> Iterator[Served]:
    with serve_town(town, store) as served:
        yield served


def behind(
    served: Served, *proxies: str, sso: tuple[str, ...] = (), address: str = "10.0.0.1", rate: float = 1e6
) -> TestClient:
    """A client whose requests come from an address."""
    app = make_app(served.service, limits=Limits(rate=rate), proxies=Proxies.parse(proxies, sso))
    return TestClient(app, base_url="http://127.0.0.1", client=(address, 1), raise_server_exceptions=False)


@pytest.mark.parametrize(
    ("address", "forwarded", "client"),
    [
        ("10.0.0.1", ["203.0.113.7"], "203.0.113.7"),
        ("10.0.0.1", ["198.51.100.1, 203.0.113.7"], "203.0.113.7"),  # the first is the client's own word
        ("10.0.0.1", ["198.51.100.1", "203.0.113.7, 10.2.3.4"], "203.0.113.7"),  # through two proxies
        ("10.0.0.1", ["10.2.3.4"], "10.2.3.4"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["<script>"], "10.0.0.1"),
        ("10.0.0.1", ["203.0.113.7, unknown"], "10.0.0.1"),
        ("::ffff:10.0.0.1", ["2001:db8::7"], "2001:db8::7"),
        ("192.0.2.1", ["203.0.113.7"], "192.0.2.1"),  # no proxy of ours
        ("", ["203.0.113.7"], "unix socket"),
    ],
)
def test_the_client_is_the_last_address_that_is_no_proxy(address: str, forwarded: list[str], client: str) -> None:
    headers = Headers(raw=[(b"x-forwarded-for", line.encode()) for line in forwarded])
    assert Proxies.parse(["10.0.0.0/8"]).client(address, headers) == client
    if not address:
        assert Proxies.parse(["unix"]).client(address, headers) == "203.0.113.7"


@pytest.mark.parametrize(
    ("headers", "role"),
    [
        (ANNA, "operate"),
        (ANNA | {"x-forwarded-groups": "staff"}, "read"),
        (ANNA | {"x-forwarded-groups": "traffic"}, "read"),
        ({"x-forwarded-user": "anna"}, "read"),
        ({"x-forwarded-groups": "traffic control"}, None),  # of nobody
        ({"x-forwarded-email": " "}, None),
        ({"x-forwarded-email": "a\tb"}, None),
        ({"x-forwarded-email": "a" * 81}, None),
    ],
)
def test_a_user_has_the_role_of_the_group_that_may_do_most(headers: dict[str, str], role: str | None) -> None:
    proxies = Proxies.parse(["10.0.0.1"], ["*=read", "traffic control=operate"])
    found = proxies.user("10.0.0.1", Headers(headers))
    assert (None if found is None else found.role) == role
    assert proxies.user("10.0.0.2", Headers(headers)) is None and proxies.user("", Headers(headers)) is None
    assert Proxies.parse(["10.0.0.1"]).user("10.0.0.1", Headers(headers)) is None


def test_who_is_in_no_group_with_a_role_may_do_nothing(served: Served) -> None:
    client = behind(served, "10.0.0.1", sso=("traffic control=operate",))
    assert client.get("/v1/session", headers=ANNA | {"x-forwarded-groups": "staff"}).status_code == 401
    told = {"name": "anna@city.example", "role": "operate", "rights": ["operate", "read"], "by": "sso"}
    assert client.get("/v1/session", headers=ANNA).json() == told


def test_a_header_that_is_sent_twice_names_nobody() -> None:
    """A proxy that appends its own leaves that of the client beside it."""
    twice = Headers(raw=[(b"x-forwarded-email", name) for name in (b"admin@city.example", b"anna@city.example")])
    assert Proxies.parse(["10.0.0.1"], ["*=admin"]).user("10.0.0.1", twice) is None


def test_a_user_is_believed_of_no_other_address_and_not_without_being_asked_to(served: Served) -> None:
    for proxies, sso, address in (
        (("10.0.0.1",), ("*=admin",), "10.0.0.2"),
        (("10.0.0.1",), (), "10.0.0.1"),
        ((), (), "127.0.0.1"),
    ):
        client = behind(served, *proxies, sso=sso, address=address)
        for method, path in (("GET", "/v1/closures"), ("POST", "/v1/closures"), ("GET", "/v1/audit")):
            assert client.request(method, path, headers=ANNA).status_code == 401


def test_an_act_is_told_with_the_user_and_the_clients_address(
    served: Served, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    from_afar = ANNA | {"x-forwarded-for": "198.51.100.1, 203.0.113.7"}
    client = behind(served, "10.0.0.1", sso=("*=operate",))
    source, target = served.roads()[0]
    body = {"source": source, "target": target}
    with caplog.at_level(logging.INFO, "frigate.serve"):
        made = client.post("/v1/closures", json=body, headers=from_afar)
    assert made.status_code == 201
    (entry,) = store.audit(most=9, action="closure.begin")
    assert (entry.token, entry.name, entry.role) == ("", "anna@city.example", "operate")
    assert entry.client == "203.0.113.7"
    (line,) = [each for each in caplog.records if each.message == "request"]
    assert vars(line)["client"] == "203.0.113.7" and vars(line)["user"] == "anna@city.example"
    token = {"Authorization": f"Bearer {make_token(store, 'Bob', 'operate', 0)}"}
    served.service.gate.refresh()
    client.delete(f"/v1/closures/{made.json()['id']}", headers=from_afar | token)  # with a token, it is the token's
    assert store.audit(most=1)[0].name == "Bob" and store.audit(most=1)[0].client == "203.0.113.7"


@pytest.mark.parametrize("headers", [{"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}])
def test_a_page_of_another_site_cannot_use_the_sign_in(served: Served, headers: dict[str, str]) -> None:
    """The proxy's cookie comes along with its requests."""
    client = behind(served, "10.0.0.1", sso=("*=admin",))
    source, target = served.roads()[0]
    body = {"source": source, "target": target}
    assert client.post("/v1/closures", json=body, headers=ANNA | headers).status_code == 403
    assert client.get("/v1/closures", headers=ANNA | headers).status_code == 401
    own = {"Sec-Fetch-Site": "same-origin", "Origin": "http://127.0.0.1"}
    assert client.post("/v1/closures", json=body, headers=ANNA | own).status_code == 201


def test_clients_behind_a_proxy_have_a_rate_each(served: Served) -> None:
    client = behind(served, "10.0.0.1", rate=0.001)
    one, other = ({"x-forwarded-for": f"203.0.113.{k}"} for k in (7, 8))
    assert [client.get("/v1/time", headers=headers).status_code for headers in (one, one, other)] == [401, 429, 401]


def test_each_user_has_a_share_of_the_streams() -> None:
    proxies = Proxies.parse(["10.0.0.1"], ["*=read"])
    users = [proxies.user("10.0.0.1", Headers({"x-forwarded-user": name})) for name in ("anna", "bob")]
    assert len({user.key for user in users if user}) == 2


def test_the_stream_of_a_user_ends_so_that_the_proxy_is_asked_again(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Proxies.parse(["10.0.0.1"], ["*=read"]).user("10.0.0.1", Headers(ANNA))
    assert found is not None and served.service.gate.admits(found)
    assert found.until is not None
    monkeypatch.setattr("frigate.serve.auth.time.monotonic", lambda: found.until)
    assert STREAM_S > 60 and not served.service.gate.admits(found)


@pytest.mark.parametrize(
    ("proxies", "sso", "named"),
    [
        (["nginx"], [], ('--proxy "nginx"', "127.0.0.1", "unix")),
        (["10.0.0.1/8"], [], ('--proxy "10.0.0.1/8"',)),
        ([], ["*=read"], ("--sso", "--proxy")),
        (["unix"], ["read"], ('--sso "read"', "GROUP=ROLE")),
        (["unix"], ["=read"], ('--sso "=read"', "GROUP=ROLE")),
        (["unix"], ["staff=oparate"], ("oparate", "operate")),
    ],
)
def test_mistakes_are_said(proxies: list[str], sso: list[str], named: tuple[str, ...]) -> None:
    with raises(ServiceError, *named):
        Proxies.parse(proxies, sso)
