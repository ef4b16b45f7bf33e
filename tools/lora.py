"""Models whose LoRA weights are inputs (the form of Olive and onnxruntime-genai), random adapters for them, and the same models
with an adapter's weights as their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from vkep.session.ort_interface.adapters import AdapterFormat
from vkep.session.ort_interface.value import OrtValue

Array = np.ndarray[Any, Any]


def add_lora(path: Path) -> dict[str, tuple[int, int]]:
    """Give each product with a weight of a model a part ``x @ a @ b``, whose inputs are empty where a run gives none. Returns the
    sizes of each."""
    model = onnx.load(path)
    weights = {w.name: w for w in model.graph.initializer}
    nodes = []
    sizes: dict[str, tuple[int, int]] = {}
    for node in model.graph.node:
        nodes.append(node)
        if node.op_type != "MatMul" or node.input[1] not in weights or "head" in node.output[0] + node.name:
            continue
        name, (n_in, n_out) = f"lora.{len(sizes)}", weights[node.input[1]].dims
        sizes[name] = (n_in, n_out)
        for part, shape, axes in (("a", (n_in, 0), [n_in, f"{name}.r"]), ("b", (0, n_out), [f"{name}.r", n_out])):
            model.graph.input.append(helper.make_tensor_value_info(f"{name}.{part}", TensorProto.FLOAT, axes))
            model.graph.initializer.append(numpy_helper.from_array(np.zeros(shape, np.float32), f"{name}.{part}"))
        result, node.output[0] = node.output[0], f"{name}.base"
        nodes += [
            helper.make_node("MatMul", [node.input[0], f"{name}.a"], [f"{name}.low"]),
            helper.make_node("MatMul", [f"{name}.low", f"{name}.b"], [f"{name}.more"]),
            helper.make_node("Add", [f"{name}.base", f"{name}.more"], [result]),
        ]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.save(model, path)
    return sizes


def merged(path: Path, into: Path, adapter: dict[str, Array]) -> Path:
    """The model with an adapter's tensors as its weights."""
    model = onnx.load(path)
    for weight in model.graph.initializer:
        if weight.name in adapter:
            weight.CopyFrom(numpy_helper.from_array(adapter[weight.name], weight.name))
    kept = [i for i in model.graph.input if i.name not in adapter]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    onnx.save(model, into)
    return into


def drawn_adapter(sizes: dict[str, tuple[int, int]], rank: int, seed: int, path: Path) -> dict[str, Array]:
    """Random weights of an adapter for what `add_lora` returned, written to a file in ONNX Runtime's form."""
    rng = np.random.default_rng(seed)
    tensors = {
        f"{key}.{part}": rng.normal(0, 0.4, shape).astype(np.float32)
        for key, (n_in, n_out) in sizes.items()
        for part, shape in (("a", (n_in, rank)), ("b", (rank, n_out)))
    }
    form = AdapterFormat()
    form.set_parameters({key: OrtValue.ortvalue_from_numpy(value) for key, value in tensors.items()})
    form.export_adapter(path)
    return tensors
