"""Islands of ONNX nodes as TOSA graphs: built node by node, each accepted or declined with a reason."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

import vkep.tosa.ops  # noqa: F401  # declares the operators
from vkep.dtypes import DTYPES, DType
from vkep.errors import Decline
from vkep.graph.model import Node
from vkep.graph.weights import Weight
from vkep.tosa import registry
from vkep.tosa.graph import ELEMENT_TYPES, MAX_RANK, PROPAGATE, Op, TosaBuilder, TosaTensor, Value
from vkep.tosa.mlir import needed, to_mlir
from vkep.tosa.shared import TosaWeight, shareable
from vkep.tosa.type_legalization import SIGNED, border_type, from_argument, to_result

#: element types that cross a graph's border
PORT_TYPES = ELEMENT_TYPES.union(SIGNED, ("int64", "bfloat16"))


@dataclass(frozen=True)
class TosaPort:
    """A model value at the island's border."""

    name: str
    dtype: DType
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    @property
    def border(self) -> tuple[str, tuple[int, ...]]:
        """Element type and shape of the graph's tensor on the same bytes; see `vkep.tosa.type_legalization`."""
        return border_type(self.dtype.name, self.shape)


@dataclass(frozen=True)
class TosaGraph:
    """A TOSA function: its text, and the model's values of its arguments and results, in order."""

    mlir: str
    inputs: tuple[TosaPort, ...]
    outputs: tuple[TosaPort, ...]
    operations: tuple[str, ...]  #: names of the TOSA operations, for reports
    weights: tuple[
        TosaWeight, ...
    ] = ()  #: arguments after ``inputs``: weights that Vulkan's kernels also have on the device


class TosaIsland:
    """A growing region: `add` nodes in topological order, then `finish` with the values that others read."""

    def __init__(self, origins: Mapping[str, Node] | None = None) -> None:
        """``origins`` names constants computed by a DequantizeLinear: where possible their integers are read
        instead."""
        self._origins = origins or {}
        self.builder = TosaBuilder()
        self.tensors: dict[str, TosaTensor] = {}
        self.inputs: dict[str, TosaPort] = {}
        self._arguments: dict[str, Value] = {}
        self._weights: list[tuple[Weight, np.ndarray]] = []
        self.nodes: list[Node] = []

    def add(self, node: Node, spec: Callable[[str], Weight | TosaPort | None]) -> list[TosaPort]:
        """Add a node; ``spec`` has the type of a value from outside. Returns its outputs.

        Raises `Decline` with the reason; then the island is unchanged.
        """
        with self.builder.attempt(self.tensors, self.inputs, self._arguments, self._weights):
            arguments = [self._tensor(name, spec) if name else None for name in node.inputs]
            results = registry.lower_node(self.builder, node, arguments)
            ports = []
            for name, tensor in zip(node.outputs, results, strict=False):
                if not name:
                    continue
                if tensor.stored == "low_words":
                    raise Decline("it hands on int64 that may need all its bits; TOSA 1.0 has 32")
                shape = border_type(tensor.dtype, tensor.shape)[1]
                if tensor.dtype not in PORT_TYPES or len(shape) > MAX_RANK or 0 in shape:
                    raise Decline(f"a result of {tensor.dtype} {tensor.shape}, which TOSA 1.0 has not")
                ports.append(TosaPort(name, DTYPES[tensor.dtype], tensor.shape))
                self.tensors[name] = tensor
            missing = [name for name in node.outputs[len(results) :] if name]
            if missing:
                raise Decline(f"the TOSA lowering makes no output {missing[0]!r}")
        self.nodes.append(node)
        return ports

    @property
    def flops(self) -> int:
        """See `vkep.tosa.lower`."""
        return flops(self.builder.ops)

    def _tensor(self, name: str, spec: Callable[[str], Weight | TosaPort | None]) -> TosaTensor:
        if name in self.tensors:
            return self.tensors[name]
        known = spec(name)
        origin = self._origins.get(name)
        if origin is not None and isinstance(known, Weight):
            with contextlib.suppress(Decline):
                inputs = [self._tensor(n, spec) if n else None for n in origin.inputs]
                self.tensors[name] = registry.lower_node(self.builder, origin, inputs)[0]
                return self.tensors[name]
        if known is None:
            raise Decline(f"input {name!r} has no element type or shape that TOSA knows")
        if isinstance(known, Weight):
            array = known.array()
            self._weights.append((known, array))
            tensor = self.builder.constant(array)
        else:
            dtype, shape = known.border
            if known.dtype.name not in PORT_TYPES or len(shape) > MAX_RANK or 0 in shape:
                raise Decline(f"input {name!r} is {known.dtype} {known.shape}, which TOSA 1.0 has not")
            argument = Value(dtype, shape)
            tensor = from_argument(self.builder, argument, known.dtype.name, known.shape)
            self.inputs[name], self._arguments[name] = known, argument
        self.tensors[name] = tensor
        return tensor

    def finish(self, outputs: Sequence[str], shared: Collection[str] = ()) -> TosaGraph:
        """The function whose results are the named values, in ONNX's order of axes. Weights whose keys are in
        ``shared`` become arguments where their bytes can be used unchanged."""
        arguments = {name: self._arguments[name] for name in self.inputs}
        results: list[Value] = []
        before = self.builder.attempt()
        for name in outputs:
            value = to_result(self.builder, self.tensors[name])
            if value.array is not None or value in results or value in arguments.values():
                value = _copy(self.builder, value)
            results.append(value)
        weights = shareable(needed(self.builder.ops, results), results, self._weights, shared)
        text = to_mlir(self.builder.ops, [*arguments.values(), *(value for value, _ in weights)], results)
        names = tuple(line.split('"tosa.')[1].split('"')[0] for line in text.splitlines() if '"tosa.' in line)
        before.undo()
        ports = [TosaPort(n, DTYPES[self.tensors[n].dtype], self.tensors[n].shape) for n in outputs]
        kept = tuple(n for n in names if n not in ("const", "const_shape"))
        return TosaGraph(text, tuple(self.inputs.values()), tuple(ports), kept, tuple(w for _, w in weights))


def _copy(b: TosaBuilder, value: Value) -> Value:
    """A separate result with the same content, by an operation that no graph compiler folds away."""
    if value.dtype == "bool":
        return b.op("logical_or", [value, value], value.shape)
    if value.dtype in ("int8", "int16"):
        return b.op("bitwise_or", [value, value], value.shape)
    return b.op("maximum", [value, value], value.shape, nan_mode=PROPAGATE)


def lower_nodes(nodes: Sequence[Node], known: Mapping[str, Weight | TosaPort], outputs: Sequence[str]) -> TosaGraph:
    """Lower all ``nodes`` as one graph. Raises `Decline` that names the node which TOSA does not support."""
    island = TosaIsland()
    made = dict(known)
    for node in nodes:
        try:
            island.add(node, made.get)
        except Decline as decline:
            raise Decline(f"{node.title}: {decline.reason}") from None
    return island.finish(outputs)


def flops(ops: Iterable[Op]) -> int:
    """Multiplications and additions of sums of products; one operation for each element of every other node's
    result."""
    return sum(_of(op) for op in ops)


def _of(op: Op) -> int:
    size = math.prod(op.result.shape)
    if op.name in ("conv2d", "conv3d"):
        return 2 * size * math.prod(op.operands[1].shape[1:])
    if op.name == "depthwise_conv2d":
        return 2 * size * math.prod(op.operands[1].shape[:2])
    if op.name == "transpose_conv2d":
        return 2 * math.prod(op.operands[0].shape) * math.prod(op.operands[1].shape[:3])
    if op.name == "matmul":
        return 2 * size * op.operands[0].shape[2]
    return size
