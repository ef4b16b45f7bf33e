"""Executes operations on the host, by the numpy functions of expressions (`vkep.ir.evaluate`) and the references of problems
(`vkep.kernels.problem.Problem.reference`): a second opinion on passes and kernels.

Floats are float64. The interpreter also checks what operations access: bytes outside of a storage or of an output's view, bytes
that nothing has written, and places that one operation both reads and writes, or writes twice.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

import numpy as np

from tools.passes.host_memory import HostMemory, InvalidAccess, positions
from vkep.errors import InvalidNode
from vkep.ir.evaluate import evaluate
from vkep.ir.expr import Checked, Expr, Leaf
from vkep.ir.ops import KernelOp, Op, Pointwise, is_elementwise, reads
from vkep.ir.tensor import Storage, Tensor
from vkep.kernels.problem import Need, check
from vkep.kernels.select import bind


class Interpreter:
    """The memory of a program, and the faults that its operations have reported.

    ``shared``: ports of outputs that are in the memory of an input, each with the input's port, as for `vkep.passes.emit.emit`.
    """

    def __init__(
        self, shared: Mapping[int, int] | None = None, constants: dict[Hashable, HostMemory] | None = None
    ) -> None:
        """``constants``: a cache of the constants' content, for interpreters of the same weights."""
        self._shared = shared or {}
        self._memories: dict[Hashable, HostMemory] = {}
        self._constants = {} if constants is None else constants
        self.faults: set[tuple[str, str]] = set()  #: the node and the reason of each check that did not hold

    def put(self, view: Tensor, values: np.ndarray) -> None:
        """Write the elements of an input."""
        self._memory(view.storage).write(view, values)

    def read(self, view: Tensor) -> np.ndarray:
        """The elements of a view, as `tools.passes.host_memory.HostMemory.read`."""
        return self._memory(view.storage).read(view)

    def run(self, ops: Iterable[Op]) -> None:
        """Execute operations in order. Raises `InvalidAccess`, which names the operation, and `NoReference` for a computation
        without a numpy equivalent."""
        for op in ops:
            if 0 in [t.size for t in op.outputs]:
                continue
            try:
                self._check_overlaps(op)
                if isinstance(op, Pointwise):
                    self._pointwise(op)
                else:
                    self._kernel(op)
            except InvalidAccess as error:
                raise InvalidAccess(f"{' + '.join(dict.fromkeys(op.labels)) or 'a copy'}: {error}") from None

    def _key(self, storage: Storage) -> Hashable:
        return storage if storage.port is None else self._shared.get(storage.port, storage.port)

    def _memory(self, storage: Storage) -> HostMemory:
        key = self._key(storage)
        memories = self._memories if storage.weight is None else self._constants
        if key not in memories:
            memories[key] = HostMemory(storage)
        return memories[key]

    def _check_overlaps(self, op: Op) -> None:
        """Lanes of an operation run in no order: what one writes another one may neither read nor write."""
        for k, out in enumerate(op.outputs):
            others = [*op.outputs[:k], *(t for t in reads(op) if not is_elementwise(op, t))]
            for other in others:
                if self._key(other.storage) == self._key(out.storage) and _overlap(out, other):
                    raise InvalidAccess(f"writes {out} in memory that it accesses as {other} too")

    def _evaluate(self, expr: Expr, results: Mapping[Storage, np.ndarray]) -> np.ndarray:
        masks: list[np.ndarray] = []

        def value_of(leaf: Leaf) -> np.ndarray:
            assert leaf.tensor is not None
            made = results.get(leaf.tensor.storage)
            values = self.read(leaf.tensor) if made is None else made.reshape(leaf.tensor.shape)
            if isinstance(values, np.ma.MaskedArray):
                masks.append(np.ma.getmaskarray(values))
            return np.ma.getdata(values)

        made = evaluate(expr, value_of, self._note, wide=True)
        return np.ma.array(made, mask=np.broadcast_to(np.logical_or.reduce(masks), made.shape)) if masks else made

    def _note(self, node: Checked, holds: np.ndarray) -> None:
        if not np.all(holds):
            self.faults.add((node.node, node.reason))

    def _pointwise(self, op: Pointwise) -> None:
        values = self._evaluate(op.expr, {})
        if isinstance(values, np.ma.MaskedArray):
            data, mask = (np.broadcast_to(part, op.out.shape) for part in (values.data, values.mask))
            values = np.ma.array(data, mask=mask)
        self._memory(op.out.storage).write(op.out, values)

    def _kernel(self, op: KernelOp) -> None:
        problem = op.problem.placed(bind(op.problem, op.inputs, op.outputs))
        try:
            check(problem, op.inputs, op.outputs)  # again: a pass may have moved an operand
        except (InvalidNode, ValueError) as error:
            raise InvalidAccess(str(error)) from None
        needs, makes = problem.operands
        changed = [(make, t) for make, t in zip(makes, op.outputs, strict=True) if make.name in problem.updates]
        operands = {need.name: self._operand(need, t) for need, t in (*zip(needs, op.inputs, strict=True), *changed)}
        with np.errstate(all="ignore"):
            made = problem.reference(**operands)
            results = made if isinstance(made, tuple) else (made,)
            if op.epilogue is not None:
                by_storage = {t.storage: r for t, r in zip(op.epilogue_of, results, strict=False)}
                results = (self._evaluate(op.epilogue, by_storage), *results[1:])
            results = problem.finished(results, operands)
        for make, out, values in zip(makes, op.outputs, results, strict=True):
            if make.strides is None:
                self._memory(out.storage).write(out, values.reshape(out.shape))
                continue
            view = _with_strides(make, out)
            if not np.isin(positions(view), positions(out)).all():
                raise InvalidAccess(f"{make.name} has elements outside of the output's view {out}")
            self._memory(out.storage).write(view, values.reshape(view.shape))

    def _operand(self, need: Need, view: Tensor) -> np.ndarray:
        if need.strides is not None:
            return self.read(_with_strides(need, view))
        return self.read(view).reshape(need.shape)


def _with_strides(need: Need, view: Tensor) -> Tensor:
    assert need.strides is not None
    return Tensor(view.dtype, need.shape, view.storage, need.strides, view.offset)


def _overlap(one: Tensor, other: Tensor) -> bool:
    (start, end), (other_start, other_end) = one.byte_range, other.byte_range
    if start >= other_end or other_start >= end:
        return False
    if one.dtype.itemsize != other.dtype.itemsize:
        return True
    return bool(np.isin(positions(one), positions(other)).any())
