"""What the documents say about running the service is tried: the unit, the proxy, the backup."""

from __future__ import annotations

import http.client
import os
import re
import shlex
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from frigate.serve.auth import make_token
from frigate.serve.memory import DESCRIPTORS
from frigate.serve.store import Reading, open_store
from tests.support.documents import ROOT
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


@pytest.mark.skipif(NGINX is None, reason="nginx is not installed")
def test_nginx_passes_on_what_it_should(nursery: Nursery, tmp_path: Path) -> None:
    """The file of the documents, with other ports and a certificate of the test's."""
    store_path = str(tmp_path / "store.db")
    secure = free_port()
    plain = free_port()
    with closing(open_store(store_path)) as store:
        token = make_token(store, "test", "read", 0)
    service = nursery.serve(tmp_path / "log", "--replay", "--store", store_path)
    at_socket = nursery.start(
        tmp_path / "log2", "--replay", "--store", store_path, "--socket", str(tmp_path / "socket")
    )
    until((tmp_path / "socket").is_socket, "it listens")
    bare = {free_port(): f"http://127.0.0.1:{service.port}", free_port(): f"http://unix:{tmp_path}/socket"}
    openings = "".join(
        f"server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass {to}; }} }}\n" for port, to in bare.items()
    )
    subject = ["-subj", "/CN=traffic.example", "-addext", "subjectAltName=DNS:traffic.example", "-nodes"]
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-keyout",
            tmp_path / "privkey.pem",
            "-out",
            tmp_path / "fullchain.pem",
            *subject,
        ],
        check=True,
        capture_output=True,
    )
    text = (DEPLOY / "nginx.conf").read_text()
    for old, new in (
        ("127.0.0.1:8350", f"127.0.0.1:{service.port}"),
        ("/etc/letsencrypt/live/traffic.example", str(tmp_path)),
        ("listen 80;", f"listen 127.0.0.1:{plain};"),
        ("listen 443 ssl http2;", f"listen 127.0.0.1:{secure} ssl http2;"),
    ):
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "site.conf").write_text(re.sub(r"listen \[::\].*", "", text))
    temporary = "".join(
        f"{name}_temp_path {tmp_path}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (tmp_path / "nginx.conf").write_text(
        f"pid {tmp_path}/pid; error_log {tmp_path}/error.log; daemon off; user root; events {{}}\n"
        f"http {{ access_log off; {temporary} include {tmp_path}/site.conf; {openings} }}\n"
    )
    words: list[str | Path] = [str(NGINX), "-c", tmp_path / "nginx.conf", "-e", tmp_path / "error.log"]
    checked = subprocess.run([*words, "-t"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    nginx = subprocess.Popen(words)
    trusted = ssl.create_default_context(cafile=str(tmp_path / "fullchain.pem"))

    @contextmanager
    def get(path: str, **headers: str) -> Iterator[http.client.HTTPResponse]:
        with closing(http.client.HTTPSConnection("127.0.0.1", secure, context=trusted, timeout=30)) as connection:
            connection.request("GET", path, headers={"Connection": "close", **headers})
            with connection.getresponse() as answer:
                yield answer

    trusted.check_hostname = False
    try:
        until(lambda: listens(secure), "nginx runs")
        with get("/healthz") as answer:
            assert answer.status == 200 and answer.headers["Strict-Transport-Security"]
        with get("/v1/time") as answer:
            assert answer.status == 401  # though nginx comes from this machine
        with get("/v1/time", Authorization=f"Bearer {token}") as answer:
            assert answer.status == 200
        with get("/v1/events", Authorization=f"Bearer {token}") as answer:
            assert answer.readline() == b"retry: 2000\n"  # at once, though the stream goes on
        for port, behind in bare.items():  # a proxy that says nothing of those it asks for opens nothing
            for method, path in (("GET", "/v1/closures"), ("POST", "/v1/closures"), ("GET", "/healthz")):
                with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
                    connection.request(method, path, b"{}", {"Content-Type": "application/json"})
                    assert connection.getresponse().status == (200 if path == "/healthz" else 401), (behind, path)
        with closing(http.client.HTTPConnection("127.0.0.1", plain, timeout=30)) as connection:
            connection.request("GET", "/map", headers={"Host": "traffic.example"})
            answer = connection.getresponse()
            assert (answer.status, answer.headers["Location"]) == (301, "https://traffic.example/map")
    finally:
        nginx.terminate()
        nginx.wait()
    service.terminate()
    at_socket.terminate()


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
