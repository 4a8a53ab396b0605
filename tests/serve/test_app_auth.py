"""Who may do what, and how often."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx2
import pytest

from frigate.serve.auth import TokenCheck, first_token, make_token
from frigate.serve.limits import Limits, Quota, Rate
from frigate.serve.page import page_policy
from frigate.serve.steady_time import SteadyTime
from frigate.serve.store import open_store
from tests.support.command_line import assert_refused, frigate
from tests.support.service import FakeTime, Served, Town, serve_town

ADDRESSES = {
    "read": [
        ("GET", path)
        for path in (
            "/v1/network.bin",
            "/v1/network.geojson",
            "/v1/forecast.bin",
            "/v1/forecast.json",
            "/v1/flows.csv",
            "/v1/nodes/0",
            "/v1/history.json?node=0",
            "/v1/trips?source=0&target=1",
            "/v1/trips.bin?source=0&target=1",
            "/v1/closures",
            "/v1/accuracy",
            "/v1/sensors",
            "/v1/quarantine",
            "/v1/time",
            "/metrics",
        )
    ]
    + [("POST", "/v1/what-if")],
    "write": [("POST", "/v1/readings")],
    "operate": [
        ("POST", "/v1/closures"),
        ("DELETE", "/v1/closures/aa"),
        ("PUT", "/v1/time"),
        ("POST", "/v1/quarantine/release"),
    ],
    "admin": [("GET", "/v1/audit")],
    "any": [("GET", "/v1/session")],
}
RIGHTS = {
    "read": {"read", "any"},
    "write": {"write", "any"},
    "operate": {"read", "operate", "any"},
    "replay": {"read", "write", "operate", "any"},
    "admin": {"read", "write", "operate", "admin", "any"},
}


@pytest.fixture(scope="module")
def guarded(town: Town, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, dict[str, str]]]:
    store = open_store(str(tmp_path_factory.mktemp("guarded") / "store.db"))
    tokens = {role: make_token(store, f"A {role}er", role, 0) for role in RIGHTS}
    with serve_town(town, store, limits=Limits(rate=1e6)) as served:
        yield served, tokens
    store.close()


def test_every_address_asks_for_the_right_that_it_needs(guarded: tuple[Served, dict[str, str]]) -> None:
    served, tokens = guarded
    described = served.client.get("/v1/openapi.json").json()["paths"]
    for right, addresses in ADDRESSES.items():
        for method, path in addresses:
            answer = served.stranger.request(method, path)
            assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer", path
            for role, token in tokens.items():
                status = served.stranger.request(method, path, headers={"Authorization": f"Bearer {token}"}).status_code
                assert (status not in (401, 403)) == (right in RIGHTS[role]), (method, path, role, status)
    tested = sum(len(each) for each in ADDRESSES.values())
    free = {"/healthz": 1, "/readyz": 1, "/v1/session": 2}  # in and out
    events = 1  # never end
    assert sum(len(each) for each in described.values()) == tested + sum(free.values()) + events


def test_without_a_token_there_are_the_page_and_health(guarded: tuple[Served, dict[str, str]]) -> None:
    served, _ = guarded
    for path in ("/healthz", "/readyz", "/"):
        assert served.stranger.get(path).status_code in (200, 404)  # the page may not be built
    assert served.stranger.get("/v1/events").status_code == 401


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer ", "Bearer frg_", "Bearer frg__", "Basic {}", "{}", "Bearer {}x", "Bearer x{}", "Bearer é"],
)
def test_a_token_must_be_right_to_the_last_letter(guarded: tuple[Served, dict[str, str]], header: str) -> None:
    served, tokens = guarded
    sent = header.format(tokens["read"]).encode("latin-1")
    assert served.stranger.get("/v1/closures", headers={b"Authorization": sent}).status_code == 401
    assert served.stranger.get("/v1/closures", headers={"Authorization": f"bearer {tokens['read']}"}).status_code == 200


def test_a_revoked_token_is_good_no_more(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store.db"))
    token = make_token(store, "Ana", "read", 0)
    gate = TokenCheck(store)
    gate.refresh()
    assert gate.caller(token) is not None
    store.revoke_token(token.split("_")[1], 1)
    gate._read_at -= 3  # as if it had read the tokens three seconds ago
    gate.refresh(token)
    assert gate.caller(token) is None
    again = TokenCheck(store)
    again.refresh()
    assert again.caller(token) is None and again.caller("") is None
    assert first_token(store, 2) is None  # the last token gone does not make another
    assert token[13:].encode() not in (tmp_path / "store.db").read_bytes()
    store.close()


@pytest.fixture
def open_served(town: Town, tmp_path: Path) -> Iterator[Served]:
    store = open_store(str(tmp_path / "store.db"))
    with serve_town(town, store, limits=Limits(rate=4, what_ifs=1)) as served:
        yield served
    store.close()


def test_too_many_requests_are_asked_to_wait(open_served: Served) -> None:
    answers = [open_served.client.get("/v1/closures") for _ in range(30)]
    told = [answer for answer in answers if answer.status_code == 429]
    assert 0 < len(told) < 30 and answers[0].status_code == 200
    assert told[0].headers["retry-after"] == "1" and told[0].json()["code"] == "too_many"
    assert open_served.client.get("/healthz").status_code == 200


def test_a_rate_is_of_each_client_and_fills_up_again() -> None:
    now = [0.0]
    rate = Rate(2.0, clock=lambda: now[0])
    assert [rate.wait_s("a") for _ in range(5)] == [0, 0, 0, 0, 0.5] and rate.wait_s("b") == 0
    now[0] += 0.5
    assert rate.wait_s("a") == 0 and rate.wait_s("a") == 0.5
    now[0] += 100
    assert [rate.wait_s("a") for _ in range(5)].count(0) == 4


def test_a_rate_remembers_a_bounded_number_of_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frigate.serve.limits.MANY", 3)
    rate = Rate(1.0, clock=lambda: 0.0)
    for client in ("a", "b", "c", "d"):
        rate.wait_s(client)
    assert list(rate._left) == ["b", "c", "d"]


def test_one_question_at_a_time_where_the_limit_is_one(open_served: Served) -> None:
    state = open_served.client.app.state.frigate  # type: ignore[attr-defined]
    road = open_served.roads()[0]
    with state.waiting_questions():
        busy = open_served.client.post("/v1/what-if", json={"close": [road]})
    assert busy.status_code == 503 and busy.headers["retry-after"] == "5"
    assert open_served.client.post("/v1/what-if", json={"close": [road]}).status_code == 200


def test_answers_carry_the_headers_of_a_page_that_trusts_nobody(guarded: tuple[Served, dict[str, str]]) -> None:
    served, _ = guarded
    for path, policy in (("/", "script-src 'self';"), ("/v1/closures", "default-src 'none'")):
        headers = served.client.get(path).headers
        assert policy in headers["content-security-policy"] and "unsafe-eval" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff" and headers["x-frame-options"] == "DENY"


@pytest.mark.parametrize(
    ("basemap", "others"),
    [("", ""), ("tiles/{z}.png", ""), ("https://tiles.example/{z}/{x}/{y}.png", " https://tiles.example")],
)
def test_the_page_may_ask_nobody_but_the_service_and_the_maker_of_its_map(basemap: str, others: str) -> None:
    rules = dict(rule.split(" ", 1) for rule in page_policy(basemap).split("; "))
    assert rules["connect-src"] == f"'self'{others}"
    assert rules["img-src"] == f"'self' data: blob:{others}"
    assert rules["script-src"] == rules["default-src"] == "'self'"


def test_browsers_keep_what_the_page_is_made_of_and_nothing_else(guarded: tuple[Served, dict[str, str]]) -> None:
    """The names of its parts change with what is in them."""
    served, _ = guarded
    parts = re.findall(r"assets/[^\"]+", served.client.get("/").text)
    assert parts
    for part in parts:
        assert "immutable" in served.client.get(f"/{part}").headers["cache-control"]
    for path, status in (("/assets/gone.js", 404), ("/", 200), ("/v1/closures", 200)):
        answer = served.client.get(path)
        assert answer.status_code == status and "immutable" not in answer.headers.get("cache-control", "")


def test_no_path_leads_out_of_the_pages_folder(guarded: tuple[Served, dict[str, str]]) -> None:
    served, _ = guarded
    for path in ("/../app.py", "/%2e%2e/app.py", "/assets/..%2f..%2fapp.py", "/%00", "/assets/%5c..%5capp.py"):
        answer = served.client.get(path)
        assert answer.status_code == 404 and "make_app" not in answer.text


def test_tokens_are_made_listed_and_revoked_by_command(tmp_path: Path) -> None:
    file = tmp_path / "service.db"
    made = frigate("token", "create", tmp_path, "--name", "Gate 4", "--role", "write")
    token_id = made.out.split("_")[1]
    assert made.out.startswith("frg_") and "shown only once" in made.err
    listed = frigate("token", "list", file).out
    assert listed.splitlines()[2].split()[:4] == [token_id, "Gate", "4", "write"]
    assert made.out.strip()[13:] not in listed
    assert_refused(frigate("token", "revoke", file, "zz"), "zz", token_id)
    assert frigate("token", "revoke", file, token_id).status == 0
    assert '"revoked": "2' in frigate("token", "list", file, "--json").out
    assert_refused(frigate("token", "revoke", file, token_id), token_id)
    assert_refused(frigate("token", "list", tmp_path / "nowhere.db"), "nowhere.db", "--store")
    assert not (tmp_path / "nowhere.db").exists()
    assert_refused(frigate("token", "create", file, "--name", "a\nb"), "printable")
    assert frigate("token", "create", file, "--name", "a", "--role", "oparate").status == 2


def test_a_token_ends_by_itself(tmp_path: Path) -> None:
    with closing(open_store(str(tmp_path / "store.db"))) as store:
        token = make_token(store, "Ana", "read", 1000, days=2)
        now = FakeTime(1000.0)
        gate = TokenCheck(store, now=now)
        gate.refresh()
        found = gate.caller(token)
        assert found is not None and gate.admits(found)
        now.now_s += 2 * 86_400
        assert gate.caller(token) is None and not gate.admits(found)


def test_no_token_ends_because_the_clock_jumped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wall = FakeTime(time.time())
    monkeypatch.setattr("frigate.serve.auth.SteadyTime", lambda: SteadyTime(wall))
    with closing(open_store(str(tmp_path / "store.db"))) as store:
        token = make_token(store, "Ana", "read", int(wall.now_s), days=2)
        gate = TokenCheck(store)
        gate.refresh()
        wall.now_s += 40 * 86_400
        found = gate.caller(token)
        assert found is not None and gate.admits(found)


def test_a_token_sends_for_its_sensors_only(town: Town, tmp_path: Path) -> None:
    with closing(open_store(str(tmp_path / "store.db"))) as store, serve_town(town, store) as served:
        a, b = served.service.city.node_names[:2]
        token = make_token(store, "Cabinet 12", "write", 0, sensors=[a])
        rows = [{"node": node, "time": served.time(), "value": 1} for node in (a, b)]
        sent = served.stranger.post(
            "/v1/readings", json={"readings": rows}, headers={"Authorization": f"Bearer {token}"}
        ).json()
        assert [row["status"] for row in sent["rows"]] == ["accepted", "refused"]
        assert sent["rows"][1]["reason"] == f'this token may not send readings of node "{b}"'
        assert served.client.post("/v1/readings", json={"readings": rows}).json()["refused"] == 0  # one for all


def test_a_token_sends_no_more_than_its_quota(town: Town, tmp_path: Path) -> None:
    with closing(open_store(str(tmp_path / "store.db"))) as store, serve_town(town, store) as served:
        headers = {"Authorization": f"Bearer {make_token(store, 'Cabinet 12', 'write', 0, per_minute=5)}"}
        node = served.service.city.node_names[0]

        def send(count: int) -> httpx2.Response:
            rows = [{"node": node, "time": served.time() - k, "value": 1} for k in range(count)]
            return served.stranger.post("/v1/readings", json={"readings": rows}, headers=headers)

        assert [send(count).status_code for count in (0, 4, 6)] == [200, 200, 413]
        beyond = send(3)
        assert (beyond.status_code, beyond.json()["code"]) == (429, "too_many")
        assert 1 <= int(beyond.headers["retry-after"]) <= 24
        assert len(store.readings(0, 2**62, node)[1]) == 4 + 1  # and that of the snapshot before
        assert send(1).status_code == 200
        unread = served.stranger.post(
            "/v1/readings", content=b"no JSON", headers=headers | {"Content-Type": "text/csv"}
        )
        assert unread.status_code == 429


def test_a_quota_fills_up_again() -> None:
    now = [0.0]
    quota = Quota(clock=lambda: now[0])
    assert quota.wait_s("a", 60, 60, take=True) == 0 and quota.wait_s("a", 60, 30, take=True) == 30
    now[0] += 30
    assert quota.wait_s("a", 60, 30, take=False) == 0 and quota.wait_s("a", 60, 30, take=True) == 0
    now[0] += 1e6
    assert quota.wait_s("a", 60, 60, take=True) == 0 < quota.wait_s("a", 60, 1, take=True)


def test_limits_of_tokens_are_typed_and_listed(town: Town, tmp_path: Path) -> None:
    run = town.folder / "run"
    node = town.served.node_names[0]
    words = ["token", "create", run, "--name", "Cabinet 12", "--role", "write"]
    made = frigate(*words, "--sensor", node, "--per-minute", "60", "--days", "1.5")
    assert made.status == 0, made.err
    (listed,) = [each for each in json.loads(frigate("token", "list", run, "--json").out) if each["id"] in made.out]
    assert (listed["sensors"], listed["per minute"]) == (node, "60") and listed["expires"] > listed["created"]
    assert_refused(frigate(*words, "--sensor", f"{node}x"), f'"{node}x"', node)
    assert_refused(frigate(*words, "--days", "0"), "--days 0")
    assert_refused(frigate(*words, "--days", "nan"), "--days")
    assert_refused(frigate(*words, "--per-minute", "0"), "--per-minute 0")
    assert_refused(frigate(*words[:-1], "read", "--per-minute", "5"), '"read"')
    (run / "service.db").unlink()
