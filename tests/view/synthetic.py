"""A document of a made-up transformer, as large as asked."""

from __future__ import annotations

from typing import Any

from vkep.view.document import new_document

#: nodes of a layer: module, operator; each reads the one before, and the values at the distances in `_ALSO`
_LAYER = (
    ("norm_in", "LayerNormalization"),
    *(("attention/query", op) for op in ("MatMul", "Add", "Reshape", "Transpose")),
    *(("attention", op) for op in ("MatMul", "Mul", "Add", "Softmax", "MatMul", "Transpose", "Reshape")),
    *(("attention/out", op) for op in ("MatMul", "Add")),
    ("", "Add"),
    ("norm_out", "LayerNormalization"),
    *(("feed_forward/up", op) for op in ("MatMul", "Add")),
    ("feed_forward/activation", "Gelu"),
    *(("feed_forward/down", op) for op in ("MatMul", "Add")),
    ("", "Add"),
)
_ALSO = {14: 14, 21: 7}
_SHAPE = [1, 128, 768]
_STATISTICS: dict[str, Any] = {
    "elements": 65536,
    "nonfinite": 0,
    "min": -0.5,
    "max": 0.5,
    "mean": 0.0,
    "std": 0.1,
    "zeros": 0.0,
}
_STATISTICS["histogram"] = list(range(24))


def large_document(count: int) -> dict[str, Any]:
    """So many nodes in named modules, each with a value and a dispatch of its own, and a run."""
    document = new_document("large.onnx", "a device", "default:0")
    document["values"] = [{"name": "x", "kind": "input", "dtype": "float32", "shape": _SHAPE}]
    buffers, gpu, weights = [], [], list[dict[str, Any]]()
    for k in range(count):
        layer, at = divmod(k, len(_LAYER))
        module, op = _LAYER[at]
        module = f"model/layers.{layer}/{module}".rstrip("/")
        inputs = [k] + ([max(0, k - _ALSO[at])] if at in _ALSO else [])
        name = f"/{module}/{op}_{k}"
        node = {"name": name, "op": op, "where": "vulkan", "module": module, "inputs": inputs, "outputs": [k + 1]}
        document["nodes"].append(node)
        document["values"].append({"name": f"v{k}", "dtype": "float32", "shape": _SHAPE})
        document["dispatches"].append(_dispatch(k, name, op))
        buffers.append(
            {"offset": k % 3 * 4096, "nbytes": 4096, "first": k, "last": min(k + 1, count - 1), "label": name}
        )
        gpu.append({"name": name, "start": 1e4 * k + 100.0, "end": 1e4 * k + 9e3, "island": 0, "dispatch": k})
        if op == "MatMul":
            weights.append({"name": f"{module}.weight_{k}", "kind": "weight", "dtype": "float32", "shape": [768, 768]})
            weights[-1]["stats"] = dict(_STATISTICS)
            node["inputs"] = [*inputs, count + len(weights)]
    document["values"] += weights
    end = 1e4 * count
    host = [{"name": "run", "start": 0, "end": end, "depth": 0}, {"name": "wait", "start": 0, "end": end, "depth": 1}]
    document["runs"] = [{"start": 0, "end": end, "uncertainty": 0, "host": host, "gpu": gpu}]
    document["islands"] = [{}]
    slab = {"island": 0, "bytes": 3 * 4096, "live_peak": 8192, "dispatches": count, "buffers": buffers}
    document["memory"]["slabs"] = [slab]
    return document


def _dispatch(k: int, name: str, op: str) -> dict[str, Any]:
    made: dict[str, Any] = {"index": k, "label": name, "kernel": f"{op.lower()}.comp", "candidate": "", "island": 0}
    made |= {"rejected": [], "defines": {}, "spec": {}, "operands": {}, "params": {}, "nodes": [k]}
    made |= {"grid": [1 + k % 7, 1, 1], "workgroup": [64, 1, 1], "subgroup_size": None, "barrier": True}
    made |= {"bytes": 4096, "flops": 1 << 20, "argument_bytes": 16, "arguments_in": "push constants"}
    return made | {"ns": 8e3 + k % 1000, "samples": [8e3 + k % 1000] * 3, "limit_ns": 4e3}
