"""Read SUMO's XML files, plain or gzip, one element at a time.

Elements are not kept in memory. Document types and entities are refused.
"""

from __future__ import annotations

import gzip
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, NamedTuple
from xml.parsers import expat

import numpy as np

from frigate.errors import CityError
from frigate.reading.files import parsing

CHUNK_BYTES = 1 << 16
LARGEST = 1e12  # of any number

KINDS = {
    "net": "a road network (.net.xml)",
    "meandata": "edge data (meandata output)",
    "data": "counts for routeSampler; import the table that they were made from with `frigate import tables`",
    "detector": "detector output",
    "additional": "an additional file",
    "routes": "routes or trips",
    "configuration": "a configuration",
    "sumoConfiguration": "a configuration",
    "nodes": "plain nodes; netconvert turns them into a network",
    "edges": "plain edges; netconvert turns them into a network",
    "osm": "OpenStreetMap data; use `frigate import osm`, or netconvert",
}


class Element(NamedTuple):
    """The start tag of an element, and its line."""

    name: str
    attributes: dict[str, str]
    path: Path
    line: int

    def refuse(self, message: str) -> CityError:
        return CityError(f"{self.path.name} line {self.line}: {message}")

    def text(self, attribute: str) -> str:
        found = self.attributes.get(attribute)
        if not found:
            raise self.refuse(f"<{self.name}> has no {attribute}")
        return found

    def number(self, attribute: str) -> float:
        return self._number(attribute, self.text(attribute))

    def seconds(self, attribute: str) -> float:
        """A time: seconds, or [days:]hours:minutes:seconds as with SUMO's --human-readable-time."""
        text = self.text(attribute)
        parts = text.split(":")
        if len(parts) not in (1, 3, 4):
            raise self.refuse(f'{attribute} "{text}" is not a time. Seconds, or hours:minutes:seconds, are expected')
        units = (86_400, 3600, 60, 1)[-len(parts) :]
        return sum(unit * self._number(attribute, part) for unit, part in zip(units, parts, strict=True))

    def points(self, attribute: str, text: str) -> list[tuple[float, float]]:
        """A shape "x,y x,y ..."; heights are ignored."""
        found = []
        for point in text.split():
            numbers = point.split(",")
            if len(numbers) not in (2, 3):
                raise self.refuse(f'{attribute} "{text[:40]}": "{point[:40]}" is not x,y or x,y,z')
            found.append((self._number(attribute, numbers[0]), self._number(attribute, numbers[1])))
        return found

    def _number(self, attribute: str, text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = np.nan
        if not abs(number) <= LARGEST:
            raise self.refuse(f'{attribute} "{text[:40]}" is not a number, or far too large')
        return number


def elements(path: Path, *, roots: Collection[str]) -> Iterator[Element]:
    """Every element of a file in order. The outermost must be one of `roots`."""
    found: list[Element] = []
    seen_root = False

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal seen_root
        if not seen_root and name not in roots:
            raise CityError(_wrong_root(path, name, roots))
        seen_root = True
        found.append(Element(name, attributes, path, parser.CurrentLineNumber))

    def doctype(*_: object) -> None:
        place = f"{path.name} line {parser.CurrentLineNumber}"
        raise CityError(f"{place}: a document type (<!DOCTYPE>) is refused, because of its entities. Remove it")

    parser = expat.ParserCreate()
    parser.StartElementHandler = start
    parser.StartDoctypeDeclHandler = doctype
    for chunk in _chunks(path):
        try:
            parser.Parse(chunk, not chunk)
        except (expat.ExpatError, ValueError, LookupError) as error:
            raise CityError(_not_xml(path, error, cut=not chunk)) from None
        yield from found
        found.clear()


def _chunks(path: Path) -> Iterator[bytes]:
    """The bytes of a file, decompressed if it is gzip, whatever its name. The last chunk is empty."""
    with parsing(path), path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        source: IO[bytes] | gzip.GzipFile = gzip.GzipFile(fileobj=file) if packed else file
        empty = True
        while chunk := source.read(CHUNK_BYTES):
            empty = False
            yield chunk
        if empty:
            raise CityError(f"{path.name} is empty")
    yield b""


def _wrong_root(path: Path, name: str, roots: Collection[str]) -> str:
    wanted = " or ".join(f"{KINDS[root]}, <{root}>," for root in roots)
    is_what = KINDS.get(name, "something else")
    return (
        f"{path.name} is {is_what}: its outermost element is <{name[:40]}>. {wanted[0].upper()}{wanted[1:]} is expected"
    )


def _not_xml(path: Path, error: Exception, *, cut: bool) -> str:
    if isinstance(error, expat.ExpatError):
        place = f"{path.name} line {error.lineno}"
        if cut:
            return f"{place}: the file is cut short: an element has no end. Copy or write it again"
        return f"{place}: not readable XML ({expat.errors.messages.get(error.code, 'no reason given')})"
    return f"{path.name}: its encoding is not known ({error}). Save it as UTF-8"
