"""The places that may fix a size: the calls of `vkep.sizes.fixed` and its kind, each with a reason."""

from __future__ import annotations

import ast
from pathlib import Path

import vkep

VKEP = Path(vkep.__file__).parent
#: why a size is fixed, by file: a new reason belongs in docs/shapes.md too, if users notice it
PLACES = {
    ("graph/weights.py", "a constant in memory is found by its content"),
    ("ir/builder.py", "axes are chosen when the model is planned"),
    ("ir/infer.py", "onnx's inference of shapes, for nodes on the CPU, takes numbers"),
    ("kernels/indices.py", "the number of coordinates is the number of axes that they index"),
    ("ops/generators.py", "a window is a constant"),
    ("ops/generators.py", "the matrix is a constant"),
    ("ops/attention/sdpa.py", "the scale of attention is a constant"),
    ("ops/attention/sdpa.py", "the places of queries are a constant, repeated for each head of a group"),
    ("ops/signal.py", "a transform's length and axis are constants"),
    ("ops/signal.py", "the transform's factors are constants"),
    ("passes/sized.py", "it is a constant of a shader"),
    ("passes/sized.py", "it is in the text of a shader"),
    ("placement/control.py", "the loop is unrolled"),
    ("placement/fold_sizes.py", "numpy computes the node when the model is planned"),
    ("placement/functions.py", "onnx's function body depends on the size"),
    ("placement/sequences.py", "the number of elements of a sequence is that of a plan"),
    ("sizes/trace.py", "a dimension of 0 or 1 decides what is empty and what broadcasts"),
}


def test_only_these_places_fix_a_size() -> None:
    found = set()
    for path in sorted(VKEP.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        texts = {
            target.id: node.value.value
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if (
                name not in ("fixed", "fixed_text") or path.parent.name == "aten"
            ):  # b.fixed of vkep.aten has other numbers
                continue
            why = node.args[-1]
            reason = why.value if isinstance(why, ast.Constant) else texts.get(getattr(why, "id", ""), "")
            if not reason and path.parent.name in ("sizes", "graph"):
                continue  # they pass on the reason that they are given
            found.add((path.relative_to(VKEP).as_posix(), reason))
    assert found == PLACES
