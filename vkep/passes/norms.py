"""Folding RMS norms into the products that read them (`vkep.kernels.fused_product`), and those of heads into the update of a
cache (`vkep.kernels.cache_update`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gpu_shared.capabilities import DeviceCapabilities
from vkep.ir import expr as ex
from vkep.ir.ops import KernelOp, Op, Pointwise
from vkep.ir.tensor import Tensor
from vkep.kernels.cache_update import CacheUpdateProblem
from vkep.kernels.fused_product import FusedProductProblem, not_one_row
from vkep.kernels.launch import is_cpu
from vkep.kernels.matmul_nbits_problem import MatMulNBitsProblem
from vkep.kernels.matmul_problem import MatMulProblem
from vkep.kernels.norm import LayerNormProblem
from vkep.kernels.problem import Problem
from vkep.kernels.product_form import Form
from vkep.kernels.select import bind, supports
from vkep.passes.fuse import Uses, sole_producer
from vkep.sizes import divides


def fold_norms(ops: Sequence[Op], results: Iterable[Tensor], caps: DeviceCapabilities) -> list[Op]:
    """The operations without the norms of one row that only products read, where the device has kernels for these.
    ``results`` are the tensors that must exist at the end."""
    norms = [op for op in ops if isinstance(op, KernelOp) and _is_rms(op)]
    if not norms:
        return list(ops)
    kept, uses = {t.storage for t in results}, Uses(ops)
    made: dict[int, Op | None] = {}
    for norm in norms:
        products = uses.readers[norm.outputs[0].storage]
        folded = [_folded(norm, product, caps) for product in products]
        if products and None not in folded and norm.outputs[0].storage not in kept:
            made[id(norm)] = None
            made |= {id(old): new for old, new in zip(products, folded, strict=True)}
    return [op for old in ops if (op := made.get(id(old), old)) is not None]


def add_to_norms(ops: Sequence[Op], results: Iterable[Tensor]) -> list[Op]:
    """The operations with a sum of an RMS norm of one row and another row as the norm's bias: a dispatch less, for models that
    normalize what a layer adds. ``results`` as for `fold_norms`."""
    kept, uses = {t.storage for t in results}, Uses(ops)
    made: dict[int, Op | None] = {}
    for op in ops:
        if not isinstance(op, Pointwise) or op.expr.op != "add" or len(op.inputs) != 2 or not op.out.is_contiguous:
            continue
        for row, other in (op.inputs, op.inputs[::-1]):
            norm = sole_producer(row.storage, op, uses, kept)
            if (
                isinstance(norm, KernelOp)
                and _is_rms(norm)
                and isinstance(norm.problem, LayerNormProblem)
                and row.is_whole
                and other.storage is not row.storage
                and other.is_contiguous
                and all(isinstance(leaf, ex.Leaf) for leaf in op.expr.args)
                and other.dtype is row.dtype is op.out.dtype
                and other.size == row.size == op.out.size == norm.problem.axis
                and id(norm) not in made
            ):
                problem = replace(norm.problem, bias=True)
                labels = [*norm.labels, *op.labels]
                made[id(norm)] = None
                made[id(op)] = KernelOp(problem, [*norm.inputs, other], [op.out], labels, norm.node)
                break
    return [new for old in ops if (new := made.get(id(old), old)) is not None]


def fold_head_norms(ops: Sequence[Op], results: Iterable[Tensor], caps: DeviceCapabilities) -> list[Op]:
    """The operations without the norms of queries and keys that only the update of a cache reads, on a GPU. A CPU driver would
    compute a row's norm for each of its lanes. ``results`` as for `fold_norms`."""
    updates = [op for op in ops if isinstance(op, KernelOp) and isinstance(op.problem, CacheUpdateProblem)]
    if not updates or is_cpu(caps):
        return list(ops)
    kept, uses = {t.storage for t in results}, Uses(ops)
    made: dict[int, Op | None] = {}
    for update in updates:
        problem = update.problem
        assert isinstance(problem, CacheUpdateProblem)
        if not problem.half or problem.epsilon is not None:
            continue
        pairs = [_before(t, update, uses) for t in update.inputs[:2]]
        norms = [pair[0] for pair in pairs if pair is not None and pair[0].outputs[0].storage not in kept]
        epsilons = {norm.problem.epsilon for norm in norms if isinstance(norm.problem, LayerNormProblem)}
        # values may be the norm of the keys
        others = [t for t in update.inputs[2:] if any(t.storage is norm.outputs[0].storage for norm in norms)]
        if len(norms) != 2 or len(epsilons) != 1 or others:
            continue
        rows = [pair[1] for pair in pairs if pair is not None]
        inputs = [*rows, *update.inputs[2:], *(norm.inputs[1] for norm in norms)]
        labels = [*norms[0].labels, *norms[1].labels, *update.labels]
        made |= dict.fromkeys(map(id, norms))
        made[id(update)] = KernelOp(
            replace(problem, epsilon=epsilons.pop()), inputs, update.outputs, labels, update.node
        )
    return [op for old in ops if (op := made.get(id(old), old)) is not None]


def _before(t: Tensor, update: KernelOp, uses: Uses) -> tuple[KernelOp, Tensor] | None:
    """The norm whose result ``t`` views, row by row, and the same rows of what it norms; None where ``update`` is not its only
    reader."""
    writers = uses.writers[t.storage]
    if len(writers) != 1 or uses.readers[t.storage] != [update]:
        return None
    [norm] = writers
    if not isinstance(norm, KernelOp) or not _is_rms(norm):
        return None
    of, (x, _), [y] = norm.problem, norm.inputs, norm.outputs
    assert isinstance(of, LayerNormProblem) and isinstance(update.problem, CacheUpdateProblem)
    starts = (t.offset - y.offset, *t.strides[:3])
    in_rows = x.is_contiguous and y.is_contiguous and all(divides(of.axis, start) for start in starts)
    if not in_rows or of.axis != t.shape[3] or of.dtype != update.problem.dtype:
        return None
    return norm, Tensor(x.dtype, t.shape, x.storage, t.strides, t.offset - y.offset + x.offset)


def _is_rms(op: KernelOp) -> bool:
    problem = op.problem
    return (
        isinstance(problem, LayerNormProblem)
        and problem.rms
        and problem.scale
        and not (problem.bias or problem.mean or problem.inv_std)
        and op.epilogue is None
    )


def _folded(norm: KernelOp, reader: Op, caps: DeviceCapabilities) -> KernelOp | None:
    """The product of a norm; None where ``reader`` is no product that a kernel computes so."""
    of, row = norm.problem, norm.outputs[0]
    assert isinstance(of, LayerNormProblem)
    if not isinstance(reader, KernelOp):
        return None
    product: Problem = reader.problem
    form = product.form if isinstance(product, FusedProductProblem) else Form()
    product = product.product if isinstance(product, FusedProductProblem) else product
    if not isinstance(product, (MatMulNBitsProblem, MatMulProblem)) or form.epsilon is not None:
        return None
    others = [t for t in reader.all_inputs[1:] if t.storage is row.storage]
    whole = reader.inputs[0].storage is row.storage and reader.inputs[0].offset == row.offset
    if others or not whole or not reader.outputs[0].is_contiguous:
        return None
    if not_one_row(product) or of.rows != 1 or of.axis != product.k or of.dtype != product.dtype:
        return None
    problem = FusedProductProblem(product, replace(form, epsilon=of.epsilon))
    inputs = [*norm.inputs, *reader.inputs[1:]]
    if not supports(problem.placed(bind(problem, inputs, reader.outputs)), caps):
        return None
    return KernelOp(
        problem,
        inputs,
        reader.outputs,
        [*norm.labels, *reader.labels],
        reader.node,
        reader.epilogue,
        reader.epilogue_of,
    )
