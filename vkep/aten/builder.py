"""The builder that operator functions of `vkep.aten` use: ONNX nodes over typed values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import numpy as np
import onnx
from onnx import TensorProto, helper

from vkep import dtypes
from vkep.aten.weights import DerivedWeight
from vkep.errors import Decline
from vkep.graph.model import Node
from vkep.graph.weights import ArrayWeight, Weight

#: the opset that operators are written in; com.microsoft holds block-quantized products and gathers
OPSET = 24
MICROSOFT = "com.microsoft"
OPSETS: Mapping[str, int] = {"": OPSET, MICROSOFT: 1}

FLOAT, FLOAT16, DOUBLE = int(TensorProto.FLOAT), int(TensorProto.FLOAT16), int(TensorProto.DOUBLE)
BOOL, INT8, UINT8 = int(TensorProto.BOOL), int(TensorProto.INT8), int(TensorProto.UINT8)
INT32, INT64 = int(TensorProto.INT32), int(TensorProto.INT64)
FLOATS = (FLOAT, FLOAT16, DOUBLE)

#: largest number of elements of a constant that the import creates
_LARGEST_CONSTANT = 1 << 26
#: elementwise operators: the result has the broadcast sizes of the inputs
_ELEMENTWISE = frozenset({
    "Abs", "Add", "And", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "Cast", "Ceil", "Clip", "Cos", "Div", "Equal",
    "Exp", "Floor", "Gelu", "Greater", "GreaterOrEqual", "HardSwish", "Identity", "LeakyRelu", "Less",
    "LessOrEqual", "Log", "LogSoftmax", "Max", "Min", "Mod", "Mul", "Neg", "Not", "Or", "Pow", "Reciprocal",
    "Relu", "Round", "Shrink", "Sigmoid", "Sign", "Sin", "Softmax", "Sqrt", "Sub", "Tanh", "Where",
})  # fmt: skip
#: element type of a node's first output, where it is not its first input's
_RESULTS: Mapping[str, int] = {
    **dict.fromkeys(("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "And", "Or", "Not"), BOOL),
    **dict.fromkeys(("Shape", "Size", "ArgMax", "ArgMin"), INT64),
}


@dataclass(frozen=True)
class Val:
    """A tensor value of the graph under construction. ``dims`` holds None for a size that is known only at run time."""

    name: str
    elem: int  #: ``TensorProto.DataType``
    dims: tuple[int | None, ...]
    weight: Weight | None = field(default=None, compare=False, repr=False)  #: the array, for a constant
    #: the upper bounds of the sizes, as the blob records them; empty where it records none
    bounds: tuple[int, ...] = field(default=(), compare=False, repr=False)

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.dims)

    @property
    def is_static(self) -> bool:
        """Whether every size is known."""
        return None not in self.dims

    @property
    def is_float(self) -> bool:
        """Whether the elements are floating point."""
        return self.elem in FLOATS

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes. Declines where one is known only at run time."""
        if not self.is_static:
            raise Decline("its shape is known only while running")
        return tuple(d for d in self.dims if d is not None)


#: A size or position: a number, or an int64 scalar that the model computes.
Size = int | Val
#: The operand type of an operator that takes one tensor and one number.
Number = bool | int | float


class GraphBuilder:
    """Collects nodes and weights. ``where`` (the operator being imported) names the nodes."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.weights: dict[str, Weight] = {}
        self.where = ""
        #: the element types and sizes of the operator's results, as the blob records them
        self.results: list[Val] = []
        #: maps a symbolic integer to another one plus a number, where that is known
        self.offsets: dict[str, tuple[str, int]] = {}
        self._constants: dict[tuple[str, tuple[int, ...], bytes], Val] = {}
        self._parts = 0

    def decline(self, reason: str) -> NoReturn:
        """Raise `Decline` with the reason."""
        raise Decline(reason)

    # ---- nodes

    def op(
        self,
        op_type: str,
        *inputs: Val | None,
        elem: int | None = None,
        dims: Sequence[int | None] | None = None,
        domain: str = "",
        **attributes: Any,
    ) -> Val:
        """Add a node with one output. Without ``dims`` an elementwise operator's sizes are broadcast, and any other's
        are unknown."""
        return self.ops(1, op_type, *inputs, elem=elem, dims=dims, domain=domain, **attributes)[0]

    def ops(
        self,
        count: int,
        op_type: str,
        *inputs: Val | None,
        elem: int | None = None,
        dims: Sequence[int | None] | None = None,
        domain: str = "",
        **attributes: Any,
    ) -> list[Val]:
        """Add a node with ``count`` outputs. The caller sets element types that differ."""
        index = len(self.nodes)
        names = [f"{self.where}/{op_type}_{index}" + (f":{k}" if k else "") for k in range(count)]
        reads = [v.name if v is not None else "" for v in inputs]
        while reads and not reads[-1]:
            reads.pop()
        given = {k: v for k, v in attributes.items() if v is not None}
        proto = helper.make_node(op_type, reads, names, name=names[0], domain=domain, **given)
        schema = None if domain else onnx.defs.get_schema(op_type, OPSET, domain)
        self.nodes.append(Node(index, names[0], op_type, domain, tuple(reads), tuple(names), given, proto, schema))
        first = next((v for v in inputs if v is not None), None)
        if elem is None:
            elem = _RESULTS.get(op_type, first.elem if first is not None else FLOAT)
        bounds: tuple[int | None, ...] = ()
        present = [v for v in inputs if v is not None]
        if op_type in _ELEMENTWISE:
            present = present[:1] if op_type == "Clip" else present
            dims = broadcast(*(v.dims for v in present)) if dims is None else dims
            if all(v.bounds or v.is_static for v in present):
                bounds = broadcast(*(v.bounds or v.dims for v in present))
        elif dims is None:
            dims = (None,) * present[0].rank if present else ()
        return [Val(name, elem, tuple(dims), bounds=tuple(d for d in bounds if d is not None)) for name in names]

    def retyped(self, value: Val, elem: int | None = None, dims: Sequence[int | None] | None = None) -> Val:
        """The same value with another element type or shape."""
        return replace(
            value, elem=value.elem if elem is None else elem, dims=tuple(value.dims if dims is None else dims)
        )

    # ---- constants

    def constant(self, array: Any, elem: int | None = None) -> Val:
        """A constant of these values, in element type ``elem`` (default: the array's)."""
        array = np.asarray(array)
        if elem is not None:
            dtype = dtypes.from_onnx(elem)
            assert dtype is not None
            array = np.asarray(array).astype(dtype.numpy)
        key = (array.dtype.name, array.shape, array.tobytes())
        if key not in self._constants:
            name = f"constant_{len(self._constants)}"
            self._constants[key] = self.weight(ArrayWeight(name, array))
        return self._constants[key]

    def filled(self, dims: Sequence[int], value: Number, elem: int) -> Val:
        """A constant tensor in which every element has the same value."""
        return self.constant(np.full(self.limited(dims), value), elem)

    def limited(self, dims: Sequence[int]) -> Sequence[int]:
        """Return ``dims`` where a constant of that size is small enough to create: a damaged blob may request any
        size."""
        if math.prod(dims) > _LARGEST_CONSTANT:
            self.decline(f"a constant of {math.prod(dims)} elements")
        return dims

    def weight(self, weight: Weight) -> Val:
        """A weight of the model as a value."""
        name = weight.name
        while name in self.weights and self.weights[name] is not weight:
            self._parts += 1
            name = f"{weight.name}#{self._parts}"
        weight.name = name
        self.weights[name] = weight
        return Val(name, weight.elem_type, tuple(weight.shape), weight)

    def derived(
        self, base: Val, how: str, transform: Callable[[np.ndarray], np.ndarray], shape: Sequence[int], elem: int
    ) -> Val:
        """A constant rearranged from another one. Declines where ``base`` is not a constant."""
        if base.weight is None:
            self.decline(f"{base.name!r} is no constant, and its format is that of a packed weight")
        return self.weight(DerivedWeight(base.weight, how, transform, tuple(shape), elem))

    def ints(self, items: Sequence[Size]) -> Val:
        """A vector of int64: a constant, or a concatenation of values that the model computes."""
        if all(isinstance(i, int) for i in items):
            return self.constant(np.asarray(items, np.int64).reshape(len(items)))
        parts = [self.constant(np.array([i], np.int64)) if isinstance(i, int) else self.reshape(i, [1]) for i in items]
        return parts[0] if len(parts) == 1 else self.op("Concat", *parts, axis=0, dims=(len(parts),))

    def number(self, value: Number | Size, elem: int) -> Val:
        """A scalar of element type ``elem``."""
        if isinstance(value, Val):
            return self.cast(value, elem)
        dtype = dtypes.from_onnx(elem)
        assert dtype is not None
        if isinstance(value, float) and dtype.kind == "float" and math.isfinite(value):
            value = min(max(value, -dtype.largest), dtype.largest)
        return self.constant(np.array(value, dtype.numpy))

    # ---- common steps

    def cast(self, x: Val, elem: int) -> Val:
        """Convert ``x`` to an element type. Returns ``x`` itself where it has that type."""
        return x if x.elem == elem else self.op("Cast", x, to=elem, elem=elem)

    def reshape(self, x: Val, sizes: Sequence[Size]) -> Val:
        """Reshape ``x``; a size of -1 is inferred from the others."""
        dims: list[int | None] = [s if isinstance(s, int) and s >= 0 else None for s in sizes]
        if dims.count(None) == 1 and x.is_static and all(isinstance(s, int) for s in sizes):
            rest = math.prod(d for d in dims if d is not None)
            dims[dims.index(None)] = math.prod(x.shape) // rest if rest else 0
        if x.is_static and None not in dims:
            return self.op("Reshape", x, self.ints([d for d in dims if d is not None]), allowzero=1, dims=dims)
        allow_zero = 0 if any(isinstance(s, int) and s < 0 for s in sizes) else 1
        return self.op("Reshape", x, self.ints(sizes), allowzero=allow_zero, dims=dims)

    def transpose(self, x: Val, order: Sequence[int]) -> Val:
        """``x`` with its axes in this order; negative axes count from the end."""
        order = [a % x.rank for a in order]
        return self.op("Transpose", x, perm=order, dims=[x.dims[a] for a in order])

    def slice(self, x: Val, axis: int, start: Size, end: Size, step: int = 1) -> Val:
        """``x`` from ``start`` to ``end`` along one axis."""
        length = None
        size = x.dims[axis]
        if isinstance(start, int) and isinstance(end, int) and size is not None:
            length = len(range(*slice(start, end, step).indices(size)))
        args = [self.ints([start]), self.ints([end]), self.ints([axis]), self.ints([step])]
        return self.op("Slice", x, *args, dims=[length if k == axis else d for k, d in enumerate(x.dims)])

    def unsqueeze(self, x: Val, axes: Sequence[int]) -> Val:
        """``x`` with axes of size 1 added at these positions of the result."""
        dims: list[int | None] = list(x.dims)
        for axis in sorted(axes):
            dims.insert(axis, 1)
        return self.op("Unsqueeze", x, self.ints(list(axes)), dims=dims)

    def squeeze(self, x: Val, axes: Sequence[int]) -> Val:
        """``x`` without these axes, whose size is 1."""
        return self.op(
            "Squeeze", x, self.ints(list(axes)), dims=[d for k, d in enumerate(x.dims) if k not in set(axes)]
        )

    def size(self, x: Val, axis: int) -> Size:
        """The length of an axis."""
        known = x.dims[axis]
        if known is not None:
            return known
        axis %= x.rank
        return self.reshape(self.op("Shape", x, start=axis, end=axis + 1, dims=(1,)), [])

    def fixed(self, x: Val, axis: int) -> int:
        """The length of an axis that a weight determines (features, channels). Where the size is known only at run
        time, the bound is used."""
        known = x.dims[axis]
        if known is None and len(x.bounds) == x.rank:
            known = x.bounds[axis]
        if known is None:
            self.decline("a count of features that is known only while running")
        return known

    def sizes(self, x: Val) -> Val:
        """The shape as a vector of int64."""
        return self.ints(x.shape) if x.is_static else self.op("Shape", x, dims=(x.rank,))

    def arithmetic(self, op_type: str, a: Size, b: Size) -> Size:
        """Add, Sub, Mul or floor division (Div) of sizes."""
        if isinstance(a, int) and isinstance(b, int):
            return {"Add": a + b, "Sub": a - b, "Mul": a * b, "Div": a // b if b else 0}[op_type]
        return self.op(op_type, self.number(a, INT64), self.number(b, INT64), elem=INT64, dims=())

    def range(self, length: Size, start: Size = 0) -> Val:
        """``start`` to ``start + length - 1`` as int64."""
        if isinstance(length, int):
            steps = self.constant(np.arange(*self.limited([length]), dtype=np.int64))
        else:
            numbers = [self.number(0, INT64), length, self.number(1, INT64)]
            steps = self.op("Range", *numbers, elem=INT64, dims=(None,))
        return steps if start == 0 else self.op("Add", steps, self.number(start, INT64))

    def axis(self, axis: int, rank: int) -> int:
        """Normalize an axis to 0 .. rank - 1 (0 for a scalar)."""
        if not -max(rank, 1) <= axis < max(rank, 1):
            self.decline(f"axis {axis} of a tensor of rank {rank}")
        return axis % max(rank, 1)


def broadcast(*shapes: Sequence[int | None]) -> tuple[int | None, ...]:
    """The sizes after numpy's broadcasting; None for a size that is not known."""
    rank = max(map(len, shapes), default=0)
    columns = zip(*((1,) * (rank - len(s)) + tuple(s) for s in shapes), strict=True)
    result: list[int | None] = []
    for column in columns:
        known = [d for d in column if d is not None and d != 1]
        result.append(known[0] if known else (None if None in column else 1))
    return tuple(result)
