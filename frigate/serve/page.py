"""The files of the map page, and the answer to what no endpoint answers."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from starlette.routing import BaseRoute, Match
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

import frigate.pages
from frigate.serve.problems import instance_of, problem

STATIC = Path(frigate.pages.__file__).parent / "static"
API = ("/v1/", "/healthz", "/readyz", "/metrics")  # what addresses that are not of the page begin with
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
NOT_BUILT = "the map page is not built. Run `make page`. The API is under /v1"


class PageFiles:
    """An ASGI app: a file of the page, or what is wrong with the request.

    Parameters
    ----------
    endpoints
        The routes that were asked before.
    """

    def __init__(self, endpoints: list[BaseRoute]) -> None:
        self._endpoints = endpoints
        self._files = StaticFiles(directory=STATIC, html=True) if (STATIC / "index.html").exists() else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        allowed = [method for method in METHODS if self._has_endpoint({**scope, "method": method})]
        path = scope["path"]
        if not allowed and scope["method"] not in ("GET", "HEAD") and self._has_file(path):
            allowed = ["GET"]
        if allowed:
            methods = ", ".join([*allowed, "HEAD"] if "GET" in allowed else allowed)
            answer = problem(405, f"{path} has only {methods}", instance=instance_of(scope), headers={"Allow": methods})
            await answer(scope, receive, send)
        elif self._files is not None and scope["method"] in ("GET", "HEAD") and not path.startswith(API):
            await self._files(scope, receive, send)
        else:
            said = NOT_BUILT if self._files is None and not path.startswith(API) else "there is nothing here"
            await problem(404, said, instance=instance_of(scope))(scope, receive, send)

    def _has_endpoint(self, scope: Scope) -> bool:
        return any(each.matches(scope)[0] is Match.FULL for each in self._endpoints)

    def _has_file(self, path: str) -> bool:
        if self._files is None or path.startswith(API):
            return False
        try:
            return path == "/" or self._files.lookup_path(path.lstrip("/"))[1] is not None
        except (ValueError, OSError):  # no path at all: it has a null byte, or is too long
            return False


def page_policy(basemap: str) -> str:
    """Content-Security-Policy of the page: no other origin than that of the basemap tiles."""
    parts = urlsplit(basemap)
    tiles = f" {parts.scheme}://{parts.netloc}" if parts.netloc else ""
    return (
        f"default-src 'self'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:{tiles}; "
        f"worker-src 'self' blob:; connect-src 'self'{tiles}; object-src 'none'; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'"
    )
