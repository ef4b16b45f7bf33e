"""A TOSA 1.0 graph under construction: values, constants, operations, and axes that are transposed only where
needed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import numpy as np

from vkep.errors import Decline
from vkep.undo import Undo

Array = np.ndarray[Any, Any]
#: MLIR's element types by numpy's names
MLIR_TYPES = {
    "float32": "f32", "float16": "f16", "bool": "i1", "int8": "i8", "int16": "i16", "int32": "i32", "bfloat16": "bf16",
}  # fmt: skip
#: the types of the TOSA 1.0 graphs that vkep creates (int64 is an extension of TOSA 1.1, unsigned integers exist only
#: in RESCALE)
ELEMENT_TYPES = frozenset({"float32", "float16", "bool", "int8", "int16", "int32"})
MAX_RANK = 6  # TOSA 1.0, level 8K


@dataclass(eq=False)
class Value:
    """A result or constant in TOSA. ``shape`` never has rank 0: a scalar is (1,). ``array`` is set for constants."""

    dtype: str
    shape: tuple[int, ...]
    array: Array | None = None
    is_shape: bool = False  #: of the type !tosa.shape


@dataclass(eq=False)
class Op:
    """``name`` without the dialect; ``attributes`` as MLIR text by name."""

    name: str
    operands: list[Value]
    results: tuple[Value, ...]
    attributes: Mapping[str, str] = field(default_factory=dict)

    @property
    def result(self) -> Value:
        """The one result."""
        return self.results[0]


@dataclass(frozen=True, eq=False)
class Quantized:
    """A float tensor that equals ``(ints - zero) * scale``: QDQ models declare this for the tensors between their
    nodes.

    ``ints`` is int8 (``zero`` of int8) or an int32 accumulator (``zero`` 0); ``scale`` a number, or one for each entry
    of the logical axis ``axis``.
    """

    ints: TosaTensor
    scale: Array
    zero: int
    axis: int = -1  #: -1: one scale for all


@dataclass(frozen=True, eq=False)
class Table:
    """A float tensor that is a function of int8 integers: ``outputs[i]`` is its value where ``ints`` is i - 128."""

    ints: TosaTensor
    outputs: Array


@dataclass(frozen=True, eq=False)
class TosaTensor:
    """The tensor type of operator functions: a logical tensor (ONNX's axes) over a value whose axes may be permuted.

    Logical axis ``i`` is axis ``perm[i]`` of the value. ``scalar``: of rank 0 in ONNX, over a value of shape (1,).
    ``stored`` is set where TOSA 1.0 lacks the type, and names what the value stores instead: "int32" (an int64 tensor whose
    values fit), "low_words" (the low words of an int64 tensor, sufficient for indices), "signed_bits" (an unsigned integer's
    bits in the signed type), "float32" (the value of a bfloat16).
    """

    value: Value
    perm: tuple[int, ...]
    scalar: bool = False
    quantized: Quantized | None = None
    table: Table | None = None
    stored: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes in the order of the ONNX tensor."""
        return () if self.scalar else tuple(self.value.shape[p] for p in self.perm)

    @property
    def rank(self) -> int:
        """Number of dimensions of the ONNX tensor."""
        return 0 if self.scalar else len(self.perm)

    @property
    def dtype(self) -> str:
        """Element type of the ONNX tensor."""
        if self.stored:
            return {"signed_bits": f"u{self.value.dtype}", "float32": "bfloat16"}.get(self.stored, "int64")
        return self.value.dtype

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.value.shape)

    @property
    def array(self) -> Array | None:
        """The content of a constant, in ONNX's axes; None for computed tensors."""
        array = self.value.array
        if array is None:
            return None
        return array.reshape(()) if self.scalar else array.transpose(self.perm)


class TosaBuilder:
    """Collects operations. Operator functions (``vkep.tosa.ops``) call its methods, and raise `Decline`."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self._shapes: dict[tuple[int, ...], Value] = {}
        self._moved: dict[tuple[Value, tuple[int, ...]], Value] = {}
        self.flipped: dict[Value, Value] = {}  #: see `vkep.tosa.type_legalization.flip`

    def decline(self, reason: str) -> NoReturn:
        """Raise `Decline` with the reason."""
        raise Decline(reason)

    def attempt(self, *more: list[Any] | dict[Any, Any]) -> Undo:
        """For a ``with`` block: where it raises, the operations that it added go again, and what it added to ``more``."""
        return Undo(self.ops, self._moved, self.flipped, *more)

    # ---- making tensors

    def input(self, dtype: str, shape: Sequence[int]) -> TosaTensor:
        """An input of the graph."""
        return self.tensor(Value(dtype, tuple(shape) or (1,)), scalar=not shape)

    @staticmethod
    def tensor(value: Value, *, scalar: bool = False) -> TosaTensor:
        """A tensor whose axes are the value's."""
        return TosaTensor(value, tuple(range(len(value.shape))), scalar)

    def constant(self, array: Any, dtype: str | None = None) -> TosaTensor:
        """A constant (any numpy dtype: one that TOSA lacks can be read, but not computed with)."""
        array = np.asarray(array) if dtype is None else np.asarray(array).astype(dtype)
        return self.tensor(
            Value(array.dtype.name, array.shape or (1,), array.reshape(array.shape or (1,))), scalar=array.ndim == 0
        )

    def fill(self, like: TosaTensor, number: float) -> TosaTensor:
        """A constant of one element of ``like``'s type, that broadcasts."""
        return self.constant(np.array(number, np.dtype(like.dtype)))

    def op(
        self,
        name: str,
        operands: Sequence[Value],
        shape: Sequence[int],
        dtype: str | None = None,
        **attributes: str,
    ) -> Value:
        """Append an operation; ``dtype`` defaults to the first operand's. Checks types and rank."""
        return self.op_of_several(name, operands, [shape], dtype, **attributes)[0]

    def op_of_several(
        self,
        name: str,
        operands: Sequence[Value],
        shapes: Sequence[Sequence[int]],
        dtype: str | None = None,
        **attributes: str,
    ) -> tuple[Value, ...]:
        """An operation with a result for each of ``shapes``; see `op`."""
        results = tuple(Value(dtype or operands[0].dtype, tuple(int(d) for d in shape)) for shape in shapes)
        for value in (*operands, *results):
            if value.is_shape:
                continue
            if value.dtype not in ELEMENT_TYPES and not (name == "cast" and value.dtype == "bfloat16"):
                self.decline(f"TOSA 1.0 has no {value.dtype} tensors")
            if len(value.shape) > MAX_RANK:
                self.decline(f"a tensor of rank {len(value.shape)}; TOSA's level 8K goes up to {MAX_RANK}")
            if 0 in value.shape:
                self.decline(f"an empty tensor {value.shape}; TOSA has none")
        self.ops.append(Op(name, list(operands), results, attributes))
        return results

    def shape_value(self, sizes: Sequence[int]) -> Value:
        """A constant of the type !tosa.shape."""
        key = tuple(int(s) for s in sizes)
        if key not in self._shapes:
            array = np.array(key, np.int64)
            self._shapes[key] = Value("index", (len(key),), array, is_shape=True)
        return self._shapes[key]

    def zero_point(self, dtype: str, number: int = 0) -> Value:
        """A constant of one element."""
        return Value(dtype, (1,), np.array([number], np.dtype(dtype)))

    # ---- axes

    def ordered(self, tensor: TosaTensor, order: Sequence[int] | None = None) -> Value:
        """The value whose axis ``j`` is the logical axis ``order[j]`` (None: ONNX's order), transposed if need be."""
        order = tuple(range(len(tensor.perm))) if order is None else tuple(order)
        wanted = tuple(tensor.perm[axis] for axis in order)
        value = tensor.value
        if wanted == tuple(range(len(wanted))):
            return value
        key = (value, wanted)
        if key not in self._moved:
            if value.array is not None:
                moved = np.ascontiguousarray(value.array.transpose(wanted))
                self._moved[key] = Value(value.dtype, moved.shape, moved)
            else:
                self._moved[key] = self._transposed(value, wanted)
        return self._moved[key]

    def _transposed(self, value: Value, wanted: tuple[int, ...]) -> Value:
        shape = [value.shape[p] for p in wanted]
        long = [p for p in wanted if value.shape[p] != 1]
        if long == sorted(long):  # only axes of size 1 move: the bytes are unchanged
            return self.op("reshape", [value, self.shape_value(shape)], shape)
        perms = "array<i32: " + ", ".join(map(str, wanted)) + ">"
        return self.op("transpose", [value], shape, perms=perms)

    @staticmethod
    def from_order(value: Value, order: Sequence[int]) -> TosaTensor:
        """The tensor whose logical axis ``order[j]`` is axis ``j`` of ``value``."""
        return TosaTensor(value, tuple(int(i) for i in np.argsort(order)))

    @staticmethod
    def permute(tensor: TosaTensor, perm: Sequence[int]) -> TosaTensor:
        """ONNX's Transpose: no operation is added until an operator needs the order."""
        if tensor.scalar:
            return tensor
        known = tensor.quantized
        if known is not None:
            axis = list(perm).index(known.axis) if known.axis >= 0 else -1
            known = Quantized(TosaBuilder.permute(known.ints, perm), known.scale, known.zero, axis)
        table = tensor.table
        if table is not None:
            table = Table(TosaBuilder.permute(table.ints, perm), table.outputs)
        return TosaTensor(tensor.value, tuple(tensor.perm[p] for p in perm), tensor.scalar, known, table, tensor.stored)

    def reshape(self, tensor: TosaTensor, shape: Sequence[int]) -> TosaTensor:
        """``tensor`` with another shape of as many elements."""
        shape = tuple(int(d) for d in shape)
        if shape == tensor.shape:
            return tensor
        known = tensor.quantized
        if known is not None and known.axis < 0:
            plain = self.reshape(TosaTensor(tensor.value, tensor.perm, tensor.scalar), shape)
            ints = self.reshape(known.ints, shape)
            return replace(plain, quantized=Quantized(ints, known.scale, known.zero))
        if tensor.table is not None:
            plain = self.reshape(replace(tensor, table=None), shape)
            return replace(plain, table=Table(self.reshape(tensor.table.ints, shape), tensor.table.outputs))
        if tensor.stored:
            return replace(self.reshape(replace(tensor, stored=""), shape), stored=tensor.stored)
        value = self.ordered(tensor)
        physical = shape or (1,)
        if value.array is not None:
            return self.tensor(Value(value.dtype, physical, value.array.reshape(physical)), scalar=not shape)
        if value.shape != physical:
            value = self.op("reshape", [value, self.shape_value(physical)], physical)
        return self.tensor(value, scalar=not shape)

    # ---- elementwise

    def elementwise(
        self,
        name: str,
        *tensors: TosaTensor,
        dtype: str | None = None,
        tail: Sequence[Value] = (),
        attributes: Mapping[str, str] | None = None,
    ) -> TosaTensor:
        """Apply an operation element by element, with numpy's broadcasting.

        ``tail`` are further operands (MUL's shift); ``dtype`` the result's where it is not the first operand's. The
        axes stay as most operands have them.
        """
        shape = np.broadcast_shapes(*(t.shape for t in tensors))
        rank = max(len(shape), 1)
        wide = [self._widen(t, rank) for t in tensors]
        computed = [t for t in wide if t.array is None and t.size > 1] or wide
        lead = max(computed, key=lambda t: t.size)
        order = tuple(int(i) for i in np.argsort(lead.perm))
        values = [self.ordered(t, order) for t in wide]
        physical = [(*shape, 1)[i] if not shape else shape[i] for i in order]
        result = self.op(name, [*values, *tail], physical, dtype, **(attributes or {}))
        return TosaTensor(result, lead.perm, scalar=not shape)

    def _widen(self, tensor: TosaTensor, rank: int) -> TosaTensor:
        """Add axes of size 1 in front, up to ``rank``."""
        missing = rank - len(tensor.perm)
        if not missing:
            return TosaTensor(tensor.value, tensor.perm)
        if tensor.value.array is None and tensor.perm != tuple(range(len(tensor.perm))):
            # keep the order of the value: the new axes are inserted in front of it
            value = tensor.value
            grown = (1,) * missing + value.shape
            made = self.op("reshape", [value, self.shape_value(grown)], grown)
            return TosaTensor(made, (*range(missing), *(p + missing for p in tensor.perm)))
        shape = tensor.shape if not tensor.scalar else (1,)
        return self.reshape(TosaTensor(tensor.value, tensor.perm), (1,) * missing + shape)

    def unary(self, name: str, x: TosaTensor, **attributes: str) -> TosaTensor:
        """A TOSA operator of one operand."""
        return self.elementwise(name, x, attributes=attributes)

    def mul(self, x: TosaTensor, y: TosaTensor) -> TosaTensor:
        """``x * y``, broadcast."""
        return self.elementwise("mul", x, y, tail=[self.zero_point("int8")])

    def add(self, x: TosaTensor, y: TosaTensor) -> TosaTensor:
        """``x + y``, broadcast."""
        return self.elementwise("add", x, y)

    def sub(self, x: TosaTensor, y: TosaTensor) -> TosaTensor:
        """``x - y``, broadcast."""
        return self.elementwise("sub", x, y)

    def negate(self, x: TosaTensor) -> TosaTensor:
        """``-x``."""
        zero = self.zero_point(x.dtype)
        return self.elementwise("negate", x, tail=[zero, zero])

    def maximum(self, x: TosaTensor, y: TosaTensor) -> TosaTensor:
        """The larger of two, NaN where one is NaN."""
        return self.elementwise("maximum", x, y, attributes={"nan_mode": PROPAGATE})

    def minimum(self, x: TosaTensor, y: TosaTensor) -> TosaTensor:
        """The smaller of two, NaN where one is NaN."""
        return self.elementwise("minimum", x, y, attributes={"nan_mode": PROPAGATE})

    def select(self, condition: TosaTensor, x: TosaTensor, y: TosaTensor) -> TosaTensor:
        """``x`` where the condition holds, else ``y``."""
        return self.elementwise("select", condition, x, y, dtype=x.dtype)

    def clamp(self, x: TosaTensor, low: float | int | None, high: float | int | None) -> TosaTensor:
        """Limit to [low, high]; None is no limit. NaN stays."""
        if x.dtype == "int32":  # TOSA's CLAMP supports int8, int16 and floats
            x = x if low is None else self.elementwise("maximum", x, self.fill(x, low), attributes=_NAN)
            return x if high is None else self.elementwise("minimum", x, self.fill(x, high), attributes=_NAN)
        kind = np.dtype(x.dtype)
        info = np.finfo(kind) if kind.kind == "f" else np.iinfo(kind)
        low = float(info.min) if low is None else low
        high = float(info.max) if high is None else high
        # an infinite limit stays infinite: -inf and inf are not clamped to the largest finite number
        low_text, high_text = (number(v, x.dtype) for v in (low, high))
        return self.unary("clamp", x, min_val=low_text, max_val=high_text, nan_mode=PROPAGATE)

    # ---- reductions

    def reduce(self, name: str, x: TosaTensor, axes: Sequence[int], **attributes: str) -> TosaTensor:
        """Reduce the logical ``axes``, which are kept with size 1."""
        value = x.value
        for axis in sorted(axes):
            p = x.perm[axis]
            shape = list(value.shape)
            shape[p] = 1
            value = self.op(name, [value], shape, axis=f"{p} : i32", **attributes)
        return TosaTensor(value, x.perm, x.scalar)


_NAN = {"nan_mode": "#tosa.nan_mode<PROPAGATE>"}
PROPAGATE = "#tosa.nan_mode<PROPAGATE>"


def number(value: float | int, dtype: str) -> str:
    """A number as MLIR attribute text."""
    kind = MLIR_TYPES[dtype]
    if np.dtype(dtype).kind != "f":
        return f"{int(value)} : {kind}"
    bits = np.array(value, np.dtype(dtype))
    if np.isfinite(bits):
        return f"{float(bits):.9e} : {kind}"
    return f"0x{bits.view(f'u{bits.itemsize}').item():0{bits.itemsize * 2}X} : {kind}"


def ints(values: Sequence[int], kind: str = "i64") -> str:
    """An MLIR dense array attribute."""
    return f"array<{kind}: " + ", ".join(str(int(v)) for v in values) + ">"
