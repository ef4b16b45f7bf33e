"""Products of the same rows by several constant weights as one product by the weights side by side, in float16 where the device
has cooperative matrices: queries, keys and values of one input, and those that read a text's states in each layer.

Users read the columns in place. The device holds the joined weights alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from vkep.errors import Decline
from vkep.graph.weights import ArrayWeight, JoinedWeight, Weight
from vkep.ir import expr as ex
from vkep.ir.ops import KernelOp, Op, Pointwise
from vkep.ir.tensor import Storage, Tensor, same_shape
from vkep.kernels.matmul.cooperative_tiles import VECTOR, no_cooperative_tile
from vkep.kernels.matmul.matmul import MatMulProblem
from vkep.kernels.select import bind, choose
from vkep.passes.fuse import epilogue_strides
from vkep.passes.layout import relaid
from vkep.passes.rewrite import Changes, Graph
from vkep.sizes import is_size, matches

#: the kernels that divide a product by its columns, or read each weight once
_KERNELS = {"cooperative", "rows", "along k"}


@dataclass(frozen=True)
class _Product:
    """A product that may be joined with others. ``steps``: the operations of its epilogue, in order, without the constant rows
    that it reads, its ``rows``; equal steps are equal expressions of other rows."""

    op: KernelOp
    problem: MatMulProblem
    steps: tuple[object, ...]
    rows: tuple[ex.Leaf, ...]

    @property
    def y(self) -> Tensor:
        return self.op.outputs[0]

    @property
    def b(self) -> Tensor:
        """The weights [k, n]."""
        row, column = self.problem.strides("b")[2:]
        return self.op.inputs[1].view((self.problem.k, self.problem.n), (row, column))

    @property
    def weight(self) -> Weight:
        """What holds its weights."""
        weight = self.op.inputs[1].storage.weight
        assert weight is not None, "asked by _product"
        return weight


def join_products(op: Op, graph: Graph) -> Changes | None:
    """The products of this one's rows by constant weights, with the same epilogue but for constant rows (biases), are one, where
    the same kernel computes it and all users read views of its columns as they are."""
    first = _product(op, graph)
    if first is None:
        return None
    products = _alike(first, graph)
    while len(products) > 1:
        kept = _of_own_weights(products, graph)
        if len(kept) == len(products):
            joined = _joined(products)
            columns = _columns(joined, products)
            kept = [product for product, y in zip(products, columns, strict=True) if _may_move(product, y, graph)]
            if len(kept) == len(products):
                return _changes(products, joined, graph)
        products = kept
    return None


def _product(op: Op, graph: Graph) -> _Product | None:
    """The product that an operation is; None where it can be joined with none."""
    problem = op.problem if isinstance(op, KernelOp) else None
    if not isinstance(op, KernelOp) or not isinstance(problem, MatMulProblem):
        return None
    if (
        problem.dtype != "float16"
        or not problem.b_constant
        or not matches(problem.products, 1)
        or 0 in (problem.k, problem.n)
    ):
        return None
    y, (row, column) = op.outputs[0], problem.strides("b")[2:]
    if no_cooperative_tile(graph.caps, problem.b_along_k) or not (matches(row, 1) or matches(column, 1)):
        return None
    if y.storage.port is not None or y.storage in graph.results or not y.is_whole or problem.n % VECTOR:
        return None  # n in whole vectors: all columns stay as aligned as they are
    epilogue = _steps(op)
    return None if epilogue is None else _Product(op, problem, *epilogue)


def _steps(op: KernelOp) -> tuple[tuple[object, ...], tuple[ex.Leaf, ...]] | None:
    """The steps of an epilogue and the constant rows that it reads; None where it reads other tensors."""
    if op.epilogue is None:
        return (), ()
    matrices, [result] = op.problem.matrices, op.epilogue_of
    assert matrices is not None
    numbers: dict[int, int] = {}
    steps: list[object] = []
    rows: list[ex.Leaf] = []
    for node in ex.remaining(op.epilogue, numbers):
        step: object = (node.ctype, node.op, *(numbers[id(arg)] for arg in node.args))
        if isinstance(node, ex.Leaf):
            assert node.tensor is not None
            of_result = node.tensor.storage is result.storage
            if not of_result:
                if not node.tensor.storage.may_be_packed or _row(node.tensor, matrices) is None:
                    return None
                rows.append(node)
            step = ("result" if of_result else "row", node.tensor.dtype.name)
        elif isinstance(node, ex.Const):
            if is_size(node.value):
                return None
            step = ("number", node.ctype, node.value, node.literal)
        numbers[id(node)] = len(steps)
        steps.append(step)
    return tuple(steps), tuple(rows)


def _row(view: Tensor, matrices: tuple[int, int, int]) -> Tensor | None:
    """The row [n] that a constant repeats for each row of a product; None where it does not."""
    found = epilogue_strides(view, matrices)
    _, rows, columns = matrices
    if found is None or is_size(columns) or is_size(view.offset):
        return None
    kind, row, column = found
    if kind == "o":
        return view.view((columns,), (1,)) if matches(rows, 1) else None
    return view.view((columns,), (column,)) if matches(row, 0) and column in (0, 1) else None


def _alike(first: _Product, graph: Graph) -> list[_Product]:
    """The products that may be joined with one, in the order of the operations."""
    a = first.op.inputs[0]
    found = [_product(user, graph) for user in graph.users(a.storage)]
    others = [product for product in found if product is not None and _reads_alike(first, product)]
    steps = first.steps or next((product.steps for product in others if _is_sum(product.steps)), ())
    fitting = [p for p in others if p.steps == steps or (not p.steps and _is_sum(steps))]
    return sorted(fitting, key=lambda product: graph.place(product.op))


def _reads_alike(first: _Product, other: _Product) -> bool:
    """Whether two products have the same rows, and weights in the same form."""
    one, two, a, b = first.problem, other.problem, first.op.inputs[0], other.op.inputs[0]
    return (
        a.dtype is b.dtype
        and matches(a.offset, b.offset)
        and all(
            same_shape(s, t)
            for s, t in ((a.shape, b.shape), (a.strides, b.strides), (one.strides("a"), two.strides("a")))
        )
        and matches(one.m, two.m)
        and (one.k, one.alpha, one.b_along_k) == (two.k, two.alpha, two.b_along_k)
        and first.y.dtype is other.y.dtype
    )


def _is_sum(steps: Sequence[object]) -> bool:
    """Whether an epilogue adds one row: a product without one is then a product with zeros."""
    if len(steps) != 3:
        return False
    *operands, last = (step for step in steps if isinstance(step, tuple))
    return {operand[0] for operand in operands} == {"result", "row"} and last[1:2] == ("add",) and len({*last[2:]}) == 2


def _of_own_weights(products: Sequence[_Product], graph: Graph) -> list[_Product]:
    """The products whose weights no other operation reads, and none of these twice: else the device would hold both forms."""
    reads = Counter(product.weight for product in products)
    used: Counter[Weight] = Counter()
    for product in products:
        used[product.weight] += product.b.nbytes
    own = {w for w, count in reads.items() if graph.weight_reads[w] == count and used[w] <= w.nbytes}
    return [product for product in products if product.weight in own]


def _joined(products: Sequence[_Product]) -> KernelOp:
    """One product by all weights."""
    first = products[0]
    problem, out = first.problem, first.y
    n = sum(product.problem.n for product in products)
    b = _side_by_side(products)
    made = Tensor.contiguous(out.dtype, (*out.shape[:-1], n))
    labels = list(dict.fromkeys([label for product in products for label in product.op.labels]))
    problem = replace(problem.restrided("b", (0, 0, *b.strides)), n=n, y_strides=None)
    op = KernelOp(problem, [first.op.inputs[0], b], [made], labels, first.op.node)
    written = next((product for product in products if product.steps), None)
    if written is None:
        return op
    result, matrices = Tensor.contiguous(made.dtype, made.shape), op.problem.matrices
    assert written.op.epilogue is not None and matrices is not None
    joined = {row: _joined_row(products, k, made.shape) for k, row in enumerate(written.rows)}

    def leaf(node: ex.Leaf) -> ex.Expr:
        return ex.leaf(joined.get(node, result))

    return replace(op, epilogue=ex.substitute(written.op.epilogue, leaf), epilogue_of=(result,))


def _side_by_side(products: Sequence[_Product]) -> Tensor:
    """The weights [k, columns of all], as dense as each of them: along k, or along the columns."""
    along_k = products[0].problem.b_along_k
    parts = [product.b.transpose((1, 0)) if along_k else product.b for product in products]
    tag = ":".join(f"{part.offset},{part.shape},{part.strides}" for part in parts)

    def arrays() -> list[np.ndarray]:
        return [array for part in parts if (array := part.array) is not None]

    weight = JoinedWeight(
        [product.weight for product in products], [part.shape for part in parts], 0 if along_k else 1, arrays, tag
    )
    made = Tensor.contiguous(parts[0].dtype, weight.shape, Storage(weight.nbytes, weight=weight, label=weight.name))
    return made.transpose((1, 0)) if along_k else made


def _joined_row(products: Sequence[_Product], number: int, shape: tuple[int, ...]) -> Tensor:
    """The rows with a number of all epilogues, one after the other, for each row of a result of ``shape``."""
    parts: list[np.ndarray] = []
    kinds = [product.rows[number].tensor for product in products if product.rows]
    dtype = next(t.dtype for t in kinds if t is not None)
    for product in products:
        matrices, view = product.problem.matrices, product.rows[number].tensor if product.rows else None
        row = None if view is None else _row(view, matrices)
        array = (
            np.full(product.problem.n, -0.0, dtype.numpy) if row is None else row.array
        )  # it also keeps a zero's sign
        assert array is not None
        parts.append(array)
    weight = ArrayWeight("joined rows", np.concatenate(parts))
    strides = (*(0 for _ in shape[:-1]), 1)
    return Tensor.contiguous(dtype, (shape[-1],), Storage(weight.nbytes, weight=weight)).view(shape, strides)


def _columns(joined: KernelOp, products: Sequence[_Product]) -> list[Tensor]:
    """The columns of each product in the joined one's result."""
    starts = np.cumsum([0, *(product.problem.n for product in products)]).tolist()
    [y] = joined.outputs
    return [y.slice(y.rank - 1, start, product.problem.n) for start, product in zip(starts, products, strict=False)]


def _may_move(product: _Product, columns: Tensor, graph: Graph) -> bool:
    """Whether all users of a product's result may read it as columns."""
    return all(_reading(user, product.y, columns, graph.caps) for user in graph.users(product.y.storage))


def _reading(user: Op, y: Tensor, columns: Tensor, caps: DeviceCapabilities) -> Op | None:
    """An operation that reads ``columns`` instead of ``y``; None where it has no such views, or another kernel would then
    compute it."""
    failed = False

    def there(t: Tensor) -> Tensor:
        nonlocal failed
        found = relaid(t, y, columns) if t.storage is y.storage else t
        failed |= found is None
        return t if found is None else found

    def leaf(node: ex.Leaf) -> ex.Expr | None:
        read = node.tensor is not None and node.tensor.storage is y.storage
        return ex.leaf(there(node.tensor)) if read and node.tensor is not None else None

    if isinstance(user, Pointwise):
        expr = ex.substitute(user.expr, leaf)
        return None if failed else replace(user, expr=expr)
    problem, inputs = user.problem, list(user.inputs)
    for k, (need, view) in enumerate(zip(problem.operands[0], inputs, strict=True)):
        if view.storage is not y.storage:
            continue
        if need.strides is None or need.dtype != view.dtype.name:
            return None
        inputs[k] = there(Tensor(view.dtype, need.shape, view.storage, need.strides, view.offset))
        changed = (
            None if failed or any(s < 0 for s in inputs[k].strides) else problem.restrided(need.name, inputs[k].strides)
        )
        if changed is None:
            return None
        problem = changed
    epilogue = None if user.epilogue is None else ex.substitute(user.epilogue, leaf)
    matrices = problem.matrices
    if epilogue is not None and matrices is not None:
        views = [t for t in ex.tensors(epilogue) if t.storage is columns.storage]
        failed |= any(epilogue_strides(view, matrices) is None for view in views)
    if failed or _kernel(problem, inputs, user, caps) != _kernel(user.problem, user.inputs, user, caps):
        return None
    return replace(user, problem=problem, inputs=inputs, epilogue=epilogue)


def _kernel(problem: Any, inputs: Sequence[Tensor], op: KernelOp, caps: DeviceCapabilities) -> str:
    """The name of the candidate that computes a problem with these operands; "" where none does."""
    try:
        return choose(problem.placed(bind(problem, inputs, op.outputs)), caps).candidate.name
    except Decline:
        return ""


def _changes(products: Sequence[_Product], joined: KernelOp, graph: Graph) -> Changes | None:
    """The changes that put the joined product in the place of the first; None where other kernels compute it."""
    if not _computed_alike(products, joined, graph.caps):
        return None
    users: dict[Op, Op] = {}
    for product, columns in zip(products, _columns(joined, products), strict=True):
        for user in graph.users(product.y.storage):
            made = _reading(users.get(user, user), product.y, columns, graph.caps)
            if made is None:
                return None
            users[user] = made
    changes: dict[Op, list[Op]] = {product.op: [] for product in products}
    changes[products[0].op] = [joined]
    return {**changes, **{old: [new] for old, new in users.items()}}


def _computed_alike(products: Sequence[_Product], joined: KernelOp, caps: DeviceCapabilities) -> bool:
    """Whether one kernel computes each product and the joined one, which has no more tiles than all of them: it takes no longer
    than these at once, in fewer dispatches."""
    kernels = {_kernel(op.problem, op.inputs, op, caps) for op in (joined, *(product.op for product in products))}
    return len(kernels) == 1 and kernels <= _KERNELS
