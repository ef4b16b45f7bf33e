"""Einsum: diagonals and permutations are views, pairs of operands are contracted as matrix products, left to right."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vkep.dtypes import DTYPES
from vkep.errors import InvalidNode
from vkep.ir.builder import Builder
from vkep.ir.tensor import Tensor
from vkep.ops.contraction import PRODUCT_TYPES, matrix_product
from vkep.ops.reduction import reduce_axes
from vkep.ops.registry import operator
from vkep.sizes import matches

_NARROW = ("int8", "int16", "uint8", "uint16")


class _Term:
    """A tensor with one label for each axis, no label twice."""

    def __init__(self, tensor: Tensor, labels: Sequence[str]) -> None:
        self.tensor, self.labels = tensor, list(labels)


def _parse(b: Builder, equation: str, ranks: Sequence[int]) -> tuple[list[list[str]], list[str]]:
    """Labels of each operand and of the result; the axes of an ellipsis are labelled "0", "1", ... from the last."""
    if not isinstance(equation, str):  # a damaged model
        raise InvalidNode(f"equation is {equation!r}, expected a text")
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    parts = left.split(",")
    if len(parts) != len(ranks):
        b.decline(f"equation {equation!r} has {len(parts)} terms for {len(ranks)} inputs")
    terms = []
    wide = 0
    for part, rank in zip(parts, ranks, strict=True):
        named = len(part.replace("...", ""))
        dots = rank - named
        if dots < 0 or (dots and "..." not in part):
            b.decline(f"term {part!r} of {equation!r} does not fit an input of rank {rank}")
        wide = max(wide, dots)
        before, _, after = part.partition("...")
        terms.append([*before, *(str(i) for i in range(dots - 1, -1, -1)), *after] if "..." in part else list(part))
    dotted = [str(i) for i in range(wide - 1, -1, -1)]
    if arrow:
        before, found, after = right.partition("...")
        result = [*before, *(dotted if found else ()), *after]
    else:  # implicit form: labels that occur once, in order (numpy.einsum)
        letters = left.replace(",", "").replace(".", "")
        result = [*dotted, *sorted(c for c in set(letters) if letters.count(c) == 1)]
    return terms, result


def _diagonal(b: Builder, tensor: Tensor, labels: Sequence[str]) -> _Term:
    """Reduce repeated labels to a diagonal."""
    kept: dict[str, tuple[int, int]] = {}
    for label, dim, stride in zip(labels, tensor.shape, tensor.strides, strict=True):
        if label in kept and kept[label][0] != dim:
            b.decline(f"label {label!r} has sizes {kept[label][0]} and {dim} in one term")
        kept[label] = (dim, kept[label][1] + stride if label in kept else stride)
    view = tensor.view([d for d, _ in kept.values()], [s for _, s in kept.values()])
    return _Term(view, list(kept))


def _sum_out(b: Builder, term: _Term, labels: set[str]) -> _Term:
    axes = [i for i, label in enumerate(term.labels) if label in labels]
    if not axes:
        return term
    kept = [label for label in term.labels if label not in labels]
    return _Term(reduce_axes(b, "sum", term.tensor, axes, False), kept)


def _aligned(b: Builder, term: _Term, labels: Sequence[str], sizes: dict[str, int]) -> Tensor:
    """The tensor with axes in the order of ``labels``, of ``sizes`` where it has them, else of size 1."""
    shape, strides = [], []
    for label in labels:
        if label in term.labels:
            axis = term.labels.index(label)
            dim, stride = term.tensor.shape[axis], term.tensor.strides[axis]
            wide = not matches(dim, sizes[label]) and dim == 1
            shape.append(sizes[label] if wide else dim)
            strides.append(0 if wide else stride)
        else:
            shape.append(1)
            strides.append(0)
    return term.tensor.view(shape, strides)


def _contract(b: Builder, x: _Term, y: _Term, kept: set[str], sizes: dict[str, int]) -> _Term:
    """Contract two terms to one: labels of both that no other term or the result needs are summed over."""
    x = _sum_out(b, x, set(x.labels) - set(y.labels) - kept)
    y = _sum_out(b, y, set(y.labels) - set(x.labels) - kept)
    shared = [label for label in x.labels if label in y.labels]
    batch = [label for label in shared if label in kept]
    summed = [label for label in shared if label not in kept]
    left = [label for label in x.labels if label not in shared]
    right = [label for label in y.labels if label not in shared]
    result = [*batch, *left, *right]
    if not summed:
        product = b.pointwise(
            "mul",
            _aligned(b, x, result, sizes),
            _aligned(b, y, result, sizes),
            shape=[sizes[label] for label in result],
        )
        return _Term(product, result)

    def size(labels: Sequence[str]) -> int:
        return math.prod(sizes[label] for label in labels)

    lead = [sizes[label] for label in batch]
    rows = b.reshape(_aligned(b, x, [*batch, *left, *summed], sizes), (*lead, size(left), size(summed)))
    columns = b.reshape(_aligned(b, y, [*batch, *summed, *right], sizes), (*lead, size(summed), size(right)))
    product = matrix_product(b, rows, columns)
    return _Term(b.reshape(product, [sizes[label] for label in result]), result)


@operator("Einsum", types={"T": (*PRODUCT_TYPES, *_NARROW)})
def einsum(b: Builder, *inputs: Tensor, equation: str) -> Tensor:
    dtype = inputs[0].dtype
    if dtype.name not in _NARROW:
        return _einsum(b, inputs, equation)
    # sums wrap in the same way in a wider type
    wide = DTYPES["int32" if dtype.kind == "int" else "uint32"]
    return b.cast(_einsum(b, [b.cast(t, wide) for t in inputs], equation), dtype)


def _einsum(b: Builder, inputs: Sequence[Tensor], equation: str) -> Tensor:
    labels, result = _parse(b, equation, [t.rank for t in inputs])
    terms = [_diagonal(b, t, names) for t, names in zip(inputs, labels, strict=True)]
    sizes: dict[str, int] = {}
    for term in terms:
        for label, dim in zip(term.labels, term.tensor.shape, strict=True):
            known = sizes.get(label, 1)
            if known != 1 and dim not in (1, known):
                b.decline(f"label {label!r} of {equation!r} has sizes {known} and {dim}")
            sizes[label] = dim if known == 1 else known
    unknown = set(result) - set(sizes)
    if unknown or len(set(result)) != len(result):
        b.decline(f"the result of {equation!r} names unknown labels, or one twice")
    total = terms[0]
    for k, term in enumerate(terms[1:], 1):
        later = {label for t in terms[k + 1 :] for label in t.labels}
        total = _contract(b, total, term, later | set(result), sizes)
    total = _sum_out(b, total, set(total.labels) - set(result))
    return _aligned(b, total, result, sizes)
