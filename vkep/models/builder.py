"""A small writer of ONNX graphs: names, initializers and nodes, checked at the end."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]
Dim = int | str

OPSET = 18
IR_VERSION = 10  # what ONNX Runtime 1.18 and later read


class GraphBuilder:
    """Collects nodes and initializers; every method that adds a node returns the name of its output.

    Weights are drawn from a generator seeded by the model's and the weight's name, so that a weight does not depend on
    the order in which the graph is built. They have 15 levels (multiples of half a standard deviation up to 3.5), so
    that the files compress well.

    `float16` stores floats (initializers, inputs, outputs) as float16. `rounded` stores them as float32 but rounds them
    to float16's values: the twin from which a float16 model's reference is computed.
    """

    def __init__(self, name: str, *, float16: bool = False, rounded: bool = False) -> None:
        self.name = name
        self.float16 = float16
        self.rounded = rounded
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, TensorProto] = {}
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self._names: dict[str, int] = {}

    @property
    def float_type(self) -> int:
        """The ONNX type of the model's floats."""
        return int(TensorProto.FLOAT16 if self.float16 else TensorProto.FLOAT)

    def unique(self, stem: str) -> str:
        """A value name that is not taken: `stem`, `stem_1`, `stem_2` ..."""
        number = self._names.get(stem, 0)
        self._names[stem] = number + 1
        return stem if number == 0 else f"{stem}_{number}"

    # ---- weights ----

    def random(self, name: str) -> np.random.Generator:
        """The generator of the weight `name` of this model; the same on every machine and in every order."""
        return np.random.default_rng([zlib.crc32(self.name.encode()), zlib.crc32(name.encode())])

    def weight(self, name: str, shape: Sequence[int], std: float) -> Array:
        """A 15-level normal float32 array of the given standard deviation."""
        return levels(self.random(name), shape) * np.float32(std)

    # ---- graph ----

    def input(self, name: str, shape: Sequence[Dim], elem_type: int | None = None) -> str:
        """Declare a graph input; a string is a symbolic dimension."""
        elem_type = self.float_type if elem_type is None else elem_type
        self.inputs.append(helper.make_tensor_value_info(name, elem_type, list(shape)))
        return self.unique(name)

    def output(self, value: str, name: str, shape: Sequence[Dim], elem_type: int | None = None) -> None:
        """Declare `value` as graph output `name`: the node that makes it is renamed."""
        for node in self.nodes:
            for names in (node.input, node.output):
                for position, old in enumerate(names):
                    if old == value:
                        names[position] = name
        elem_type = self.float_type if elem_type is None else elem_type
        self.outputs.append(helper.make_tensor_value_info(name, elem_type, list(shape)))

    def constant(self, name: str, value: Array | float | Sequence[int]) -> str:
        """Add an initializer, or find the one of this name; floats are stored in the model's float type."""
        if name in self.initializers:
            return name
        array = np.asarray(value)
        if array.dtype.kind == "f":
            if self.float16 or self.rounded:
                array = array.astype(np.float16)
            array = array.astype(np.float16 if self.float16 else np.float32)
        elif array.dtype.kind == "i":
            array = array.astype(np.int64)
        self.initializers[name] = numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
        return name

    def add(self, op_type: str, *inputs: str, stem: str = "", **attributes: Any) -> str:
        """Add a node with one output and return its name, made from `stem` or the operator's name."""
        output = self.unique(stem or op_type.lower())
        self.nodes.append(helper.make_node(op_type, list(inputs), [output], name=f"node_{output}", **attributes))
        return output

    def add_many(self, op_type: str, *inputs: str, outputs: int, **attributes: Any) -> list[str]:
        """Add a node with several outputs and return their names."""
        names = [self.unique(op_type.lower()) for _ in range(outputs)]
        self.nodes.append(helper.make_node(op_type, list(inputs), names, name=f"node_{names[0]}", **attributes))
        return names

    def linear(self, x: str, name: str, n_in: int, n_out: int, *, bias: bool = True) -> str:
        """`x @ W + b` as exporters write it for inputs of rank 3: MatMul, then Add."""
        weight = self.constant(f"{name}.weight", self.weight(f"{name}.weight", (n_in, n_out), n_in**-0.5))
        x = self.add("MatMul", x, weight)
        if not bias:
            return x
        return self.add("Add", x, self.constant(f"{name}.bias", self.weight(f"{name}.bias", (n_out,), 0.02)))

    def layer_norm(self, x: str, name: str, size: int, epsilon: float) -> str:
        """LayerNormalization over the last axis with scales around 1 and small offsets."""
        scale = self.constant(f"{name}.weight", 1 + self.weight(f"{name}.weight", (size,), 0.1))
        offset = self.constant(f"{name}.bias", self.weight(f"{name}.bias", (size,), 0.05))
        return self.add("LayerNormalization", x, scale, offset, axis=-1, epsilon=epsilon)

    def graph(self) -> onnx.GraphProto:
        """The finished graph, with the weights that nodes read; unchecked, for the body of a node."""
        read = {name for node in self.nodes for name in node.input}
        kept = [tensor for name, tensor in self.initializers.items() if name in read]
        return helper.make_graph(self.nodes, self.name, self.inputs, self.outputs, initializer=kept)

    def model(self) -> onnx.ModelProto:
        """The finished model, checked by onnx (shapes too).

        Raises:
            onnx.checker.ValidationError: if the graph is not valid.
            onnx.shape_inference.InferenceError: if shapes contradict each other.
        """
        model = helper.make_model(
            self.graph(),
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="vkep.models",
        )
        onnx.checker.check_model(model, full_check=True)
        return model


def levels(random: np.random.Generator, shape: Sequence[int]) -> Array:
    """Normal float32 numbers of 15 levels: multiples of 0.5 in [-3.5, 3.5]."""
    rounded = np.round(random.standard_normal(tuple(shape), dtype=np.float32) * 2)
    return np.clip(rounded, -7, 7) / np.float32(2)
