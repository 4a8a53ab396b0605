"""Signing in a browser: the page sends a token once, and gets a cookie that no script can read."""

from __future__ import annotations

from dataclasses import replace

from fastapi import APIRouter, HTTPException, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from frigate.calendar import DAY_S
from frigate.serve.api.admission import ANY, GuardedRoute, allow, caller_with
from frigate.serve.api.common import StateOf
from frigate.serve.auth import Caller
from frigate.serve.limits import run_quickly
from frigate.serve.problems import problems

router = APIRouter(prefix="/v1", route_class=GuardedRoute, tags=["session"])
COOKIE_DAYS = 90


class Credential(BaseModel):
    model_config = ConfigDict(extra="forbid")
    token: str = Field(max_length=200, examples=["frg_1c0fab18_..."])


class Session(BaseModel):
    """Whom the service takes the caller for."""

    name: str = Field(description="Of the token", examples=["Control room"])
    role: str = Field(examples=["operate"])
    rights: list[str] = Field(examples=[["operate", "read"]])
    by: str = Field(description="What identifies the caller: token, cookie, socket or sso", examples=["cookie"])


@router.get("/session", dependencies=[allow(ANY)], responses=problems())
async def session(request: Request) -> Session:
    """Whom the service takes the caller for, and what they may do."""
    return _session(request.state.caller)


@router.post("/session", dependencies=[allow(None)], responses=problems(408, 413, 415))
async def sign_in(request: Request, response: Response, state: StateOf, body: Credential) -> Session:
    """Get a cookie for a token, so that the page need not keep it where scripts can read it."""
    found = await caller_with(body.token, state)
    if found is None:
        raise HTTPException(401, "this token is not valid. Ask for another", {"WWW-Authenticate": "Bearer"})
    by = found.at(request.state.client)
    await run_quickly(lambda: state.service.store.note(by, "session.begin", found.by))
    response.set_cookie(
        state.service.gate.cookie,
        body.token,
        max_age=COOKIE_DAYS * DAY_S,
        path=None,  # the address of the API, wherever a proxy has put it
        secure=request.headers.get("origin", "").startswith("https://"),
        httponly=True,
        samesite="strict",
    )
    return _session(replace(found, by="cookie"))


@router.delete("/session", status_code=204, dependencies=[allow(None)], responses=problems())
async def sign_out(state: StateOf) -> Response:
    """Delete the cookie. The token stays valid."""
    answer = Response(status_code=204)
    answer.set_cookie(state.service.gate.cookie, max_age=0, path=None, httponly=True, samesite="strict")
    return answer


def _session(caller: Caller) -> Session:
    return Session(name=caller.name, role=caller.role, rights=sorted(caller.rights), by=caller.by)
