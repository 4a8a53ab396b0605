"""The service over HTTP: the API under /v1, the map page, health and metrics.

Assembles the endpoints of `frigate.serve.api` and adds what they all share: limits, headers, logs, and one format for
errors, `{"error": what is wrong and how to fix it, "code": machine-readable}`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import frigate.pages
from frigate.errors import FrigateError
from frigate.serve.api import closures, forecast, health, network, readings, replay, whatif
from frigate.serve.api.common import CODES, State
from frigate.serve.ingest import BatchError, BusyError
from frigate.serve.latest import NoForecastError
from frigate.serve.limits import Limits
from frigate.serve.mqtt import Broker, Subscriber
from frigate.serve.service import Service
from frigate.serve.store import StoreGoneError
from frigate.version import __version__

LOG = logging.getLogger("frigate.serve")
STATIC = Path(frigate.pages.__file__).parent / "static"
RETRY_S = 5
API_POLICY = "default-src 'none'; frame-ancestors 'none'"
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def make_app(service: Service, limits: Limits | None = None, broker: Broker | None = None) -> FastAPI:
    """The ASGI app of a service. Its lifespan starts and stops the service.

    Parameters
    ----------
    service
        Not started yet.
    limits
        Limits on requests.
    broker
        MQTT broker to read from, if any.
    """
    state = State(service, limits or Limits(), None if broker is None else Subscriber(broker, service.ingest))

    @asynccontextmanager
    async def running(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        tasks = [asyncio.create_task(state.events.watch())]
        if state.mqtt is not None:
            tasks.append(asyncio.create_task(state.mqtt.run()))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            await state.events.end()
            await asyncio.to_thread(service.stop)

    app = FastAPI(
        title="Frigate",
        version=__version__,
        description="Traffic forecasts at every intersection of a road network from sensors at a few of them.",
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        lifespan=running,
    )
    app.state.frigate = state
    for module in (network, forecast, whatif, closures, readings, health, replay):
        app.include_router(module.router, prefix="/v1")
    app.include_router(health.open_router)
    app.mount("/", _page())
    app.add_middleware(RequestMiddleware, state=state, page_policy=_page_policy(service.basemap))
    app.add_exception_handler(HTTPException, _http_problem)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(FrigateError, _own_problem)
    app.add_exception_handler(Exception, _unexpected)
    return app


def problem(status: int, error: str, headers: dict[str, str] | None = None) -> Response:
    """An error response, in the format of every endpoint."""
    body = json.dumps({"error": error, "code": CODES.get(status, "error")})
    return Response(body, status, headers, media_type="application/json")


async def _http_problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return problem(error.status_code, str(error.detail), dict(error.headers or {}))


async def _invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    faults = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}"[:300] for each in error.errors()[:3]]
    malformed = any(each["type"] == "json_invalid" for each in error.errors())
    return problem(400 if malformed else 422, "; ".join(faults))


async def _own_problem(_: Request, error: Exception) -> Response:
    retry = {"Retry-After": str(RETRY_S)}
    if isinstance(error, StoreGoneError):
        LOG.warning("store unavailable", extra={"error": str(error)})
        return problem(503, "the store is not available. Nothing was stored; try again", retry)
    if isinstance(error, BusyError | NoForecastError):
        return problem(503, str(error), retry)
    return problem(400 if isinstance(error, BatchError) else 422, str(error))


async def _unexpected(_: Request, error: Exception) -> Response:
    LOG.error("request failed", exc_info=error)
    return problem(500, "internal error; see the service's log")


class RequestMiddleware:
    """Middleware for every request: response headers, a log line and metrics."""

    def __init__(self, app: ASGIApp, state: State, page_policy: str) -> None:
        self._app, self._state, self._page_policy = app, state, page_policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin = time.perf_counter()
        status = 500
        of_page = not scope["path"].startswith(("/v1/", "/healthz", "/readyz", "/metrics"))

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                more = {**HEADERS, "Content-Security-Policy": self._page_policy if of_page else API_POLICY}
                if scope["path"].startswith("/assets/") and status == 200:
                    more["Cache-Control"] = "public, max-age=31536000, immutable"  # asset names contain a content hash
                message["headers"] = [
                    *message["headers"],
                    *((name.lower().encode(), value.encode()) for name, value in more.items()),
                ]
            await send(message)

        try:
            await self._app(scope, receive, sending)
        finally:
            self._note(scope, status, time.perf_counter() - begin)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "page")
        self._state.metrics.answered(scope["method"] if route != "page" else "GET", route, status, seconds)
        extra: dict[str, Any] = {
            "method": scope["method"],
            "path": scope["path"][:200],
            "status": status,
            "seconds": round(seconds, 4),
            "client": (scope.get("client") or [""])[0],
            "token": scope.get("state", {}).get("caller", ""),
        }
        LOG.log(logging.DEBUG if route == "page" else logging.INFO, "request", extra=extra)


def _page_policy(basemap: str) -> str:
    """Content-Security-Policy of the page: no other origin than that of the basemap tiles."""
    parts = urlsplit(basemap)
    tiles = f" {parts.scheme}://{parts.netloc}" if parts.netloc else ""
    return (
        f"default-src 'self'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:{tiles}; "
        f"worker-src 'self' blob:; connect-src 'self'{tiles}; object-src 'none'; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'"
    )


def _page() -> ASGIApp:
    if (STATIC / "index.html").exists():
        return StaticFiles(directory=STATIC, html=True)

    async def absent(scope: Scope, receive: Receive, send: Send) -> None:
        await problem(404, "the map page is not built. Run `make page`. The API is under /v1")(scope, receive, send)

    return absent
