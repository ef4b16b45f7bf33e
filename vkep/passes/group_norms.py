"""Group norms as exporters write them for opsets before 21: an instance norm of the groups, then a factor and a shift for each
channel."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from vkep.ir import expr as ex
from vkep.ir.ops import KernelOp, Op, Pointwise
from vkep.ir.tensor import Tensor, same_shape
from vkep.kernels.reductions.norm import ChannelFactorsProblem
from vkep.passes.rewrite import Changes, Graph
from vkep.sizes import divides, matches


def group_norm(shifted: Op, graph: Graph) -> Changes | None:
    """``norm(x in groups) * scale + bias`` is one norm of the image, which reads and writes it in the image's shape."""
    if not isinstance(shifted, Pointwise) or shifted.out.rank < 3:
        return None
    added = _of_channels(shifted, "add", graph)
    scaled = None if added is None else _of_channels(added[0], "mul", graph)
    if added is None or scaled is None:
        return None
    (multiplied, bias), (normed, scale) = added, scaled
    match = _instance_norm(normed, graph)
    if match is None:
        return None
    factors, x = match
    problem = factors.problem
    assert isinstance(problem, ChannelFactorsProblem)
    images, channels, *spatial = shifted.out.shape
    image = x.reshape(shifted.out.shape)
    if image is None or not same_shape(multiplied.out.shape[:2], (problem.images, channels)):
        return None  # the factor's channels are others than the shift's
    if not matches(images, problem.images) or not divides(problem.groups, channels):
        return None
    whole = replace(problem, images=images, channels=channels, positions=math.prod(spatial))
    made = [Tensor.contiguous(t.dtype, (images, channels)) for t in factors.outputs]
    statistics = graph.fused(whole, [image, scale, bias], made, [factors, normed, multiplied, shifted])
    if statistics is None:
        return None
    views = {x.storage: image}
    for old, new in zip(factors.outputs, made, strict=True):
        lead = new.reshape((images, channels, *[1] * len(spatial)))
        assert lead is not None
        views[old.storage] = lead.expand(shifted.out.shape)
    expr = ex.substitute(normed.expr, lambda leaf: ex.leaf(views[leaf.tensor.storage]) if leaf.tensor else None)
    norm = Pointwise(shifted.out, expr, statistics.labels)
    return {factors: [statistics], normed: [], multiplied: [], shifted: [norm]}


def _of_channels(op: Pointwise, name: str, graph: Graph) -> tuple[Pointwise, Tensor] | None:
    """For an operation of that name on another operation's whole result and a constant of each channel: that operation, and the
    constant [channels]."""
    if op.expr.op != name or not all(isinstance(arg, ex.Leaf) and arg.tensor is not None for arg in op.expr.args):
        return None
    for value, constant in (op.inputs, op.inputs[::-1]) if len(op.inputs) == 2 else ():
        producer = graph.producer(value.storage, op)
        alone = [
            stride for axis, stride in enumerate(constant.strides) if axis != 1 and not matches(op.out.shape[axis], 1)
        ]
        if (
            isinstance(producer, Pointwise)
            and value.is_whole
            and value.dtype is op.out.dtype
            and constant.storage.weight is not None
            and constant.dtype is op.out.dtype
            and same_shape(constant.shape, op.out.shape)
            and not any(alone)
            and matches(constant.strides[1], 1)
        ):
            return producer, Tensor(constant.dtype, (op.out.shape[1],), constant.storage, (1,), constant.offset)
    return None


def _instance_norm(op: Pointwise, graph: Graph) -> tuple[KernelOp, Tensor] | None:
    """The statistics of an instance norm without factors of its own, and its input, where ``op`` applies them."""
    if op.expr.op != "mul_add" or len(op.inputs) != 3:
        return None
    x, factor, shift = op.inputs
    producer = graph.producer(factor.storage, op)
    if not isinstance(producer, KernelOp) or not isinstance(problem := producer.problem, ChannelFactorsProblem):
        return None
    if [t.storage for t in producer.outputs] != [factor.storage, shift.storage] or problem.each != 1:
        return None
    if graph.producer(shift.storage, op) is not producer or not (
        x.is_contiguous and x.storage is producer.inputs[0].storage
    ):
        return None
    ones, zeros = (t.array for t in producer.inputs[1:])
    if ones is None or zeros is None or not (np.all(ones == 1) and np.all(zeros == 0)):
        return None
    return producer, x
