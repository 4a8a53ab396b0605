"""Who may pass, decided before the body of a request is read.

FastAPI reads and parses a body before it asks any dependency, so a stranger could have megabytes parsed. The routes of
this API are `GuardedRoute`s: `allow` names the right that a route needs, and the route checks it first.

A caller is known by a token in the Authorization header, by the cookie that the page gets for one
(`frigate.serve.api.session`), by a trusted proxy that signs users in (`frigate.serve.proxies`), or by being the same
user at the other end of the Unix socket.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import Depends, HTTPException, Request, Response
from fastapi.routing import APIRoute
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from frigate.serve.api.common import State, state_of
from frigate.serve.auth import OWNER, Caller
from frigate.serve.limits import limited, run_quickly
from frigate.serve.store import Actor

ANY = "any"  # the right that every token has
SAFE = frozenset({"GET", "HEAD"})  # methods that change nothing
ON_BEHALF = ("x-forwarded-for", "x-real-ip", "forwarded", "via", "origin", "sec-fetch-site")
JSON = "application/json"
_bearer = HTTPBearer(
    auto_error=False, scheme_name="token", description="From `frigate serve` or `frigate token create`."
)
Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]


class Door:
    """What `allow` puts into the dependencies of a route."""

    def __init__(self, right: str | None, *, large_body: bool) -> None:
        self.right = right
        self.large_body = large_body

    async def __call__(self, request: Request, _: Credentials) -> None:
        """Describes the token in the API's description. The door itself was passed before: see `admit`."""
        if not hasattr(request.state, "caller"):
            raise RuntimeError(f"{request.url.path} is not a GuardedRoute")

    async def admit(self, request: Request, *, json: bool) -> Request:
        """Refuse who may not pass. Returns the request with a limit on its body.

        Parameters
        ----------
        json
            Whether the body must be JSON.
        """
        state = state_of(request)
        headers = request.headers
        if request.method not in SAFE and is_foreign(headers):
            raise HTTPException(403, "this request comes from a page of another address. Only our own page may send it")
        found = await caller_of(request, state)
        request.state.caller = found
        wait_s = state.rate.wait_s(found.key if found else f"at {request.state.client}")
        if wait_s:
            raise HTTPException(429, "too many requests", {"Retry-After": str(math.ceil(wait_s))})
        if self.right is not None and found is None:
            message = "a valid token is required. Send it as Authorization: Bearer frg_..."
            raise HTTPException(401, message, {"WWW-Authenticate": "Bearer"})
        if found is not None and self.right not in (None, ANY, *found.rights):
            raise HTTPException(403, f'this requires a token with the right "{self.right}"')
        if json and media_type_of(headers) != JSON:
            raise HTTPException(415, f"the body is not sent as JSON. Send it as Content-Type: {JSON}")
        most = state.limits.body_bytes if self.large_body else state.limits.small_body_bytes
        return Request(request.scope, limited(request.receive, headers, most=most, seconds=state.limits.body_s))


def allow(right: str | None, *, large_body: bool = False) -> Any:
    """A dependency of a `GuardedRoute`: it admits callers who have this right and stay within the rate limit.

    Parameters
    ----------
    right
        As in `frigate.serve.auth.ROLES`; `ANY` admits every token, None also callers without one.
    large_body
        Whether a body may be as large as a batch of readings.
    """
    return Depends(Door(right, large_body=large_body))


class GuardedRoute(APIRoute):
    """A route that lets only those in whom its doors admit, before it reads their body."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()
        doors = [each.dependency for each in self.dependencies if isinstance(each.dependency, Door)]
        json = self.body_field is not None

        async def guarded(request: Request) -> Response:
            for door in doors:
                request = await door.admit(request, json=json)
            return await handler(request)

        return guarded


async def caller_of(request: Request, state: State) -> Caller | None:
    """Who sent a request, or None."""
    cookie = state.service.gate.cookie
    kind, _, word = request.headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return await caller_with(word.strip(), state)
    # A cookie comes along by itself, also when the page of another port of this host has the request sent.
    if cookie in request.cookies and not is_foreign(request.headers):
        found = await caller_with(request.cookies[cookie], state)
        return None if found is None else replace(found, by="cookie")
    user = state.proxies.user(address_of(request), request.headers)
    if user is not None:  # the cookie of the proxy comes along by itself too
        return None if is_foreign(request.headers) else user
    # The same user, but neither a browser nor a proxy, which would speak for somebody else; nginx speaks HTTP/1.0.
    same_user = request.scope["state"].get("peer_uid") == os.getuid()
    direct = request.scope["http_version"] != "1.0" and not any(name in request.headers for name in ON_BEHALF)
    return OWNER if same_user and direct else None


def address_of(request: Request) -> str:
    """Where a request comes from: a proxy, or whoever sent it; "" for the Unix socket."""
    return request.client.host if request.client else ""


def actor_of(request: Request) -> Actor:
    """Who sent an admitted request, for the audit trail."""
    caller: Caller = request.state.caller
    return caller.at(request.state.client)


async def caller_with(token: str, state: State) -> Caller | None:
    """The caller that a token identifies, or None."""
    gate = state.service.gate
    if not gate.is_recent(token):
        await run_quickly(lambda: gate.refresh(token))
    return gate.caller(token)


def is_foreign(headers: Mapping[str, str]) -> bool:
    """Whether a page of another origin made a browser send this request.

    Browsers say so in Sec-Fetch-Site, over HTTPS and on this machine; else by Origin. No other program sends either.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = headers.get("origin")
    if origin is None:
        return False
    own = urlsplit(origin).netloc.lower()
    return not own or own != headers.get("host", "").lower()


def media_type_of(headers: Mapping[str, str]) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()
