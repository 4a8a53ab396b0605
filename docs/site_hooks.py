"""What the site has beside the Markdown in docs/: pages of the repository's root, the examples, the API reference.

mkdocs reads one folder. GitHub and editors read the whole repository, so links in the documents are those that work
there; `on_page_markdown` turns them into links of the site, and names such as `frigate.train` into links to the API.
"""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ROOT_PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md", "README.md": "index.md"}
LINK = re.compile(r"(?<=\]\()(?!https?:)(?P<path>[^)#\s]+)(?P<anchor>#[^)\s]*)?(?=\))")
SYMBOL = re.compile(r"(?<![\[`])`((?:frigate|fg|tests)(?:\.\w+)+)`(?![\]`])")
IN_REFERENCE = re.compile(r"frigate(\.[a-zA-Z]\w*)*\.[a-zA-Z]\w*[a-z]\w*")  # nothing private, no constants, no tests
CODE = re.compile(r"(^ *```.*?^ *```)", re.MULTILINE | re.DOTALL)
PUBLIC = """::: frigate.{name}
    options:
      show_root_full_path: false
      show_symbol_type_heading: true
"""
PACKAGE = """::: frigate.{name}
    options:
      heading_level: 1
      show_root_full_path: true
      show_submodules: true
"""


def packages() -> list[str]:
    """The packages of frigate, and its modules that are not private, sorted."""
    found = (path.parent for path in (ROOT / "frigate").glob("*/__init__.py"))
    modules = (path for path in (ROOT / "frigate").glob("*.py") if path.stem not in ("__init__", "__main__", "version"))
    return sorted(path.stem for path in (*found, *modules))


def public_names() -> list[str]:
    """What `import frigate as fg` gives, as `frigate.__all__` lists it."""
    tree = ast.parse((ROOT / "frigate" / "__init__.py").read_text(encoding="utf-8"))
    values = (
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    names: list[str] = ast.literal_eval(next(values))
    return names


def generated_pages() -> dict[str, str]:
    """The Markdown of every page that is not a file in docs/, by its name on the site."""
    pages = {page: (ROOT / name).read_text(encoding="utf-8") for name, page in ROOT_PAGES.items() if page != "index.md"}
    for script in sorted((ROOT / "examples").glob("*.py")):
        code = script.read_text(encoding="utf-8")
        title = code.split('"""')[1].splitlines()[0].rstrip(".")
        pages[f"examples/{script.stem}.md"] = f"# {title}\n\n`examples/{script.name}`\n\n```python\n{code}```\n"
    names = "\n".join(PUBLIC.format(name=name) for name in public_names())
    pages["api/names.md"] = f"# The names of `import frigate as fg`\n\n{names}"
    for name in packages():
        pages[f"api/{name}.md"] = PACKAGE.format(name=name)
    return pages


def site_path(target: Path) -> str:
    """Where a file of the repository is on the site."""
    name = target.relative_to(ROOT).as_posix()
    if name.startswith("examples/"):
        return str(Path(name).with_suffix(".md"))
    return ROOT_PAGES.get(name, name.removeprefix("docs/"))


def source_path(page: str) -> Path:
    """The file of the repository that a page of the site is made of."""
    names = {there: here for here, there in ROOT_PAGES.items() if there != "index.md"}
    return ROOT / names[page] if page in names else ROOT / "docs" / page


def linked(markdown: str, page: str) -> str:
    """The Markdown of a page with the site's links."""

    def moved(match: re.Match[str]) -> str:
        target = (source_path(page).parent / match["path"]).resolve()
        return os.path.relpath(site_path(target), Path(page).parent) + (match["anchor"] or "")

    def symbol(match: re.Match[str]) -> str:
        name = match[1]
        code = "<code>" + re.sub(r"([._])", r"\1<wbr>", name) + "</code>"  # where a long name may break
        target = re.sub(r"^fg\.", "frigate.", name)
        return f"[{code}][{target}]" if IN_REFERENCE.fullmatch(target) else code

    def text(part: str) -> str:
        return SYMBOL.sub(symbol, LINK.sub(moved, part))

    return "".join(part if i % 2 else text(part) for i, part in enumerate(CODE.split(markdown)))


# Called by mkdocs


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    for page, markdown in generated_pages().items():
        files.append(File.generated(config, page, content=markdown))
    for image in sorted((ROOT / "benchmarks").rglob("*.png")):
        files.append(File.generated(config, site_path(image), abs_src_path=str(image)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    name: str = page.file.src_uri
    return linked(markdown, name) if source_path(name).exists() else markdown
