"""The suite itself."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).parent


def imported_modules(path: Path) -> set[str]:
    """The modules that a file imports, at its top or inside a function; `from a import b` counts as a and a.b."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = "." * node.level + (node.module or "")
            found |= {package} | {f"{package}.{name.name}" for name in node.names}
    return found


def test_no_module_imports_a_test_module() -> None:
    """What several test files share lies in tests/support, or is a fixture of a conftest."""
    wrong = {
        f"{path.relative_to(TESTS)} imports {module}"
        for path in TESTS.rglob("*.py")
        for module in imported_modules(path)
        if any(part.startswith("test_") or part == "conftest" for part in module.split("."))
        and module.startswith(("tests", "."))
    }
    assert wrong == set()
