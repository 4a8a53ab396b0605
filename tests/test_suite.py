"""The suite itself."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from frigate.errors import FrigateError, MissingExtraError
from tests.support.errors import names, raises

TESTS = Path(__file__).parent


def test_a_commit_is_checked_by_the_linters_of_make_test() -> None:
    hooks = (TESTS.parent / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    entries = [line.replace(" --force-exclude", "") for line in re.findall(r"entry: \.venv/bin/(.+)", hooks)]
    makefile = (TESTS.parent / "Makefile").read_text(encoding="utf-8")
    recipes = re.findall(r"^(?:test|types): .*\n((?:\t.+\n)+)", makefile, re.MULTILINE)
    linters = re.findall(r"\$\(BIN\)/(.+)", "".join(recipes))
    assert sorted(entries) == sorted(re.sub(r" --check| \.$", "", line) for line in linters)
    assert "repo: local" in hooks and "https" not in hooks  # nothing is downloaded


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


@pytest.mark.parametrize(
    ("kind", "word", "right"),
    [
        (MissingExtraError, "h5py", True),
        (MissingExtraError, "frigate-forecast[h5]", True),
        (MissingExtraError, "h5p", False),
        (MissingExtraError, "numpy", False),
        (FrigateError, "h5py", False),  # of which a MissingExtraError is one kind
    ],
)
def test_raises_checks_the_class_and_the_named_values(kind: type[FrigateError], word: str, right: bool) -> None:
    found = True
    try:
        with raises(kind, word):
            raise MissingExtraError("h5py", "h5")
    except AssertionError:
        found = False
    assert found == right


def test_a_number_counts_only_as_a_whole_word() -> None:
    message = 'a.csv line 53: "A22" and 1.5 and 2,001, 7.'
    assert all(names(message, word) for word in ("a.csv line 53", '"A22"', "1.5", "2,001", "7"))
    assert not any(names(message, word) for word in ("line 5", "A2", "1", "5", "2", "001"))
