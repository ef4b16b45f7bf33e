"""Public functions, methods and classes of vkep and gpu_shared have docstrings, and these name the errors that a function raises.

A method that overrides a documented one has its docstring. A function that declares an operator is documented by the operator's
specification: its decorator names it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: decorators that declare an operator, a kernel of one, or an entry of a table that the decorator names
DECLARING = {
    "operator",
    "aten",
    "kernel",
    "tosa_operator",
    "value",
    "releases",
    "pointwise",
    "status",
    "grpc_method",
    "overload",
    "setter",
}
#: classes that are another project's file format, whose specification their module names
FORMATS = {"vkep/pte/schema.py"}
#: operators are documented by their specifications; so are the ATen kernels
OPERATORS = ("vkep/ops/", "vkep/aten/", "vkep/tosa/ops/", "vkep/executorch/portable/")
#: how a command ends, exceptions of Python's protocols, and errors of this project's own code
UNNAMED = {
    "UsageError",
    "BadParameter",
    "Exit",
    "AssertionError",
    "NotImplementedError",
    "StopIteration",
    "AttributeError",
    "KeyError",
}
#: docstrings that refer to another one for the errors
REFERS = re.compile(r"\bAs `|\bSee `|\b[Rr]aises? (the errors )?(as|of) ")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def _trees() -> dict[str, ast.Module]:
    files = [*(ROOT / "vkep").rglob("*.py"), *(ROOT / "registry").rglob("*.py")]
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8")) for path in files}


def _decorators(node: Function) -> set[str]:
    names = [ast.unparse(decorator).partition("(")[0] for decorator in node.decorator_list]
    return {name.rpartition(".")[2] for name in names}


def _methods(node: ast.ClassDef) -> Iterator[Function]:
    return (child for child in node.body if isinstance(child, Function))


def undocumented(trees: dict[str, ast.Module]) -> list[str]:
    """``file:line name`` of each public function, method and class without a docstring."""
    classes: dict[str, list[ast.ClassDef]] = {}
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name, []).append(node)

    def inherited(node: ast.ClassDef, method: str, seen: frozenset[str] = frozenset()) -> bool:
        for base in node.bases:
            name = ast.unparse(base).partition("[")[0].rpartition(".")[2]
            for parent in classes.get(name, []) if name not in seen else []:
                if any(m.name == method and ast.get_docstring(m) for m in _methods(parent)):
                    return True
                if inherited(parent, method, seen | {name}):
                    return True
        return False

    def look(body: list[ast.stmt], owner: ast.ClassDef | None) -> Iterator[tuple[int, str]]:
        for node in body:
            if isinstance(node, ast.If):
                yield from look([*node.body, *node.orelse], owner)
            if not isinstance(node, (Function, ast.ClassDef)) or node.name.startswith("_"):
                continue
            name = f"{owner.name}.{node.name}" if owner else node.name
            if isinstance(node, ast.ClassDef):
                if not ast.get_docstring(node):
                    yield node.lineno, name
                yield from look(node.body, node)
            elif not (
                ast.get_docstring(node)
                or _decorators(node) & DECLARING
                or (owner is not None and inherited(owner, node.name))
            ):
                yield node.lineno, name

    return [
        f"{file}:{line} {name}"
        for file, tree in sorted(trees.items())
        if file not in FORMATS
        for line, name in look(tree.body, None)
    ]


def _raised(function: Function) -> set[str]:
    """Exceptions that the function's own statements raise, by name; those of functions inside it are not its own."""
    found: set[str] = set()
    left: list[ast.AST] = list(function.body)
    while left:
        node = left.pop()
        if isinstance(node, Function | ast.ClassDef | ast.Lambda):
            continue
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            found.add(ast.unparse(node.exc.func).rpartition(".")[2])
        left += ast.iter_child_nodes(node)
    return {name for name in found if name[:1].isupper()}


def unnamed_errors(trees: dict[str, ast.Module]) -> list[str]:
    """``file:line name: errors`` of each public function whose docstring names neither these errors nor another docstring
    for them. The errors of a constructor are in the class's docstring or in its own."""

    def look(body: list[ast.stmt], owner: str, of_class: str) -> Iterator[tuple[int, str]]:
        for node in body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield from look(node.body, f"{node.name}.", ast.get_docstring(node) or "")
            if not isinstance(node, Function) or _decorators(node) & DECLARING:
                continue
            if node.name != "__init__" and (node.name.startswith("_") or not ast.get_docstring(node)):
                continue  # what overrides a documented method has its docstring
            text = (ast.get_docstring(node) or "") + (of_class if node.name == "__init__" else "")
            missing = {name for name in _raised(node) - UNNAMED if name not in text}
            if missing and not REFERS.search(text):
                yield node.lineno, f"{owner}{node.name}: {', '.join(sorted(missing))}"

    return [
        f"{file}:{line} {name}"
        for file, tree in sorted(trees.items())
        if not file.startswith(OPERATORS)
        for line, name in look(tree.body, "", "")
    ]


def test_docstrings_name_the_errors_that_are_raised() -> None:
    assert unnamed_errors(_trees()) == []


def test_an_error_without_a_name_is_found() -> None:
    text = """
def silent(x):
    '''Adds.'''
    raise ValueError(x)
def said(x):
    '''Raises ``ValueError``.'''
    raise ValueError(x)
def refers(x):
    '''Raises as `said`.'''
    raise ValueError(x)
class Made:
    '''Raises `OddError`.'''
    def __init__(self): raise errors.OddError("odd")
    def inner(self):
        '''Makes a function.'''
        def later(): raise ValueError()
        return later
    def other(self):
        '''Does it.'''
        raise errors.OddError("odd")
"""
    assert unnamed_errors({"made.py": ast.parse(text)}) == [
        "made.py:2 silent: ValueError",
        "made.py:18 Made.other: OddError",
    ]


def test_public_names_are_documented() -> None:
    assert undocumented(_trees()) == []


def test_missing_docstrings_are_found() -> None:
    text = """
class Base:
    '''.'''
    def said(self): '''.'''
    def unsaid(self): pass
class Derived(Base):
    '''.'''
    def said(self): pass
    def unsaid(self): pass
def plain(): pass
def _private(): pass
@operator("Relu")
def relu(b, x): pass
"""
    found = [line.partition(" ")[2] for line in undocumented({"made.py": ast.parse(text)})]
    assert found == ["Base.unsaid", "Derived.unsaid", "plain"]
