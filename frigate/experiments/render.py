"""Renders a template in `templates/` with Jinja2 into a self-contained HTML file.

Python passes plain data, and all of it is escaped.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

from frigate.errors import MissingExtraError

if TYPE_CHECKING:
    from jinja2 import Environment

# Control characters and surrogates are not allowed in HTML or UTF-8
UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def render(template: str, /, **data: Any) -> str:
    """A page as HTML text.

    Parameters
    ----------
    template
        File name in `templates/`.
    data
        What the template shows.

    Raises
    ------
    MissingExtraError
        Jinja2 is not installed.
    """
    return UNPRINTABLE.sub("\ufffd", _environment().get_template(template).render(data))


@cache
def _environment() -> Environment:
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError:
        raise MissingExtraError("jinja2") from None
    environment = Environment(
        loader=PackageLoader("frigate.experiments"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = "{:,}".format
    return environment
