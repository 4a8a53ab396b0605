"""Who may pass, decided before the body of a request is read.

FastAPI reads and parses a body before it asks any dependency, so a stranger could have megabytes parsed. The routes of
this API are `GuardedRoute`s: `allow` names the right that a route needs, and the route checks it first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from fastapi import Depends, HTTPException, Request, Response
from fastapi.routing import APIRoute
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from frigate.serve.api.common import state_of
from frigate.serve.limits import limited, run_quickly

_bearer = HTTPBearer(auto_error=False, scheme_name="token", description="From `frigate token create`.")
Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]


class Door:
    """What `allow` puts into the dependencies of a route."""

    def __init__(self, right: str, *, large_body: bool) -> None:
        self.right, self.large_body = right, large_body

    async def __call__(self, request: Request, _: Credentials) -> None:
        """Describes the token in the API's description. The door itself was passed before: see `admit`."""
        if not hasattr(request.state, "caller"):
            raise RuntimeError(f"{request.url.path} is not a GuardedRoute")

    async def admit(self, request: Request) -> Request:
        """Refuse callers without the right, or above the rate limit. Returns the request with a limit on its body."""
        state = state_of(request)
        gate = state.service.gate
        headers = request.headers
        if not gate.known:
            await run_quickly(gate.refresh)
        found = gate.caller(
            headers.get("authorization", ""),
            host=headers.get("host", ""),
            forwarded="x-forwarded-for" in headers or "forwarded" in headers,
        )
        address = request.client.host if request.client else ""
        request.state.caller = found.id if found else ""
        wait_s = state.rate.wait_s(found.id if found and found.id else f"at {address}")
        if wait_s:
            raise HTTPException(429, "too many requests", {"Retry-After": str(math.ceil(wait_s))})
        if found is None:
            message = "a valid token is required. Send it as Authorization: Bearer frg_..."
            raise HTTPException(401, message, {"WWW-Authenticate": "Bearer"})
        if self.right not in found.rights:
            raise HTTPException(403, f'this requires a token with the right "{self.right}"')
        most = state.limits.body_bytes if self.large_body else state.limits.small_body_bytes
        return Request(request.scope, limited(request.receive, headers, most=most, seconds=state.limits.body_s))


def allow(right: str, *, large_body: bool = False) -> Any:
    """A dependency of a `GuardedRoute`: it admits callers who have this right and stay within the rate limit.

    Parameters
    ----------
    right
        As in `frigate.serve.auth.ROLES`.
    large_body
        Whether a body may be as large as a batch of readings.
    """
    return Depends(Door(right, large_body=large_body))


class GuardedRoute(APIRoute):
    """A route that lets only those in whom its doors admit, before it reads their body."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()
        doors = [each.dependency for each in self.dependencies if isinstance(each.dependency, Door)]

        async def guarded(request: Request) -> Response:
            for door in doors:
                request = await door.admit(request)
            return await handler(request)

        return guarded
