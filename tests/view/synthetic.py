"""A document of a made-up transformer, as large as asked."""

from __future__ import annotations

from typing import Any

from vkep.view.document import new_document

#: operators of a layer; each reads the one before, and the values at these distances
_LAYER = (
    *("LayerNormalization", "MatMul", "Add", "Reshape", "Transpose", "MatMul", "Mul", "Add", "Softmax", "MatMul"),
    *(
        "Transpose",
        "Reshape",
        "MatMul",
        "Add",
        "Add",
        "LayerNormalization",
        "MatMul",
        "Add",
        "Gelu",
        "MatMul",
        "Add",
        "Add",
    ),
)
_ALSO = {14: 14, 21: 7}


def large_document(count: int) -> dict[str, Any]:
    """So many nodes, each with a value of its own; no run."""
    document = new_document("large.onnx", "a device", "default:0")
    document["values"] = [{"name": "x", "kind": "input", "dtype": "float32", "shape": [1, 128, 768]}]
    for k in range(count):
        at = k % len(_LAYER)
        inputs = [k] + ([max(0, k - _ALSO[at])] if at in _ALSO else [])
        document["nodes"].append(
            {"name": f"node_{k}", "op": _LAYER[at], "where": "vulkan", "inputs": inputs, "outputs": [k + 1]}
        )
        document["values"].append({"name": f"v{k}", "dtype": "float32", "shape": [1, 128, 768]})
    return document
