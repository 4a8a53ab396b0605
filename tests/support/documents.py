"""What documents say, and the code that they name."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OUTSIDE = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
DOCUMENTS = [*OUTSIDE, *sorted((ROOT / "docs").rglob("*.md"))]


@dataclass(frozen=True)
class Block:
    """A block of code in a document."""

    page: str  # its path from the root, such as docs/map.md
    language: str
    text: str

    def commands(self) -> list[str]:
        """The lines of a block of shell, without comments; a line that ends with a backslash goes on in the next.

        Of a session at a terminal, those behind a $.
        """
        if self.language == "console":
            return [line.removeprefix("$ ") for line in self.text.splitlines() if line.startswith("$ ")]
        lines = self.text.replace("\\\n", " ").splitlines()
        return [command for line in lines if (command := re.sub(r"(^|\s\s+)#.*", "", line).strip())]


def blocks(path: Path) -> Iterator[Block]:
    """The blocks of code of a document, in order; those within a list are indented."""
    page = path.relative_to(ROOT).as_posix()
    found = re.findall(r"^( *)```(\w+)\n(.*?)^\1```$", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    for _, language, text in found:
        yield Block(page, language, textwrap.dedent(text))


def table_rows(text: str) -> list[list[str]]:
    """The cells of all table rows of a document."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def source_of(symbol: str) -> str | None:
    """The source of a module, class, function, constant or field by its full name; None if there is no such thing.

    `package.module.Class.field` is found where the class or its methods assign it. Re-exported names are not found: a
    document names the place where a thing is written.
    """
    parts = symbol.split(".")
    for count in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:count])
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if path.is_file():
            text, tree = _parsed(path)
            nodes: list[ast.AST] = [tree]
            for name in parts[count:]:
                nodes = [child for node in nodes for child in _members(node, name)]
            pieces = [text if node is tree else ast.get_source_segment(text, node) or "" for node in nodes]
            lines = text.splitlines()
            comments = [lines[node.end_lineno - 1] for node in nodes if isinstance(node, ast.stmt) and node.end_lineno]
            return "\n".join(pieces + comments) if nodes else None
    return None


@cache
def _parsed(path: Path) -> tuple[str, ast.Module]:
    text = path.read_text(encoding="utf-8")
    return text, ast.parse(text)


def _members(node: ast.AST, name: str) -> list[ast.AST]:
    """What is called `name` in a module or class: definitions, assignments, `self.name = ...` in its methods."""
    found: list[ast.AST] = []
    for child in getattr(node, "body", []):
        if isinstance(child, ast.ClassDef | ast.FunctionDef) and child.name == name:
            found.append(child)
        elif isinstance(child, ast.Assign | ast.AnnAssign):
            targets = child.targets if isinstance(child, ast.Assign) else [child.target]
            if any(isinstance(part, ast.Name) and part.id == name for t in targets for part in ast.walk(t)):
                found.append(child)
        elif isinstance(child, ast.FunctionDef) and isinstance(node, ast.ClassDef):
            for line in ast.walk(child):
                if isinstance(line, ast.Assign) and any(ast.unparse(t) == f"self.{name}" for t in line.targets):
                    found.append(line)
    return found
