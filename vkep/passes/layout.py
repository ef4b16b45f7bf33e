"""Memory layout of images: channels last where convolutions and pools are faster that way, and between those.

Operator functions use one order, [n, c, ...], with one to three spatial axes. This pass looks up each convolution's
preferred layout in the tables of candidates, in the order of the operations. Results computed from an image with channels
last also have channels last; all other operations read it through strides, or as a copy that is shared by operations which
need the same elements.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from gpu_shared.capabilities import DeviceCapabilities
from vkep.ir import expr as ex
from vkep.ir.ops import KernelOp, Op, Pointwise
from vkep.ir.tensor import Storage, Tensor, alignment, channels_first, channels_last, collapse, same_shape
from vkep.kernels.conv.problem import NCHW, NHWC, ConvProblem, lying_as
from vkep.kernels.problem import Problem
from vkep.kernels.select import choose, supports
from vkep.sizes import is_size, matches


def lay_out(ops: Sequence[Op], caps: DeviceCapabilities) -> list[Op]:
    """The operations with every convolution's layout decided. Changed operations are replaced, not modified."""
    if not any(isinstance(op, KernelOp) and isinstance(op.problem, ConvProblem) for op in ops):
        return list(ops)
    layout = _ImageLayout(ops, caps)
    for op in ops:
        layout.place(op)
    return layout.ops


class _ImageLayout:
    """The operations with layouts decided, added one by one by `place`; knows where the elements of a moved storage are now."""

    def __init__(self, ops: Iterable[Op], caps: DeviceCapabilities) -> None:
        self.caps = caps
        self.ops: list[Op] = []
        self._labels: list[str] = []  #: of the operation that is being placed
        #: how many writes of each storage are still to come
        self._to_write = Counter(t.storage for op in ops for t in op.outputs)
        #: of storages that several expressions write, their results
        self._parts = _written_in_parts(ops)
        #: computed with channels last: results computed from it have channels last too
        self._last: set[Storage] = set()
        self._moved: dict[Storage, tuple[Tensor, Tensor]] = {}  #: the whole tensor, and its elements in the new layout
        self._restored: set[Storage] = set()  #: those whose original layout is written as well
        self._sources: dict[Storage, Tensor] = {}  #: the sources of storages that are plain copies
        self._copies: dict[Storage, list[tuple[Tensor, bool, Tensor]]] = defaultdict(list)

    def place(self, op: Op) -> None:
        """Add an operation, after the copies that it needs."""
        self._labels = op.labels
        if isinstance(op, Pointwise):
            self._pointwise(op)
        elif isinstance(op.problem, ConvProblem) and not op.problem.layout:
            self._convolution(op, op.problem)
        elif not self._moved or not self._added_channels_last(op):
            self._kernel(op)
        for out in op.outputs:
            self._to_write[out.storage] -= 1

    # ---- operations

    def _pointwise(self, op: Pointwise) -> None:
        """Add an expression, with its operands in their present layout; its result has channels last if an operand has. A copy is
        left out where it only made a view dense that the new layout makes dense anyway."""
        given, out = op.inputs, op.out
        views = list(map(self._readable, given)) if self._moved else given
        if isinstance(op.expr, ex.Leaf):
            if (source := views[0]).dtype is out.dtype and self._is_replaceable(out):
                # the copy made a transposed view dense; in the new layout the view itself is dense
                if source is not given[0] and source.is_contiguous:
                    self._moved[out.storage] = out, source
                    return
                if not self._to_write[source.storage]:
                    self._sources[out.storage] = source
        elif self._moved and any(map(self._is_last, views)) and self._is_replaceable(out):
            out = self._moved_to_last(out)
            views = [channels_last(view) for view in views]
        if (part := self._part_last(out, views)) is not None:
            out, views = channels_last(part), [channels_last(view) for view in views]
        if out is not op.out or any(view is not before for view, before in zip(views, given, strict=True)):
            read = iter(views)  # in the order of the leaves
            expr = ex.substitute(op.expr, lambda leaf: ex.leaf(next(read)) if leaf.tensor else None)
            op = Pointwise(out, expr, op.labels, op.is_check)
        self.ops.append(op)

    def _convolution(self, op: KernelOp, problem: ConvProblem) -> None:
        (given, weights), [out] = op.inputs, op.outputs
        x = self._source(given)
        problem, is_image = lying_as(problem, self._is_last(x), ""), x.rank in (3, 4) and self._is_replaceable(out)
        layout = choose(problem, self.caps).candidate.layout if is_image else NCHW
        problem, weights = lying_as(problem, problem.x_last, layout), self._dense(weights)
        x = _as_image(self._as_last(x)) if layout == NHWC else self._dense(given)
        if problem.lies_last:
            rows = self._moved_to_last(out).reshape((problem.n * problem.pixels, problem.oc))
            assert rows is not None
            out = rows
        self._add_changed(op, problem, [x, weights], [out])

    def _added_channels_last(self, op: KernelOp) -> bool:
        """Add a kernel that reads images with channels last, if it supports them."""
        gives_image = op.problem.gives_image
        if gives_image is None or not self._is_last(x := self._source(op.inputs[0])):
            return False
        [out, *others], changed = op.outputs, op.problem.lying_last(x.shape)
        if changed is None or (gives_image and not self._is_replaceable(out)) or not supports(changed, self.caps):
            return False
        if gives_image:
            out = self._moved_to_last(out)
        self._add_changed(op, changed, [channels_last(x), *map(self._dense, op.inputs[1:])], [out, *others])
        return True

    def _kernel(self, op: KernelOp) -> None:
        """Add a kernel that has no layout to choose: it reads moved inputs by strides where it supports these, else from dense
        copies, or in their restored layout."""
        problem, inputs = op.problem, list(op.inputs)
        for position, (need, view) in enumerate(zip(problem.operands[0], inputs, strict=True)):
            if view.storage not in self._moved:
                continue
            if need.strides is None:
                inputs[position] = self._dense(view)
                continue
            found = self._lying(Tensor(view.dtype, need.shape, view.storage, need.strides, view.offset))
            changed = problem.restrided(need.name, found.strides) if found else None
            if found and changed and supports(changed, self.caps):
                problem, inputs[position] = changed, found
            else:
                self._restore(view.storage)
        if inputs == op.inputs:
            self.ops.append(op)
        else:
            self._add_changed(op, problem, inputs, op.outputs)

    def _add_changed(self, op: KernelOp, problem: Problem, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        self.ops.append(KernelOp(problem, inputs, outputs, op.labels, op.node))

    # ---- where elements are

    def _is_replaceable(self, out: Tensor) -> bool:
        """Whether another buffer may replace that of a result: the operation fills it, and no later one writes to it."""
        return out.storage.port is None and self._to_write[out.storage] == 1 and out.is_whole

    def _part_last(self, out: Tensor, views: Sequence[Tensor]) -> Tensor | None:
        """Where a part of a [n, c, ...] (of a Concat of channels) is, if the whole has channels last: from its first part on, if
        that one's operand has."""
        whole = self._parts.get(out.storage)
        if whole is None:
            return None
        if out.storage not in self._moved:
            if out.offset or not any(map(self._is_last, views)):
                del self._parts[out.storage]
                return None
            self._moved_to_last(whole)
        return relaid(out, *self._moved[out.storage])

    def _is_last(self, view: Tensor) -> bool:
        """Whether the elements of a [n, c, ...] have the layout [n, ..., c], because a kernel wrote them so."""
        return view.storage in self._last and view.rank > 2 and channels_last(view).is_contiguous

    def _moved_to_last(self, out: Tensor) -> Tensor:
        """A buffer [n, ..., c] that replaces that of a [n, c, ...]."""
        made = self._empty_last(out)
        self._moved[out.storage] = out, channels_first(made)
        return made

    def _lying(self, view: Tensor) -> Tensor | None:
        """The view's elements in their present layout; None where no strides express it."""
        found = self._moved.get(view.storage)
        return view if found is None else relaid(view, *found)

    def _readable(self, view: Tensor) -> Tensor:
        """An operand for operations that read with any strides; a storage that has no such view is copied back first."""
        if view.storage not in self._moved:
            return view
        found = self._lying(view)
        if found is None:
            self._restore(view.storage)
        return found or view

    def _source(self, view: Tensor) -> Tensor:
        """The source of a dense image: if it is the copy of a view, that view."""
        source = self._sources.get(view.storage)
        return source if source is not None and same_shape(view.shape, source.shape) else self._readable(view)

    def _dense(self, view: Tensor) -> Tensor:
        """The elements of a view that was dense in its original layout, dense in the order of its own axes. A whole buffer is
        restored, which serves its other readers too; of a part only the part is copied, unless no strides express it."""
        found = self._lying(view)
        if found is None or (view.is_whole and not found.is_contiguous):
            self._restore(view.storage)
            return view
        return found if found.is_contiguous else self._copy(found, last=False)

    def _as_last(self, x: Tensor) -> Tensor:
        """The [n, ..., c] of a [n, c, ...], aligned to 16 bytes."""
        aligned = self._is_last(x) and alignment(x) == 16
        return channels_last(x) if aligned else self._copy(x, last=True)

    def _restore(self, storage: Storage) -> None:
        """Write a storage whose elements are in another layout."""
        if storage not in self._restored:
            self._restored.add(storage)
            whole, moved = self._moved[storage]
            self.ops.append(Pointwise(whole, ex.leaf(moved), list(self._labels)))

    def _copy(self, view: Tensor, last: bool) -> Tensor:
        """A copy of a view, dense or as [n, ..., c]; the same one for each request once nothing writes to the view's storage any
        more."""
        for copied, lies_last, made in self._copies[view.storage]:
            if copied == view and lies_last == last:
                return made
        made = self._empty_last(view) if last else Tensor.contiguous(view.dtype, view.shape)
        source = ex.leaf(channels_last(view) if last else view)
        self.ops.append(Pointwise(made, source, list(self._labels)))
        if not self._to_write[view.storage]:
            self._copies[view.storage].append((view, last, made))
        return made

    def _empty_last(self, like: Tensor) -> Tensor:
        """A buffer of [n, ..., c] for a [n, c, ...]."""
        made = Tensor.contiguous(like.dtype, channels_last(like).shape)
        self._last.add(made.storage)
        return made


def _written_in_parts(ops: Iterable[Op]) -> dict[Storage, Tensor]:
    """Storages that expressions fill with ranges of channels, one after the other, and that are more than copied: each as a
    [n, c, ...]."""
    parts: dict[Storage, list[Tensor]] = defaultdict(list)
    others: set[Storage] = set()
    read: set[Storage] = set()
    for op in ops:
        if isinstance(op, Pointwise):
            parts[op.out.storage].append(op.out)
        else:
            others.update(t.storage for t in op.outputs)
        if isinstance(op, KernelOp) or not isinstance(op.expr, ex.Leaf):
            read.update(t.storage for t in op.inputs)
    inner = {s for s in read - others if s.port is None}
    joined = {s: _joined(outs) for s, outs in parts.items() if len(outs) > 1 and s in inner}
    return {storage: whole for storage, whole in joined.items() if whole is not None}


def _joined(parts: Sequence[Tensor]) -> Tensor | None:
    """The whole [n, c, ...] of which the parts are ranges of channels, in order; None where they are others."""
    first = parts[0]
    if first.rank not in (3, 4, 5) or any(part.rank != first.rank for part in parts):
        return None
    images, _, *spatial = first.shape
    channels = sum(part.shape[1] for part in parts)
    whole = Tensor.contiguous(first.dtype, (images, channels, *spatial), first.storage)
    at = 0
    for part in parts:
        n, c, *rest = part.shape
        in_line = matches(part.offset, at) and all(map(matches, part.strides, whole.strides))
        if not (in_line and part.dtype is first.dtype and same_shape((n, *rest), (images, *spatial))):
            return None
        at += c * math.prod(spatial)
    return whole if whole.is_whole else None


def _as_image(x: Tensor) -> Tensor:
    """A dense [n, w, c] as [n, 1, w, c]; others are images already."""
    image = x.reshape((x.shape[0], 1, *x.shape[1:])) if x.rank == 3 else x
    assert image is not None
    return image


def relaid(view: Tensor, whole: Tensor, moved: Tensor) -> Tensor | None:
    """The elements of a view in another layout. The view is over the storage of ``whole`` (dense), whose elements
    ``moved``, of the same shape, has in the new layout. None where strides over the new one cannot express it."""
    if view.dtype is not whole.dtype:
        return None
    if same_shape(view.shape, whole.shape) and view.is_contiguous:
        return moved
    sizes, (before, after) = collapse(whole.shape, [whole.strides, moved.strides])
    if all(map(matches, before, after)):
        return Tensor(moved.dtype, view.shape, moved.storage, view.strides, view.offset + moved.offset)
    left, offset = view.offset, moved.offset
    low: list[int] = []  # for each axis of the whole, the range that the view covers
    for old, new in zip(before, after, strict=True):
        start, left = divmod(left, old) if left else (0, 0)
        low.append(start)
        offset += start * new
    high, strides = list(low), []
    for size, stride in zip(view.shape, view.strides, strict=True):
        own = (a for a, old in enumerate(before) if not is_size(stride - old) and stride == old)  # whatever the sizes
        axis = next(own, None)
        axis = next((a for a, old in enumerate(before) if old <= abs(stride)), None) if axis is None else axis
        if matches(size, 1) or axis is None:  # no step along it: strides over the whole are 1 or more
            strides.append(0)
            continue
        if stride % before[axis]:
            return None
        steps = stride // before[axis]
        strides.append(steps * after[axis])
        low[axis] += min(steps, 0) * (size - 1)
        high[axis] += max(steps, 0) * (size - 1)
    if any(first < 0 or end >= size for first, end, size in zip(low, high, sizes, strict=True)):
        return None
    return Tensor(moved.dtype, view.shape, moved.storage, tuple(strides), offset)
