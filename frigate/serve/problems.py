"""Errors as the API sends them: problem details (RFC 9457), the same from every endpoint.

`type` is always about:blank, which says that a problem is what its status says and no more. `instance` names this one
request: its path, and an id that the log has too.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from frigate.errors import FrigateError
from frigate.serve.batches import BatchError, BusyError, TooManyRowsError
from frigate.serve.latest import NoForecastError
from frigate.serve.store import StoreGoneError

LOG = logging.getLogger("frigate.serve")
MEDIA_TYPE = "application/problem+json"
RETRY_S = 5
MAX_PATH = 200  # characters of a path that are repeated

KINDS = {  # by status: a code for programs, and when it is sent
    400: ("malformed", "The body cannot be parsed"),
    401: ("unauthorized", "The token is missing or invalid"),
    403: ("forbidden", "The token's role does not allow this"),
    404: ("not_found", "Not found"),
    405: ("method_not_allowed", "The address does not have this method"),
    408: ("too_slow", "The body took too long to arrive"),
    409: ("conflict", "Not possible in this mode"),
    413: ("too_large", "The body is too large"),
    415: ("media_type", "Unsupported media type"),
    422: ("invalid", "A value is invalid"),
    429: ("too_many", "Too many requests: wait as long as Retry-After says"),
    500: ("error", "A fault of the service; its log has the details"),
    503: ("unavailable", "The store or the engine is not available: try again after Retry-After"),
}


class Problem(BaseModel):
    """An error response."""

    type: str = Field(examples=["about:blank"])
    title: str = Field(description="The name of the status", examples=["Not Found"])
    status: int = Field(examples=[404])
    detail: str = Field(description="What is wrong and how to fix it", examples=["no such node"])
    instance: str = Field(description="The request, as in the log", examples=["/v1/nodes/x#5f0c1a2b"])
    code: str = Field(description="Machine-readable error code", examples=["not_found"])
    error: str = Field(description="The same as detail", examples=["no such node"])


Shared = dict[int | str, dict[str, Any]]


def problems(*statuses: int) -> Shared:
    """The error responses of an endpoint, for the OpenAPI description: the common ones and `statuses`."""
    all_statuses = sorted({400, 401, 403, 422, 429, 503, *statuses})
    return {status: {"model": Problem, "description": KINDS[status][1]} for status in all_statuses}


def problem(status: int, detail: str, *, instance: str = "", headers: Mapping[str, str] | None = None) -> Response:
    """An error response.

    Parameters
    ----------
    status
        Of HTTP.
    detail
        What is wrong and how to fix it.
    instance
        The request: see `instance_of`.
    headers
        More headers of the response.
    """
    body = Problem(
        type="about:blank",
        title=HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        instance=instance,
        code=KINDS[status][0] if status in KINDS else "error",
        error=detail,
    )
    # ASCII, so that no half of a surrogate pair in a path can spoil an answer.
    return Response(json.dumps(body.model_dump()), status, headers, media_type=MEDIA_TYPE)


def instance_of(scope: Mapping[str, Any]) -> str:
    """The path of a request, and the id that `frigate.serve.app` gave it."""
    path = quote(str(scope["path"])[:MAX_PATH], errors="replace")
    return f"{path}#{scope.get('state', {}).get('request', '')}"


class ProblemApi(FastAPI):
    """An app whose description gives errors their media type, which FastAPI takes for that of good answers."""

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            for methods in super().openapi()["paths"].values():
                for response in (each for method in methods.values() for each in method["responses"].values()):
                    content = response.get("content", {})
                    for media_type, each in list(content.items()):
                        if each.get("schema", {}).get("$ref", "").endswith("/Problem"):
                            content[MEDIA_TYPE] = content.pop(media_type)
        assert self.openapi_schema is not None
        return self.openapi_schema


def answer_with_problems(app: FastAPI) -> None:
    """Turn the errors that endpoints raise into problems."""
    app.add_exception_handler(HTTPException, _of_http)
    app.add_exception_handler(RequestValidationError, _of_validation)
    app.add_exception_handler(FrigateError, _of_ours)


async def _of_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    instance = instance_of(request.scope)
    return problem(error.status_code, str(error.detail), instance=instance, headers=error.headers)


async def _of_validation(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    faults = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}"[:300] for each in error.errors()[:3]]
    malformed = any(each["type"] == "json_invalid" for each in error.errors())
    return problem(400 if malformed else 422, "; ".join(faults), instance=instance_of(request.scope))


async def _of_ours(request: Request, error: Exception) -> Response:
    instance = instance_of(request.scope)
    retry = {"Retry-After": str(RETRY_S)}
    if isinstance(error, StoreGoneError):
        LOG.warning("store unavailable", extra={"error": str(error)})
        return problem(
            503, "the store is not available. Nothing was stored; try again", instance=instance, headers=retry
        )
    if isinstance(error, BusyError | NoForecastError):
        return problem(503, str(error), instance=instance, headers=retry)
    if isinstance(error, BatchError):
        return problem(413 if isinstance(error, TooManyRowsError) else 400, str(error), instance=instance)
    return problem(422, str(error), instance=instance)
