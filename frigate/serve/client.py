"""A client of the service for commands of our own: one connection, JSON, and errors that say what to do."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import urlsplit

from frigate.errors import ServiceError

TIMEOUT_S = 30.0
DEFAULT_URL = "http://127.0.0.1:8350"


class ServiceGoneError(ServiceError):
    """The service does not answer, or asks to be left alone for a while."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ServiceClient:
    """Talks to one service. For one thread at a time.

    Parameters
    ----------
    url
        Of the service, as http://127.0.0.1:8350.
    token
        Sent with every request, if given.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        where = urlsplit(url)
        try:
            host, port = where.hostname, where.port
        except ValueError:
            host, port = None, None
        if where.scheme not in ("http", "https") or not host:
            raise ServiceError(f'"{url}" is not the address of a service. Give one such as {DEFAULT_URL}')
        kind = http.client.HTTPSConnection if where.scheme == "https" else http.client.HTTPConnection
        self.url = url.rstrip("/")
        self._path = where.path.rstrip("/")
        self._headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._connection = kind(host, port, timeout=TIMEOUT_S)

    def get(self, path: str) -> Any:
        return self.send("GET", path)

    def text(self, path: str) -> str:
        return self._answer("GET", path, None).decode()

    def send(self, method: str, path: str, body: Any = None) -> Any:
        """The JSON that a request is answered with. What is refused is an error, and so is a service that is gone."""
        said = self._answer(method, path, body)
        try:
            return json.loads(said) if said else None
        except ValueError:
            raise ServiceError(f"{self.url}{path} answered no JSON. Is that a Frigate service?") from None

    def _answer(self, method: str, path: str, body: Any) -> bytes:
        data = None if body is None else json.dumps(body, allow_nan=False).encode()
        try:
            self._connection.request(method, self._path + path, data, self._headers)
            answer = self._connection.getresponse()
            said = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise ServiceGoneError(f"{self.url} does not answer ({error or type(error).__name__})") from error
        if answer.status in (429, 502, 503, 504):
            raise ServiceGoneError(
                f"{self.url}: {_reason(answer.status, said)}", _seconds(answer.getheader("Retry-After"))
            )
        if answer.status >= 400:
            raise ServiceError(f"{self.url}{path}: {_reason(answer.status, said)}")
        return said

    def close(self) -> None:
        self._connection.close()


def _reason(status: int, said: bytes) -> str:
    """Why, in the service's words where it has any."""
    try:
        reason = json.loads(said)["error"]
    except (ValueError, KeyError, TypeError):
        reason = None
    if status == 401:
        return "it wants a token. Make one with `frigate token create`, and pass it with --token"
    return (
        reason if isinstance(reason, str) else f"it answered {status} {http.client.responses.get(status, '')}".strip()
    )


def _seconds(text: str | None) -> float | None:
    return float(text) if text is not None and text.isdigit() else None
