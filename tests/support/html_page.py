"""A page as a browser would read it."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

VOID = {"meta", "input", "br", "img"}


class Page(HTMLParser):
    """The tags, attributes and words of a page; fails on tags that do not close in order."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.cells: list[tuple[str, str]] = []  # class and words of the tables' cells
        self.words: list[str] = []
        self.data: list[Any] = []  # what the page's scripts read
        self._open: list[str] = []
        self.raw = path.read_text(encoding="utf-8")
        self.feed(self.raw)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)
        if tag in ("td", "th"):
            self.cells.append((dict(attrs).get("class") or "", ""))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        inside = self._open[-1] if self._open else ""
        if inside == "script" and self.tags[-1][1].get("type") == "application/json":
            self.data.append(json.loads(data))
        elif inside != "style":
            self.words.append(data)
        if inside in ("td", "th"):
            name, words = self.cells[-1]
            self.cells[-1] = (name, words + data)

    @property
    def text(self) -> str:
        return " ".join(self.words)

    def best(self) -> list[str]:
        return [words for name, words in self.cells if name == "best"]

    def having(self, attribute: str) -> list[str]:
        return [value for _, attributes in self.tags if (value := attributes.get(attribute)) is not None]
