"""A client of the service for our own commands: one connection, JSON, and errors that say what to do."""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any
from urllib.parse import urlsplit

from frigate.errors import ServiceError

TIMEOUT_S = 30.0
DEFAULT_URL = "http://127.0.0.1:8350"
TOKEN_VARIABLE = "FRIGATE_TOKEN"


class ServiceGoneError(ServiceError):
    """The service does not respond, or asks to retry later."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ServiceClient:
    """Talks to one service. Not thread-safe.

    Parameters
    ----------
    url
        Such as http://127.0.0.1:8350, or unix:/run/frigate/socket.
    token
        Sent with every request, if given.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url = url.rstrip("/")
        self._headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._connection, self._path = _connection(url)

    def get(self, path: str) -> Any:
        return self.send("GET", path)

    def text(self, path: str) -> str:
        return self._answer("GET", path, None).decode()

    def send(self, method: str, path: str, body: Any = None) -> Any:
        """The JSON response. Raises ServiceGoneError if a retry may help, else ServiceError."""
        data = self._answer(method, path, body)
        try:
            return json.loads(data) if data else None
        except ValueError:
            raise ServiceError(f"{self.url}{path} did not return JSON. Is this a Frigate service?") from None

    def _answer(self, method: str, path: str, body: Any) -> bytes:
        data = None if body is None else json.dumps(body, allow_nan=False).encode()
        try:
            self._connection.request(method, self._path + path, data, self._headers)
            response = self._connection.getresponse()
            received = response.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise ServiceGoneError(f"{self.url} does not respond ({error or type(error).__name__})") from error
        if response.status in (429, 502, 503, 504):
            raise ServiceGoneError(
                f"{self.url}: {_reason(response.status, received)}", _seconds(response.getheader("Retry-After"))
            )
        if response.status >= 400:
            raise ServiceError(f"{self.url}{path}: {_reason(response.status, received)}")
        return received

    def close(self) -> None:
        self._connection.close()


class _AtSocket(http.client.HTTPConnection):
    """A connection to a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(self._path)


def _connection(url: str) -> tuple[http.client.HTTPConnection, str]:
    """A connection to the service at this address, not opened yet, and the path that its addresses begin with."""
    where = urlsplit(url)
    if where.scheme == "unix" and where.path:
        return _AtSocket(where.path), ""
    try:
        host = where.hostname
        port = where.port
    except ValueError:
        host = None
        port = None
    if where.scheme not in ("http", "https") or not host:
        raise ServiceError(f'"{url}" is not the address of a service. Give one such as {DEFAULT_URL}')
    kind = http.client.HTTPSConnection if where.scheme == "https" else http.client.HTTPConnection
    return kind(host, port, timeout=TIMEOUT_S), where.path.rstrip("/")


def _reason(status: int, body: bytes) -> str:
    """The service's error message, or the status."""
    try:
        reason = json.loads(body)["detail"]
    except (ValueError, KeyError, TypeError):
        reason = None
    if status == 401:
        return f"a valid token is required. Pass it with --token or {TOKEN_VARIABLE}; `frigate token create` makes one"
    return reason if isinstance(reason, str) else f"HTTP {status} {http.client.responses.get(status, '')}".strip()


def _seconds(text: str | None) -> float | None:
    return float(text) if text is not None and text.isdigit() else None
