"""What the documents say about running the service is tried: the unit, the proxy, the backup."""

from __future__ import annotations

import http.client
import json
import os
import re
import shlex
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from frigate.serve.auth import make_token
from frigate.serve.memory import DESCRIPTORS
from frigate.serve.store import Reading, open_store
from tests.support.documents import ROOT
from tests.support.service import Town
from tests.support.service_process import Nursery, free_port, until

DEPLOY = ROOT / "docs" / "deploy"
NGINX = shutil.which("nginx", path=os.environ["PATH"] + os.pathsep + "/usr/sbin")
ANALYZE = shutil.which("systemd-analyze")


def listens(port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")
def test_the_unit_is_one(tmp_path: Path) -> None:
    text = (DEPLOY / "frigate.service").read_text()
    command = re.search(r"^ExecStart=(\S+) serve ", text, re.MULTILINE)
    assert command is not None
    limits = dict(re.findall(r"^(LimitNOFILE|MemoryMax)=(.*)$", text, re.MULTILINE))
    assert int(limits["LimitNOFILE"]) == DESCRIPTORS and limits["MemoryMax"].endswith("G")
    unit = tmp_path / "frigate.service"
    unit.write_text(text.replace(command[1], "/bin/true").replace("User=frigate", "User=root"))
    done = subprocess.run([str(ANALYZE), "verify", unit], capture_output=True, text=True, check=False)
    assert (done.returncode, [line for line in done.stderr.splitlines() if "frigate" in line]) == (0, [])


class Nginx:
    """nginx with a file of the documents, with other ports and a certificate of the test's, and further servers."""

    def __init__(self, folder: Path, name: str, replaced: dict[str, str], servers: str = "") -> None:
        self.secure, self.plain = free_port(), free_port()
        self._certify(folder)
        text = (DEPLOY / name).read_text()
        for old, new in {
            **replaced,
            "/etc/letsencrypt/live/traffic.example": str(folder),
            "listen 80;": f"listen 127.0.0.1:{self.plain};",
            "listen 443 ssl http2;": f"listen 127.0.0.1:{self.secure} ssl http2;",
        }.items():
            assert old in text, old
            text = text.replace(old, new)
        (folder / "site.conf").write_text(re.sub(r"listen \[::\].*", "", text))
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        temporary = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
        (folder / "nginx.conf").write_text(
            f"pid {folder}/pid; error_log {folder}/error.log; daemon off; user root; events {{}}\n"
            f"http {{ access_log off; {temporary} include {folder}/site.conf; {servers} }}\n"
        )
        words: list[str | Path] = [str(NGINX), "-c", folder / "nginx.conf", "-e", folder / "error.log"]
        checked = subprocess.run([*words, "-t"], capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stderr
        self._process = subprocess.Popen(words)
        self._trusted = ssl.create_default_context(cafile=str(folder / "fullchain.pem"))
        self._trusted.check_hostname = False

    def _certify(self, folder: Path) -> None:
        subject = ["-subj", "/CN=traffic.example", "-addext", "subjectAltName=DNS:traffic.example", "-nodes"]
        files: list[str | Path] = ["-keyout", folder / "privkey.pem", "-out", folder / "fullchain.pem"]
        words: list[str | Path] = ["openssl", "req", "-x509", "-newkey", "rsa:2048", *files, *subject]
        subprocess.run(words, check=True, capture_output=True)

    @contextmanager
    def ask(
        self, path: str, method: str = "GET", body: object = None, **headers: str
    ) -> Iterator[http.client.HTTPResponse]:
        """Over TLS. An underscore in the name of a header stands for a hyphen."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        sent = None if body is None else json.dumps(body)
        address = ("127.0.0.1", self.secure)
        with closing(http.client.HTTPSConnection(*address, context=self._trusted, timeout=30)) as connection:
            connection.request(method, path, sent, {"Connection": "close", "Content-Type": "application/json", **named})
            with connection.getresponse() as answer:
                yield answer

    def status(self, path: str, method: str = "GET", body: object = None, **headers: str) -> int:
        with self.ask(path, method, body, **headers) as answer:
            return answer.status

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


@pytest.mark.skipif(NGINX is None, reason="nginx is not installed")
def test_nginx_passes_on_what_it_should(nursery: Nursery, tmp_path: Path) -> None:
    store_path = str(tmp_path / "store.db")
    with closing(open_store(store_path)) as store:
        token = make_token(store, "test", "read", 0)
    words = ("--replay", "--store", store_path)
    service = nursery.serve(tmp_path / "log", *words, "--proxy", "127.0.0.1", "--sso", "*=admin")
    at_socket = nursery.start(tmp_path / "log2", *words, "--socket", str(tmp_path / "socket"))
    until((tmp_path / "socket").is_socket, "it listens")
    bare = {free_port(): f"http://127.0.0.1:{service.port}", free_port(): f"http://unix:{tmp_path}/socket"}
    openings = "".join(
        f"server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass {to}; }} }}\n" for port, to in bare.items()
    )
    nginx = Nginx(tmp_path, "nginx.conf", {"127.0.0.1:8350": f"127.0.0.1:{service.port}"}, openings)
    try:
        until(lambda: listens(nginx.secure), "nginx runs")
        with nginx.ask("/healthz") as answer:
            assert answer.status == 200 and answer.headers["Strict-Transport-Security"]
        assert nginx.status("/v1/time") == 401  # though nginx comes from this machine
        assert nginx.status("/v1/time", X_Forwarded_Email="anna@city.example") == 401  # and signs nobody in
        assert nginx.status("/v1/time", Authorization=f"Bearer {token}") == 200
        with nginx.ask("/v1/events", Authorization=f"Bearer {token}") as answer:
            assert answer.readline() == b"retry: 2000\n"  # at once, though the stream goes on
        for port, behind in bare.items():  # a proxy that says nothing of those it asks for opens nothing
            for method, path in (("GET", "/v1/closures"), ("POST", "/v1/closures"), ("GET", "/healthz")):
                with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
                    connection.request(method, path, b"{}", {"Content-Type": "application/json"})
                    assert connection.getresponse().status == (200 if path == "/healthz" else 401), (behind, path)
        with closing(http.client.HTTPConnection("127.0.0.1", nginx.plain, timeout=30)) as connection:
            connection.request("GET", "/map", headers={"Host": "traffic.example"})
            answer = connection.getresponse()
            assert (answer.status, answer.headers["Location"]) == (301, "https://traffic.example/map")
    finally:
        nginx.stop()
    service.terminate()
    at_socket.terminate()


class SignIn(BaseHTTPRequestHandler):
    """In place of oauth2-proxy: the cookie says who is there."""

    USERS: ClassVar = {"anna": "staff,traffic-control", "bob": "staff"}

    def do_GET(self) -> None:
        user = (self.headers["Cookie"] or "").removeprefix("session=")
        known = user in self.USERS
        self.send_response(200 if self.path != "/oauth2/auth" else 202 if known else 401)
        if known:
            self.send_header("X-Auth-Request-User", user)
            self.send_header("X-Auth-Request-Email", f"{user}@city.example")
            self.send_header("X-Auth-Request-Groups", self.USERS[user])
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.mark.skipif(NGINX is None, reason="nginx is not installed")
def test_users_sign_in_at_a_proxy(nursery: Nursery, town: Town, tmp_path: Path) -> None:
    store_path = str(tmp_path / "store.db")
    with closing(open_store(store_path)) as store:
        token = make_token(store, "a sensor", "write", 0)
    sign_in = ThreadingHTTPServer(("127.0.0.1", 0), SignIn)
    threading.Thread(target=sign_in.serve_forever, daemon=True).start()
    document = (DEPLOY / "nginx-sso.conf").read_text()
    command = re.search(r"^#   frigate serve RUN --socket \S+ (.*)$", document, re.MULTILINE)
    assert command is not None
    socket_path = str(tmp_path / "socket")
    words = ("--replay", "--store", store_path, "--socket", socket_path, *shlex.split(command[1]))
    service = nursery.start(tmp_path / "log", *words)
    until(Path(socket_path).is_socket, "it listens")
    places = {"/run/frigate/socket;": f"{socket_path};", "127.0.0.1:4180": f"127.0.0.1:{sign_in.server_address[1]}"}
    nginx = Nginx(tmp_path, "nginx-sso.conf", places)
    source, target = next(iter(town.served.road_of))
    road = {"source": source, "target": target}
    anna, bob = ({"Cookie": f"session={name}"} for name in ("anna", "bob"))
    own = {"Host": "traffic.example", "Origin": "https://traffic.example", "Sec_Fetch_Site": "same-origin"}
    try:
        until(lambda: listens(nginx.secure), "nginx runs")
        with nginx.ask("/?hour=1") as answer:
            assert answer.status == 302 and answer.headers["Location"].endswith("/oauth2/start?rd=/?hour=1")
        assert nginx.status("/", **anna) == 200 and nginx.status("/oauth2/start") == 200
        for name, role in (("anna", "operate"), ("bob", "read")):
            with nginx.ask("/v1/session", Cookie=f"session={name}") as answer:
                told = json.load(answer)
            assert (told["name"], told["role"], told["by"]) == (f"{name}@city.example", role, "sso")
        forged = {"X_Forwarded_Email": "anna@city.example", "X_Forwarded_Groups": "traffic-control"}
        assert nginx.status("/v1/session", **forged) == 401
        assert nginx.status("/v1/closures", "POST", road, **bob, **forged, **own) == 403
        for foreign in ({"Origin": "https://evil.example"}, own | {"Sec_Fetch_Site": "cross-site"}):
            assert nginx.status("/v1/closures", "POST", road, **anna, **foreign) == 403
        assert nginx.status("/v1/closures", "POST", road, **anna, **own) == 201
        assert nginx.status("/v1/closures", "POST", road, **anna, **own) == 200  # it is closed already
        readings: dict[str, list[object]] = {"readings": []}
        assert nginx.status("/v1/readings", "POST", readings, **forged) == 401
        assert nginx.status("/v1/readings", "POST", readings, Authorization=f"Bearer {token}") == 200
        with nginx.ask("/v1/events", **bob) as answer:
            assert answer.readline() == b"retry: 2000\n"
        with closing(open_store(store_path)) as store:
            (entry,) = store.audit(most=9, action="closure.begin")
        assert (entry.name, entry.role, entry.client) == ("anna@city.example", "operate", "127.0.0.1")
    finally:
        nginx.stop()
        sign_in.shutdown()
        sign_in.server_close()
    service.terminate()


def test_a_backup_is_whole(tmp_path: Path) -> None:
    """The command of the documents, while the store is open."""
    text = (ROOT / "docs" / "operations.md").read_text()
    command = re.search(r"^python3 (-c .*\.backup\(.*)$", text, re.MULTILINE)
    assert command is not None
    readings = [Reading("a", k, float(k)) for k in range(1000)]
    with closing(open_store(str(tmp_path / "service.db"))) as store:
        store.add_readings(readings, 0)
        subprocess.run(["python3", *shlex.split(command[1])], cwd=tmp_path, check=True)
    with closing(open_store(str(tmp_path / "backup.db"))) as copy:
        assert copy.readings(0, 1000)[2].tolist() == [reading.value for reading in readings]
