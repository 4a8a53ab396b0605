"""The service over HTTP: the API under /v1, the map page, health and metrics.

Assembles the endpoints of `frigate.serve.api` and adds what they all share: limits, headers, logs, and errors as
`frigate.serve.problems` writes them.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from frigate.errors import FrigateError
from frigate.serve.api import audit, closures, forecast, health, network, quarantine, readings, replay, session, whatif
from frigate.serve.api.common import State
from frigate.serve.auth import Caller
from frigate.serve.limits import Limits
from frigate.serve.mqtt import Broker, Subscriber
from frigate.serve.page import API, PageFiles, page_policy
from frigate.serve.problems import ProblemApi, answer_with_problems, instance_of, problem
from frigate.serve.proxies import Proxies
from frigate.serve.service import Service
from frigate.version import __version__

LOG = logging.getLogger("frigate.serve")
GONE = 499  # in log and metrics, as in nginx: the client left before it had an answer
API_POLICY = "default-src 'none'; frame-ancestors 'none'"
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def make_app(
    service: Service,
    limits: Limits | None = None,
    broker: Broker | None = None,
    proxies: Proxies | None = None,
) -> FastAPI:
    """The ASGI app of a service. Its lifespan starts and stops the service.

    Parameters
    ----------
    service
        Not started yet.
    limits
        Limits on requests.
    broker
        MQTT broker to read from, if any.
    proxies
        That are trusted, if any.
    """
    mqtt = None if broker is None else Subscriber(broker, service.ingest)
    state = State(service, limits or Limits(), mqtt, proxies)

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

    app = ProblemApi(
        title="Frigate",
        version=__version__,
        description="Traffic forecasts at every intersection of a road network from sensors at a few of them.",
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        lifespan=running,
    )
    app.state.frigate = state
    for module in (network, forecast, whatif, closures, readings, quarantine, health, replay, session, audit):
        app.include_router(module.router)
    app.include_router(health.open_router)
    app.mount("/", PageFiles(list(app.routes)))
    app.add_middleware(RequestMiddleware, state=state, page_policy=page_policy(service.basemap))
    answer_with_problems(app)
    return app


class RequestMiddleware:
    """Middleware for every request: an id, response headers, a log line, metrics, and an answer whatever happens."""

    def __init__(self, app: ASGIApp, state: State, page_policy: str) -> None:
        self._app = app
        self._state = state
        self._page_policy = page_policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin = time.perf_counter()
        status = 0  # not answered yet
        address = (scope.get("client") or [""])[0]
        about = scope.setdefault("state", {})
        about["request"] = secrets.token_hex(4)
        about["client"] = self._state.proxies.client(address, Headers(scope=scope))
        of_page = not scope["path"].startswith(API)
        asked = scope["method"]
        ended = False
        if asked == "HEAD":  # what GET would answer, without the body
            scope = {**scope, "method": "GET"}

        async def sending(message: Message) -> None:
            nonlocal status, ended
            if asked == "HEAD" and message["type"] == "http.response.body":
                if ended:
                    return
                ended = True  # whoever sends an answer without an end is told that the client has left
                message = {"type": "http.response.body", "body": b"", "more_body": False}
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
        except ClientDisconnect:
            status = status or GONE
        except Exception as error:
            cause = error.__cause__ or error  # once an answer has begun, its errors come wrapped
            own = status and isinstance(cause, FrigateError)
            name = "answer cut off" if own else "request failed"
            extra = {"request": scope["state"]["request"], "error": str(cause)}
            LOG.log(logging.WARNING if own else logging.ERROR, name, exc_info=None if own else error, extra=extra)
            if not status:
                failed = problem(500, "internal error; see the service's log", instance=instance_of(scope))
                await failed(scope, receive, sending)
        finally:
            self._note(scope, asked, status or 500, time.perf_counter() - begin)

    def _note(self, scope: Scope, method: str, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "page")
        self._state.metrics.answered(method if route != "page" else "GET", route, status, seconds)
        caller: Caller | None = scope["state"].get("caller")
        extra: dict[str, Any] = {
            "request": scope["state"]["request"],
            "method": method,
            "path": scope["path"][:200],
            "status": status,
            "seconds": round(seconds, 4),
            "client": scope["state"]["client"],
            "token": caller.id if caller else "",
            "user": caller.name if caller and caller.by == "sso" else "",
        }
        LOG.log(logging.DEBUG if route == "page" else logging.INFO, "request", extra=extra)
