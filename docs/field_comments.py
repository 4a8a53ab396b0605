"""For the API reference: fields of a dataclass are documented by the comment behind them; constants are left out."""

from __future__ import annotations

import ast
from typing import Any

import griffe


class FieldComments(griffe.Extension):
    def on_attribute_instance(self, *, node: Any, attr: griffe.Attribute, **_: Any) -> None:
        """`length_m: Tensor  # [E]` is documented as "[E]". Constants of a module are for readers of the code."""
        if attr.parent is not None and attr.parent.is_module:
            attr.public = not attr.name.isupper()
        elif attr.docstring is None and isinstance(node, ast.AnnAssign | ast.Assign) and attr.endlineno is not None:
            line = attr.lines_collection[attr.filepath][attr.endlineno - 1]
            _, mark, comment = line.partition("  # ")
            if mark and not comment.startswith("fmt:"):
                attr.docstring = griffe.Docstring(comment, lineno=attr.lineno, endlineno=attr.endlineno, parent=attr)
