"""What a document's tables say."""

from __future__ import annotations


def table_rows(text: str) -> list[list[str]]:
    """The cells of all table rows of a document."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
