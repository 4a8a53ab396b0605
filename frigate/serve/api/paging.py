"""Lists that can grow are answered page by page.

`limit` says how long a page may be. If there is more, the answer's header `Link: <?...>; rel="next"` (RFC 8288) has the
address of the next page, relative to that of this one. Its cursor is the key of the last row, so that rows which come
and go meanwhile neither repeat nor hide others.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar
from urllib.parse import urlencode

from fastapi import Depends, HTTPException, Query, Request, Response

T = TypeVar("T")
Key = tuple[Any, ...]
MOST = 1000  # rows in a page


@dataclass(frozen=True)
class Page:
    """Which rows of a list are asked for. Ask the store for `limit + 1` of them, and `cut` what it finds."""

    request: Request
    response: Response
    limit: int
    after: Key | None  # the key of the last row of the page before

    def cut(self, rows: Sequence[T], key: Callable[[T], Key]) -> list[T]:
        """The rows of this page. Sets the link to the next."""
        page = list(rows[: self.limit])
        if len(rows) > len(page):
            asked = [(name, value) for name, value in self.request.query_params.multi_items() if name != "cursor"]
            query = urlencode([*asked, ("cursor", _cursor(key(page[-1])))])
            self.response.headers["Link"] = f'<?{query}>; rel="next"'
        return page


def paged(*kinds: type) -> Any:
    """The dependency of a list whose rows have keys of these types, such as `(int, str)`."""

    def page(
        request: Request,
        response: Response,
        limit: Annotated[int, Query(ge=1, le=MOST, description="Rows in the answer")] = MOST,
        cursor: Annotated[str, Query(max_length=1000, description="From the Link header of the page before")] = "",
    ) -> Page:
        return Page(request, response, limit, _key(cursor, kinds) if cursor else None)

    return Depends(page)


def _cursor(key: Key) -> str:
    return base64.urlsafe_b64encode(json.dumps(key).encode()).decode()


def _key(cursor: str, kinds: tuple[type, ...]) -> Key:
    try:
        key = json.loads(base64.urlsafe_b64decode(cursor))
    except (ValueError, RecursionError):
        key = None
    if not isinstance(key, list) or [type(each) for each in key] != list(kinds) or not all(map(_storable, key)):
        raise HTTPException(422, "this cursor is not one of this list. Take it from the Link header of the page before")
    return tuple(key)


def _storable(value: int | str) -> bool:
    """Whether a database can compare with it: its integers have 64 bits, and its text is Unicode without a NUL."""
    if isinstance(value, int):
        return abs(value) < 2**63
    return "\0" not in value and not any("\ud800" <= character <= "\udfff" for character in value)
