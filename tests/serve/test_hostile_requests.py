"""Hostile requests: bodies, headers and words that nobody sends who means well (`make test-hostile`).

All attack one service, and after each it must be as before: `tests.support.siege`.
"""

from __future__ import annotations

import gzip
import json
import random
import time
from collections import Counter
from functools import partial
from typing import Any
from urllib.parse import quote

import httpx2
import pytest

from frigate.serve.batches import ARROW, CSV, JSON, MEDIA_TYPES
from tests.support.foreign_bodies import arrow, good_bodies, mutated, table, with_number
from tests.support.siege import PATIENCE_S, RawSocket, Siege, at_once, head

pytestmark = [pytest.mark.slow, pytest.mark.hostile]
MB = 2**20


def test_damaged_arrow_and_other_bodies(siege: Siege, draws: random.Random) -> None:
    bodies = good_bodies(siege.node(), time.time())
    for _ in range(300):
        media_type, body = draws.choice(bodies)
        media_type = media_type if draws.random() < 0.9 else draws.choice(MEDIA_TYPES)
        answer = siege.ask("POST", "/v1/readings", content=mutated(body, draws), headers={"Content-Type": media_type})
        assert answer.status_code in (200, 400, 413)


def test_bodies_that_would_swell(siege: Siege) -> None:
    """A few bytes that say that they are billions of rows, nested for ever, or packed."""
    nothing = table(7, node=[None] * 7, time=[None] * 7, value=[None] * 7)
    zeros = gzip.compress(bytes(200 * MB), 9)
    deep = b'{"readings":' + b"[" * 100_000
    bombs = [
        *(
            (ARROW[file], with_number(arrow(nothing, file=bool(file)), 7, rows))
            for file in (0, 1)
            for rows in (2**31, 2**62)
        ),
        (ARROW[0], arrow(table(50_000), compression="zstd")),
        (JSON, deep),
        (JSON, b'{"readings":[{"node":1,"time":' + b"9" * 1_000_000 + b',"value":1}]}'),
        (JSON, b'{"readings":[' + b"{}," * 2_000_000 + b"{}]}"),
        (CSV, b"node,time,value\n" + b"1,1,1\n" * 1_200_000),
        (CSV, b"node,time,value\n" + b"x" * 7 * MB),
        (CSV, b'node,time,value\n"' + b"\n" * 7 * MB),
        (CSV, b"node,time,value\n" + b"," * 7 * MB),
    ]

    def send(media_type: str, body: bytes, **more: str) -> None:
        headers = {"Content-Type": media_type, **more}
        answer = siege.ask("POST", "/v1/readings", content=body, headers=headers)
        assert answer.status_code in (200, 400, 413, 415, 422, 503), answer.text[:300]
        assert answer.status_code != 200 or answer.json()["accepted"] == 0

    at_once([partial(send, *bomb) for bomb in bombs])
    for encoding in ("gzip", "deflate", "br", "zstd", "gzip, gzip"):
        for path in ("/v1/readings", "/v1/closures", "/v1/what-if", "/v1/session"):
            answer = siege.ask(
                "POST", path, content=zeros, headers={"Content-Type": JSON, "Content-Encoding": encoding}
            )
            assert answer.status_code in (413, 415)


def test_megabytes_without_a_token(siege: Siege) -> None:
    body = b'{"close":[' + b'["1","2"],' * 800_000 + b'["1","2"]]}'

    def send(path: str) -> None:
        answer = siege.ask("POST", path, role=None, content=body, headers={"Content-Type": JSON})
        assert answer.status_code in (401, 413)

    at_once([partial(send, path) for path in ("/v1/closures", "/v1/what-if", "/v1/readings") * 20])
    assert siege.ask("POST", "/v1/session", role=None, content=body, headers={"Content-Type": JSON}).status_code == 413


def test_closures_at_times_that_no_calendar_has(siege: Siege, draws: random.Random) -> None:
    source, target = next(iter(siege.city.road_of))
    times = [
        "9999-12-31T23:59:59Z", "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00Z", "2200-01-01T00:00:01Z",
        "+275760-09-13T00:00:00Z", "2030-02-30T00:00:00Z", "2030-01-01T00:00:00", 1e300, -1, 10**30, "NaN", "", [], {},
    ]  # fmt: skip
    before = siege.ask("GET", "/v1/closures?ended=true").json()
    for _ in range(200):
        body = {"source": source, "target": target, draws.choice(["begin", "end"]): draws.choice(times)}
        answer = siege.ask("POST", "/v1/closures", content=json.dumps(body), headers={"Content-Type": JSON})
        assert answer.status_code in (400, 422), answer.text
    assert siege.ask("GET", "/v1/closures?ended=true").json() == before
    assert siege.ask("GET", "/v1/forecast.bin").status_code == 200


def test_the_last_second_that_a_calendar_has(siege: Siege) -> None:
    source, target = next(iter(siege.city.road_of))
    road = {"source": source, "target": target, "end": "2200-01-01T00:00:00Z"}
    closed = siege.ask("POST", "/v1/closures", json=road)
    assert closed.status_code == 201
    siege.await_forecast()
    for path in ("closures", "forecast.bin", "forecast.json", "flows.json"):
        assert siege.ask("GET", f"/v1/{path}").status_code == 200
    assert siege.ask("DELETE", f"/v1/closures/{closed.json()['id']}").status_code == 200


TRICKS = {
    "Host": ["localhost", "127.0.0.1", "evil.example", "127.0.0.1:1", "[::1]", "a" * 5000, "\xff"],
    "X-Forwarded-For": ["127.0.0.1", "::1", "127.0.0.1, 8.8.8.8", "'; DROP TABLE tokens; --"],
    "X-Real-IP": ["127.0.0.1"],
    "X-Forwarded-Host": ["127.0.0.1"],
    "X-Forwarded-Proto": ["https"],
    "Forwarded": ["for=127.0.0.1;host=127.0.0.1;proto=https"],
    "X-Original-URL": ["/healthz"],
    "X-Rewrite-URL": ["/healthz"],
    "X-HTTP-Method-Override": ["GET", "DELETE"],
    "Origin": ["http://127.0.0.1", "null", "http://evil.example", "file://"],
    "Sec-Fetch-Site": ["same-origin", "none", "cross-site", "same-site", "x"],
    "Authorization": ["Bearer", "Bearer frg__", "Basic YWRtaW46YWRtaW4=", "Bearer frg_00000000_" + "A" * 43, "\xff"],
    "Cookie": ["frigate=1", "frigate-00000000=frg_1_1", "=; =;" * 100],
    "Connection": ["Upgrade", "close", "keep-alive, Authorization"],
    "Upgrade": ["websocket", "h2c"],
    "Expect": ["100-continue"],
    "Content-Length": ["0", "-1", "99999999999999999999", "1, 1"],
    "Transfer-Encoding": ["chunked", "identity", "chunked, chunked"],
}  # fmt: skip


def test_headers_that_claim_to_be_somebody(siege: Siege, draws: random.Random) -> None:
    """Without a token nothing is told and nothing closed, whatever a request says of where it comes from."""
    source, target = next(iter(siege.city.road_of))
    before = siege.ask("GET", "/v1/closures?ended=true").json()
    body = json.dumps({"source": source, "target": target})
    targets = ["/v1/closures", "//v1/closures", "/v1/closures/", "/V1/closures", "/v1/%63losures", "/./v1/closures",
               "/x/../v1/closures", "http://127.0.0.1/v1/closures", "*", "/v1/closures?token=x"]  # fmt: skip
    statuses: Counter[int] = Counter()
    for _ in range(500):
        names = draws.sample(sorted(TRICKS), draws.randint(1, 5))
        more = [f"{name}: {draws.choice(TRICKS[name])}" for name in names]
        more += draws.choice([[], [f"Content-Type: {JSON}", f"Content-Length: {len(body)}"]])
        words = head(siege, f"{draws.choice(['POST', 'GET', 'DELETE'])} {draws.choice(targets)}", *more, role=None)
        with RawSocket(siege) as raw:
            status = raw.send(words + body).send("\r\n\r\n" * 2).status() if "Expect" not in names else 0
        statuses[status] += 1
        assert status < 500, words
        assert status == 0 or status >= 400 or "* HTTP" in words, words
    assert siege.ask("GET", "/v1/closures?ended=true").json() == before
    assert statuses[401] > 20, statuses


def test_pages_of_other_sites(siege: Siege) -> None:
    """With the cookie of a user who is signed in, and even with a token."""
    source, target = next(iter(siege.city.road_of))
    signed_in = siege.ask("POST", "/v1/session", json={"token": siege.tokens["admin"]}, role=None)
    cookie = signed_in.headers["set-cookie"].partition(";")[0]
    before = siege.ask("GET", "/v1/closures?ended=true").json()
    foreign: list[dict[str, str]] = [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": f"http://127.0.0.1:{siege.service.port + 1}"},
        {"Origin": siege.service.url, "Sec-Fetch-Site": "same-site"},
    ]
    with httpx2.Client(base_url=siege.service.url, timeout=PATIENCE_S) as http:
        for more in foreign:
            for known in ({"Cookie": cookie}, siege.headers("admin")):
                for kind in (JSON, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
                    body = json.dumps({"source": source, "target": target})
                    headers = {**more, **known, "Content-Type": kind}
                    assert siege.allowed(http.post("/v1/closures", content=body, headers=headers)).status_code == 403
            assert siege.allowed(http.get("/v1/closures", headers={**more, "Cookie": cookie})).status_code == 401
    assert siege.ask("GET", "/v1/closures?ended=true").json() == before


WORDS = [
    "", "0", "-1", "1e400", "NaN", "null", "true", "[]", "'; DROP TABLE readings; --", "<script>alert(1)</script>",
    "../../etc/passwd", "%00", "\u0000", "\ud7ff", "é" * 300, "a" * 5_000, "=1+1", "6.1,49.5,6.2,49.7", "9,9,1,1",
    "2024-03-04T08:00:00Z", "9999-12-31T00:00:00Z", "2**63", str(2**63), "json", "csv", "arrow", "x/y/z", "💥",
]  # fmt: skip
WRITING = {
    ("POST", "/v1/closures"),
    ("DELETE", "/v1/closures/{closure_id}"),
    ("POST", "/v1/readings"),
    ("PUT", "/v1/time"),
}
OPEN = {"/healthz", "/readyz", "/v1/session"}


def test_random_walks_over_the_whole_api_by_all_roles(siege: Siege, draws: random.Random) -> None:
    """Valid and broken requests to every address, by every role, by strangers and with broken tokens."""
    description = siege.ask("GET", "/v1/openapi.json").json()
    operations = [
        (method.upper(), path, found)
        for path, methods in description["paths"].items()
        for method, found in methods.items()
        if path != "/v1/events"
    ]
    roles: list[str | None] = [*siege.tokens, None]

    def walk(seed: int) -> None:
        mine = random.Random(seed)
        for _ in range(250):
            method, path, found = mine.choice(operations)
            role = mine.choice(roles)
            answer = siege.ask(**_request(siege, mine, method, path, found), role=role)
            _check_walked(answer, method, path, role, found)

    at_once([partial(walk, draws.randrange(2**32)) for _ in range(8)])
    for closure in siege.ask("GET", "/v1/closures").json()["closures"]:
        siege.ask("DELETE", f"/v1/closures/{closure['id']}")


def _request(siege: Siege, draws: random.Random, method: str, path: str, found: dict[str, Any]) -> dict[str, Any]:
    names = [*siege.sensors[:3], *siege.city.node_names[:3]]

    def word() -> str:
        return draws.choice(names) if draws.random() < 0.4 else draws.choice(WORDS)

    params = [
        (each["name"], word()) for each in found.get("parameters", []) if each["in"] == "query" and draws.random() < 0.6
    ]
    for each in found.get("parameters", []):
        if each["in"] == "path":
            form = each["name"] == "form" and draws.random() < 0.8
            value = draws.choice(["json", "csv", "arrow"]) if form else word()
            path = path.replace(f"{{{each['name']}}}", quote(value, safe="") or "x")
    path = path.replace(":path", "")
    asked: dict[str, Any] = {"method": method, "path": path, "params": params}
    if "requestBody" in found:
        source, target = draws.choice(list(siege.city.road_of))
        bodies = [
            {"source": source, "target": target},
            {"close": [[source, target]]},
            {"close": [[word(), word()]] * draws.randint(0, 20), "add": [[source, target]]},
            {"token": word()},
            {"readings": [{"node": word(), "time": word(), "value": word()}] * draws.randint(0, 30)},
            {"source": word(), "target": word(), "begin": word(), "end": word()},
            {"time": word()},
            [],
            word(),
        ]
        asked["content"] = json.dumps(draws.choice(bodies)).encode()[: draws.choice([10**9, 10**9, 10**9, 20])]
        asked["headers"] = {"Content-Type": draws.choice([JSON, JSON, JSON, CSV, "text/plain", "x"])}
    return asked


def _check_walked(answer: httpx2.Response, method: str, path: str, role: str | None, found: dict[str, Any]) -> None:
    """Only what the description says, and only to those who may."""
    status = answer.status_code
    described = {int(each) for each in found["responses"]} | {404, 405, 307}
    assert status in described, f"{method} {answer.request.url}: {status} {answer.text[:300]}"
    if status < 300 and path not in OPEN:
        assert role is not None, (method, path)
        assert (method, path) not in WRITING or role not in ("read",), (method, path, role)
        assert role != "write" or path == "/v1/readings", (method, path)
