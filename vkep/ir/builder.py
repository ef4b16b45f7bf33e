"""The builder that operator functions use: pointwise expressions, kernel operations, movement, constants, declines."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NoReturn

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from vkep.dtypes import DTYPES, DType, from_onnx
from vkep.errors import Decline, ExpressionError, InvalidNode
from vkep.graph.model import Node
from vkep.graph.weights import ArrayWeight, Weight
from vkep.ir import algebra as fn
from vkep.ir import expr as ex
from vkep.ir import float8
from vkep.ir.custom import CustomProblem, Emit
from vkep.ir.ops import BaseTarget, KernelOp, Op, Pointwise
from vkep.ir.place import Place
from vkep.ir.pointwise_ops import OPERATIONS, storing_op
from vkep.ir.tensor import Storage, Tensor, broadcast_shapes, contiguous_strides
from vkep.kernels.problem import Problem
from vkep.kernels.select import choose
from vkep.plan.records import FRESH
from vkep.sizes import fixed, matches, serves_others, wholes
from vkep.undo import Undo

#: limits of kernels: a tensor's elements, and the value of an integer
LARGEST = 1 << 31
Operand = Tensor | ex.Expr | float | int | bool


class Builder:
    """Collects the operations of an island. The first argument of operator functions."""

    def __init__(self, caps: DeviceCapabilities, *, check_data: bool = True) -> None:
        """``check_data``: whether `require` makes runs check their data."""
        self.caps, self.check_data = caps, check_data
        self.ops: list[Op] = []
        self.node: Node | None = None
        self.place: Place | None = None  #: the memory in which the node's result should be stored
        #: by the condition that they check: layers share lengths
        self._ranges: dict[tuple[Tensor, int, int], Pointwise] = {}
        #: by the storage of a dequantized tensor the step that its elements are multiples of; by that of codes which are its
        #: elements in such steps, the tensor (`vkep.ops.quantized.linear`)
        self.steps: dict[Storage, Hashable] = {}
        self.in_steps: dict[Storage, Tensor] = {}
        #: 8-bit codes less a number in another type, by where they are, the number and the type; and by the storage of a
        #: dequantized tensor its codes, their zero point and scale (`vkep.ops.codes`)
        self.whole_numbers: dict[Hashable, Tensor] = {}
        self.coded: dict[Storage, tuple[Tensor, int, float]] = {}

    # ---- declining

    def decline(self, reason: str) -> NoReturn:
        """Decline the node, for a feature that the kernels lack: it then runs on the CPU. Raises `Decline` with the
        reason."""
        raise Decline(reason)

    def invalid(self, reason: str) -> NoReturn:
        """Reject the node: the operator's specification forbids it, and the model or the run is refused. Raises
        `InvalidNode` with the reason."""
        raise InvalidNode(reason)

    def expect(self, what: str, tensor: Tensor | None, *shapes: Sequence[int]) -> None:
        """Raise `InvalidNode` unless a tensor that is present has one of these shapes."""
        if tensor is not None and tensor.shape not in [tuple(shape) for shape in shapes]:
            expected = " or ".join(str(list(shape)) for shape in shapes)
            raise InvalidNode(f"{what} has shape {list(tensor.shape)}, expected {expected}")

    def value(self, tensor: Tensor | None, what: str) -> np.ndarray:
        """The values of an input that must be known while planning, such as axes or a shape, with its shape and element
        type. Raises `Decline` for a missing input, `NeedsValue` for one that a run computes."""
        if tensor is None:
            raise Decline(f"{what} is missing")
        array = tensor.array
        if array is None:
            raise NeedsValue(f"{what} is computed at run time", tensor)
        return array

    def ints(self, tensor: Tensor | None, what: str, *, or_one: bool = False) -> list[int] | None:
        """The values of a list that must be known while planning. With ``or_one`` a scalar counts as a list of one.
        Raises `InvalidNode` for another rank."""
        if tensor is not None and tensor.rank != 1 and not (or_one and tensor.rank == 0):
            raise InvalidNode(f"{what} has shape {list(tensor.shape)}, expected one axis")
        return None if tensor is None else list(wholes(self.value(tensor, what).reshape(-1).tolist()))

    def attempt(self, *more: list[Any] | dict[Any, Any]) -> Undo:
        """For a ``with`` block: where it raises, the operations that it added go again, and what it added to ``more``."""
        return Undo(self.ops, self._ranges, *more)

    def expect_range(self, name: str, values: Tensor | None, low: int, high: int) -> None:
        """Check that integers of an optional input are from ``low`` to ``high``. Raises `InvalidNode` for known values
        out of range; values that are known only in a run raise `InvalidInputError` there."""
        if values is None or not values.size:
            return
        reason, known = f"{name} is outside [{low}, {high}]", values.array
        if known is not None and not ((known >= low) & (known <= high)).all():
            raise InvalidNode(reason)
        if known is not None or not self.check_data:
            return
        key = (values, low, high)
        if key not in self._ranges:
            checked = self.require(values, lambda v, least, most: (v >= least) & (v <= most), reason, low, high)
            assert isinstance(checked, ex.Expr)
            self._ranges[key] = check = Pointwise(self.empty(values.dtype, values.shape), checked, is_check=True)
            self._add(check)
        elif self.node is not None:
            self._ranges[key].labels.append(self.node.name)

    def broadcast(self, name: str, tensor: Tensor, shape: Sequence[int]) -> Tensor:
        """Broadcast an input to a shape, as a view. Raises `InvalidNode` where it does not fit."""
        try:
            return tensor.expand(shape)
        except ValueError:
            raise InvalidNode(
                f"{name} has shape {list(tensor.shape)}, which does not broadcast to {list(shape)}"
            ) from None

    def number(self, tensor: Tensor | None, what: str) -> int | float | bool:
        """The value of a single element that must be known while planning. Raises `InvalidNode` for any other number of
        elements."""
        if tensor is not None and tensor.size != 1:
            raise InvalidNode(f"{what} has shape {list(tensor.shape)}, expected one element")
        number: int | float | bool = self.value(tensor, what).item()
        return number

    def axis(self, axis: int, rank: int) -> int:
        """Normalize an axis to count from the front. Raises `InvalidNode` for one that is out of range."""
        axis = int(fixed(axis, "axes are chosen when the model is planned"))
        if not -rank <= axis < max(rank, 1):
            raise InvalidNode(f"axis {axis} is out of range for rank {rank}")
        return axis % max(rank, 1)

    # ---- constants

    def constant(self, array: np.ndarray, label: str = "") -> Tensor:
        """A tensor with the array's shape, element type and values, which are part of the plan. Raises ``TypeError``
        for an element type that kernels do not have."""
        array = np.ascontiguousarray(array).reshape(np.shape(array))
        return self.weight(ArrayWeight(label, array))

    def weight(self, weight: Weight) -> Tensor:
        """A constant tensor of the model."""
        dtype = from_onnx(weight.elem_type)
        assert dtype is not None, "checked where the weight came in"
        storage = Storage(weight.nbytes, weight=weight, label=weight.name)
        return Tensor(dtype, tuple(weight.shape), storage, contiguous_strides(weight.shape))

    def scalar_like(self, value: float | int, tensor: Tensor) -> Tensor:
        """A constant of shape () with the element type of ``tensor``."""
        return self.constant(np.array(value, tensor.dtype.numpy))

    # ---- pointwise

    def reads(self, *operands: Operand) -> list[ex.Expr]:
        """Expressions of the elements of tensors. A number, or the only element of a constant, is passed as an argument, so
        that its value selects no shader; a number has the type of the first tensor or expression. Raises `ExpressionError`
        where there is none."""
        known = _type_of_first(operands)
        if known is None:
            raise ExpressionError(f"the numbers {operands} are read without a tensor or an expression beside them")
        return [self._expr(operand, known) for operand in operands]

    def expr(self, op: str, *args: Operand, ctype: str | None = None) -> ex.Expr:
        """A pointwise operation by its name in `vkep.ir.pointwise_ops`, or by a user's GLSL (`Expr.op`). A number among the
        arguments is passed as an argument of the kernel.

        Of a name, a number has the type of the operands beside it; ``ctype`` (GLSL) is the type of the result, where the
        operands do not determine it. Of GLSL, a number has the type of the first tensor or expression, which is also the
        default of ``ctype``. Raises `ExpressionError` for types that the operation does not take, ``ValueError`` where no
        argument has a type.
        """
        known = _type_of_first(args)
        operation = OPERATIONS.get(op)
        if operation is not None:
            types = [_type_of_first([arg]) for arg in args]
            try:
                takes, kind = operation.resolved(types, ctype)
            except TypeError as error:
                raise ExpressionError(f"the operation {op!r} {error}") from None
            return ex.Expr(kind, op, tuple([self._expr(a, t) for a, t in zip(args, takes, strict=True)]))
        stated = ctype or known
        if stated is None:
            raise ValueError(f"expression {op!r} has no typed argument; pass ctype")
        return ex.Expr(stated, op, tuple([self._expr(a, known or stated) for a in args]))

    def divide(self, x: Operand, y: Operand) -> ex.Expr:
        """A correctly rounded float quotient: GPUs may err by 2.5 ULP (Vulkan spec, "Precision and Operation of SPIR-V
        Instructions"), so one step of refinement follows. Operators that round a quotient need it, for ties."""
        return self.expr("exact_div", x, y)

    def require(self, value: Operand, condition: str | Callable[..., ex.Expr], reason: str, *args: Operand) -> Operand:
        """Return ``value`` with a check: a run raises `InvalidInputError` where ``condition`` does not hold: the name of an
        operation on the value and ``args``, or a function that returns a bool expression for theirs. The check runs only
        where something is computed from the result."""
        if not self.check_data:
            return value
        found = self.expr("same", value)
        holds = self._applied(condition, (found, *args), "bool")
        return ex.Checked(found.ctype, "", (found, holds), reason, self.node.title if self.node else "")

    def pointwise(
        self,
        op: str | Callable[..., ex.Expr],
        *args: Operand,
        dtype: DType | None = None,
        shape: Sequence[int] | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """An elementwise result over broadcast arguments: of a function of their expressions (`reads`), or of an operation
        as for `expr`. Its element type is ``dtype``, by default that of the first tensor."""
        if dtype is None:
            tensors = [out] if out is not None else [t for a in args for t in _tensors(a)]
            dtype = tensors[0].dtype
        if shape is None and out is None:  # also for scalar constants, which are not tensors of the expression
            shape = _broadcast([t for a in args for t in _tensors(a)])
        result = self._applied(op, args, dtype.glsl_compute)
        if dtype.kind in ("int", "uint") and dtype.itemsize < 4:  # wrap as the stored type does
            result = fn.stored_as(result, dtype)
        return self.store(result, dtype, shape=shape, out=out)

    def _applied(self, op: str | Callable[..., ex.Expr], args: Sequence[Operand], ctype: str) -> ex.Expr:
        if isinstance(op, str):
            return self.expr(op, *args, ctype=ctype)
        result = op(*self.reads(*args))
        if result.ctype != ctype:
            raise ExpressionError(f"an expression of type {result.ctype}, where {ctype} is expected")
        return result

    def store(
        self, result: ex.Expr, dtype: DType, *, shape: Sequence[int] | None = None, out: Tensor | None = None
    ) -> Tensor:
        """Write an expression to a new tensor, or to the view ``out``; leaves are broadcast."""
        if shape is None and out is None:
            shape = _broadcast(ex.tensors(result))
        shape = out.shape if out is not None else tuple(shape or ())

        def expanded(leaf: ex.Leaf) -> ex.Expr | None:
            view = leaf.tensor.expand(shape) if leaf.tensor is not None else None
            return ex.leaf(view) if view is not None and view is not leaf.tensor else None

        result = ex.substitute(result, expanded)
        out = out if out is not None else self.empty(dtype, shape)
        self._add(Pointwise(out, result))
        return out

    def empty(self, dtype: DType, shape: Sequence[int]) -> Tensor:
        """Allocate a buffer that operations fill. Declines a negative size, and more elements than kernels can
        count."""
        made = Tensor.contiguous(dtype, shape)
        if made.size >= LARGEST or any(d < 0 for d in shape):
            raise Decline(f"a result of shape {tuple(shape)}; the kernels take 0 to 2**31 - 1 elements")
        return made

    def full(self, shape: Sequence[int], value: float | int | bool, dtype: DType) -> Tensor:
        """A constant of one value, broadcast with stride 0."""
        return self.constant(np.array(value, dtype.numpy)).expand(tuple(shape))

    def fresh_bits(self) -> Tensor:
        """64 random bits (uint32 [2]) that differ from run to run. Only kernels may read them, not expressions."""
        return Tensor.contiguous(DTYPES["uint32"], (2,), Storage(8, port=FRESH, label="fresh bits"))

    # ---- kernels

    def compute(self, problem: Problem, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """Add an operation that has its own kernels. Operands have the order of `Problem.needs` and `Problem.makes`.

        Raises `InvalidNode` where they do not match the problem, `Decline` where no candidate supports the problem on
        this device.
        """
        op = KernelOp(problem, list(inputs), list(outputs))
        if 0 not in [t.size for t in outputs]:
            choose(problem, self.caps)
            self._add(op)

    def result(self, problem: Problem, *inputs: Tensor, shape: Sequence[int] | None = None) -> Tensor:
        """The only output of a problem over dense inputs, as a new tensor: in the problem's shape, or in another one of
        as many elements. Raises as `compute`."""
        [made] = problem.operands[1]
        out = self.empty(DTYPES[made.dtype], made.shape if shape is None else shape)
        self.compute(problem, [self.contiguous(t) for t in inputs], [out])
        return out

    def kernel(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], emit: Emit) -> None:
        """Add a custom operation whose dispatches ``emit`` creates. Its kernels must stay within the operands' views.
        Raises `Decline` where ``emit`` raises ``ValueError``."""
        if 0 not in [t.size for t in outputs]:
            try:
                emit(BaseTarget(self.caps), inputs, outputs, None)
            except ValueError as error:
                raise Decline(str(error)) from None
        self.compute(CustomProblem.of(inputs, outputs, emit), inputs, outputs)

    # ---- movement

    def contiguous(self, tensor: Tensor) -> Tensor:
        """The tensor; copied where its elements are not dense."""
        if tensor.is_contiguous:
            return tensor
        array = tensor.array
        if array is None:
            return self.copy(tensor)
        if array.dtype == object:  # symbolic sizes as their current values
            array = np.array([int(value) for value in array.reshape(-1)], tensor.dtype.numpy).reshape(array.shape)
        return self.constant(array)

    def copy(self, tensor: Tensor, out: Tensor | None = None) -> Tensor:
        """A dense copy, or a copy into the view ``out``."""
        out = out if out is not None else self.empty(tensor.dtype, tensor.shape)
        return self.store(ex.leaf(tensor), tensor.dtype, out=out)

    def reshape(self, tensor: Tensor, shape: Sequence[int]) -> Tensor:
        """``tensor`` with another shape of as many elements: a view where its strides allow one, else a copy. Raises
        `InvalidNode`."""
        if any(d < 0 for d in shape):
            raise InvalidNode(f"shape {tuple(shape)} has a negative size")
        view = tensor.reshape(shape)
        if view is None:
            view = self.contiguous(tensor).reshape(shape)
            assert view is not None
        return view

    def cast(self, tensor: Tensor, dtype: DType) -> Tensor:
        """The ONNX Cast of a tensor (floats to ints truncate, 8-bit floats saturate)."""
        if tensor.dtype is dtype:
            return tensor
        return self.store(self.cast_expr(ex.leaf(tensor), tensor.dtype, dtype), dtype, shape=tensor.shape)

    def cast_expr(self, source: ex.Expr, from_dtype: DType, to: DType) -> ex.Expr:
        """An expression of one element type converted to another."""
        if from_dtype.kind == "bits":
            value = float8.decode(source, from_dtype)
            return value if to.name == "float32" else self.cast_expr(value, DTYPES["float32"], to)
        if to.kind == "bits":
            return float8.encode(self.cast_expr(source, from_dtype, DTYPES["float32"]), to)
        if to.kind == "bool" and source.ctype != "bool":
            return fn.not_equal(source, 0)
        if source.ctype == to.glsl_compute:
            return fn.stored_as(source, to)
        value = fn.cast(source, to.glsl_compute)
        return value if storing_op(to) == "same" else fn.stored_as(value, to)

    # ---- inside

    def _add(self, op: Op) -> None:
        if 0 in [t.size for t in op.outputs]:
            return
        if self.node is not None:
            op.labels.append(self.node.name)
            if isinstance(op, KernelOp):
                op.node = self.node.title
        self.ops.append(op)

    def _expr(self, operand: Operand, ctype: str) -> ex.Expr:
        if isinstance(operand, ex.Expr):
            return operand
        if isinstance(operand, Tensor):
            weight = operand.storage.weight
            known = weight is not None and not serves_others(operand.offset)
            if weight is not None and known and matches(operand.size, 1) and not _opaque(operand.dtype):
                # a scalar constant is an argument, not a load
                return ex.Const(operand.dtype.glsl_compute, value=weight.array().item(operand.offset))
            return ex.leaf(operand)
        low, high = {"int": (-LARGEST, LARGEST), "uint": (0, 2 * LARGEST)}.get(ctype, (-math.inf, math.inf))
        if ctype in ("int", "uint") and not low <= operand < high:
            raise Decline(f"{operand} is beyond the 32 bits that its place has")
        return ex.Const(ctype, value=operand)


def _type_of_first(operands: Sequence[Operand]) -> str | None:
    """The GLSL type of the first tensor or expression."""
    for operand in operands:
        if isinstance(operand, Tensor):
            return operand.dtype.glsl_compute
        if isinstance(operand, ex.Expr):
            return operand.ctype
    return None


def _tensors(operand: Operand) -> Sequence[Tensor]:
    if isinstance(operand, Tensor):
        return (operand,)
    return ex.tensors(operand) if isinstance(operand, ex.Expr) else ()


def _broadcast(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    shapes = [tensor.shape for tensor in tensors]
    try:
        return broadcast_shapes(*shapes)
    except ValueError:
        raise InvalidNode(f"shapes {shapes} do not broadcast") from None


def _opaque(dtype: DType) -> bool:
    """Whether numpy's scalars of a type differ from numbers of its compute type."""
    return dtype.name == "bfloat16" or dtype.kind == "bits"


class NeedsValue(Decline):
    """The node needs the tensor's value: the session plans the node once the value is known."""

    def __init__(self, reason: str, tensor: Tensor) -> None:
        super().__init__(reason)
        self.tensor = tensor
        self.names: tuple[str, ...] = ()  #: the node's inputs that are this tensor; set by the partitioner
