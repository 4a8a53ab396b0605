"""Small mistakes in a module, drawn at random: at most one on a line, and each kind that can be made there as likely.

The mistakes are those of mutmut. Left out, because nobody could notice them: type hints, docstrings, texts for people,
log lines, and the checks that two things zipped are equally long.
"""

from __future__ import annotations

import ast
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators, operator_arg_removal

LOGGERS = {"LOG", "log", "logger", "logging", "warnings"}
IDLE_KEYWORDS = {"strict", "encoding", "description", "summary", "title", "examples", "responses", "help"}
OPERATORS = {  # of mutmut; its others put None or a misspelt word somewhere, and nearly any test notices that
    "operator_number": "number",
    "operator_name": "true or false",
    "operator_augmented_assignment": "assignment",
    "operator_remove_unary_ops": "not left out",
    "operator_arg_removal": "argument left out",
    "operator_unsymmetrical_string_methods_swap": "string method",
    "operator_symmetric_string_methods_swap": "string method",
    "operator_keywords": "keyword",
    "operator_swap_op": "other operator",
    "operator_match": "case left out",
    "operator_if_exp": "condition",
}
SWAPS = (("min", "max"), ("minimum", "maximum"), ("any", "all"), ("floor", "ceil"))
SWAPPED_NAMES = {"median": "mean"} | {a: b for pair in SWAPS for a, b in (pair, pair[::-1])}
IDLE_DECORATORS = {"dataclass", "overload"}


@dataclass(frozen=True)
class Mutant:
    """Whole lines of a file, and what stands there instead."""

    file: str  # relative to the repository
    line: int  # the first that changes
    operator: str
    before: str
    after: str

    def apply(self, source: str) -> str | None:
        """The source with the mistake; None where its lines are no longer there. Their nearest place is taken."""
        lines, before = source.splitlines(), self.before.splitlines()
        found = [k for k in range(len(lines) - len(before) + 1) if lines[k : k + len(before)] == before]
        if not found:
            return None
        first = min(found, key=lambda k: abs(k + 1 - self.line))
        return "\n".join([*lines[:first], *self.after.splitlines(), *lines[first + len(before) :]]) + "\n"


def draw(root: Path, file: str, count: int, seed: int) -> list[Mutant]:
    """`count` mutants of a file, or fewer where it has not so many lines; the same ones for the same text and seed."""
    source = (root / file).read_text(encoding="utf-8")
    wrapper = MetadataWrapper(cst.parse_module(source), unsafe_skip_copy=True)
    line_of = wrapper.resolve(PositionProvider)
    on_line: dict[int, dict[str, list[tuple[cst.CSTNode, cst.CSTNode]]]] = defaultdict(lambda: defaultdict(list))
    for node in _places(wrapper.module):
        for operator, new in mistakes(node):
            on_line[line_of[node].start.line][operator].append((node, new))
    rng = random.Random(f"{seed} {file}")
    drawn: list[Mutant] = []
    for line in rng.sample(sorted(on_line), len(on_line)):
        if len(drawn) == count:
            break
        operator = rng.choice(sorted(on_line[line]))
        node, new = rng.choice(on_line[line][operator])
        code = cst.ensure_type(wrapper.module.deep_replace(node, new), cst.Module).code
        if _differs(source, code):
            drawn.append(_mutant(file, operator, source, code, line))
    return drawn


def mistakes(node: cst.CSTNode) -> Iterator[tuple[str, cst.CSTNode]]:
    """Each mistake that can be made at a node: what kind it is, and the node with it."""
    for kind, operator in mutation_operators:
        if isinstance(node, kind) and operator.__name__ in OPERATORS:
            for new in operator(node):
                if operator is not operator_arg_removal or _default_taken(node, new):
                    yield OPERATORS[operator.__name__], new
    match node:
        case cst.Expr(value=cst.Call() | cst.Await(expression=cst.Call())):
            yield "call left out", cst.Pass()
        case cst.Call(func=cst.Name(value) | cst.Attribute(attr=cst.Name(value))) if value in SWAPPED_NAMES:
            name = node.func if isinstance(node.func, cst.Name) else cst.ensure_type(node.func, cst.Attribute).attr
            yield "other function", node.with_deep_changes(name, value=SWAPPED_NAMES[value])
        case cst.SimpleString(value='"left"' | '"right"'):
            yield "other side", node.with_changes(value='"left"' if node.value == '"right"' else '"right"')


def _differs(source: str, code: str) -> bool:
    try:
        return ast.dump(ast.parse(code)) != ast.dump(ast.parse(source))
    except SyntaxError:
        return False


def lines_that_tell(source: str, mutant: Mutant) -> set[int]:
    """The lines of which one at least is run wherever the mistake can show.

    Of a parameter's default, those of the function; of a constant, those of functions that name it, or all of them.
    """
    tree = ast.parse(source)
    changed = set(range(mutant.line, mutant.line + len(mutant.before.splitlines())))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    around = [node for node in functions if node.lineno <= mutant.line <= (node.end_lineno or 0)]
    if around:
        inner = max(around, key=lambda node: node.lineno)
        return changed | _starts(inner, changed) if inner.body[0].lineno <= mutant.line else _body(inner)
    names = {
        name.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.lineno <= mutant.line <= (node.end_lineno or 0)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        for name in ast.walk(target)
        if isinstance(name, ast.Name)
    }
    bodies = set().union(*map(_body, functions)) if functions else changed
    named = {
        node.lineno
        for node in ast.walk(tree)
        if (isinstance(node, ast.Name) and node.id in names) or (isinstance(node, ast.Attribute) and node.attr in names)
    }
    return named & bodies or bodies


def _body(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[int]:
    return set(range(function.body[0].lineno, (function.end_lineno or function.lineno) + 1))


def _starts(function: ast.FunctionDef | ast.AsyncFunctionDef, lines: set[int]) -> set[int]:
    """Where the innermost statement around these lines begins."""
    around = [
        node.lineno
        for node in ast.walk(function)
        if isinstance(node, ast.stmt) and node is not function and node.lineno <= min(lines) <= (node.end_lineno or 0)
    ]
    return {max(around)} if around else set()


def _mutant(file: str, operator: str, source: str, code: str, line: int) -> Mutant:
    old, new = source.splitlines(), code.splitlines()
    first = next((k for k, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)) - 1)
    tail = 0
    while tail < min(len(old), len(new)) - first - 1 and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    before, after = old[first : len(old) - tail], new[first : len(new) - tail]
    return Mutant(file, first + 1 if before else line, operator, "\n".join(before), "\n".join(after))


def _places(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The node and those below it, without the parts in which a mistake changes nothing."""
    if _skipped(node):
        return
    if isinstance(node, cst.Annotation):  # of a hint, only what is called: Query(ge=1)
        yield from (place for call in _calls(node) for place in _places(call))
        return
    yield node
    for child in node.children:
        yield from _places(child)


def _calls(node: cst.CSTNode) -> Iterator[cst.Call]:
    for child in node.children:
        if isinstance(child, cst.Call):
            yield child
        else:
            yield from _calls(child)


def _skipped(node: cst.CSTNode) -> bool:
    match node:
        case cst.If(test=cst.Name("TYPE_CHECKING")) | cst.Import() | cst.ImportFrom() | cst.Assert():
            return True
        case cst.Decorator(decorator=cst.Call(func=cst.Name(name))) if name in IDLE_DECORATORS:
            return True
        case cst.Call(func=cst.Attribute(value=cst.Name(name))) if name in LOGGERS:
            return True
        case cst.Expr(value=cst.Call() as call):
            return _skipped(call)
        case cst.Assign(targets=[cst.AssignTarget(target=cst.Name("__all__"))]):
            return True
        case cst.Assign(targets=[cst.AssignTarget(target=cst.Name(name))], value=value) if name[:1].isupper():
            return not name.isupper() and _is_type(value)  # the name of a type
    return _is_text(node) or (isinstance(node, cst.Arg) and _idle_argument(node))


def _is_type(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Subscript) or (
        isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.BitOr)
    )


def _is_text(node: cst.CSTNode) -> bool:
    """Words for a person: a string with a space in it."""
    match node:
        case cst.SimpleString(value=value):
            return " " in value.strip("\"' ")
        case cst.FormattedString(parts=parts):
            return any(isinstance(part, cst.FormattedStringText) and " " in part.value for part in parts)
        case cst.ConcatenatedString(left=left, right=right):
            return _is_text(left) or _is_text(right)
    return False


def _idle_argument(node: cst.Arg) -> bool:
    return _is_text(node.value) or (node.keyword is not None and node.keyword.value in IDLE_KEYWORDS)


def _default_taken(old: cst.CSTNode, new: cst.CSTNode) -> bool:
    """Whether a call has lost a keyword, so that the default holds; without another argument it would only fail."""
    if not (isinstance(old, cst.Call) and isinstance(new, cst.Call)) or len(new.args) == len(old.args):
        return False
    kept = {id(arg) for arg in new.args}
    gone = [arg for arg in old.args if id(arg) not in kept]
    return all(arg.keyword is not None and not _idle_argument(arg) for arg in gone)
