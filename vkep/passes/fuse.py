"""Fusion over the lowered operations: pointwise chains into one kernel, and the pointwise operations after matmuls and
convolutions into these."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from gpu_shared.capabilities import DeviceCapabilities
from vkep.ir import expr as ex
from vkep.ir.ops import KernelOp, Op, Pointwise, reads
from vkep.ir.tensor import Storage, Tensor, alignment, same_shape
from vkep.kernels.select import supports
from vkep.passes.split import MAX_OPERANDS, split_wide
from vkep.sizes import matches

#: maximum number of producers fused into one expression, and of operations in it: they bound the shader's size. Drivers need
#: more than linear time for long ones: lavapipe 2 seconds for 100 steps of Max (four operations each), 13 seconds for 200.
MAX_FUSED, MAX_OPERATIONS = 64, 512


def optimize(ops: list[Op], results: Iterable[Tensor], caps: DeviceCapabilities) -> list[Op]:
    """Remove dead operations, fuse, and drop copies. ``results`` are the tensors that must exist at the end."""
    kept = {t.storage for t in results}
    for _, step in FUSION:
        ops = step(ops, kept, caps)
    return ops


def remove_dead(ops: list[Op], kept: set[Storage]) -> list[Op]:
    """The operations that contribute to a storage in ``kept``, and the checks of their nodes."""
    live = _made_of(ops, kept)
    checks = [op for op in ops if isinstance(op, Pointwise) and op.is_check]
    if not checks:
        return live
    nodes = {label for op in live for label in op.labels}
    return _made_of(ops, kept | {check.out.storage for check in checks if not nodes.isdisjoint(check.labels)})


def _made_of(ops: list[Op], kept: set[Storage]) -> list[Op]:
    needed = set(kept)
    live: list[Op] = []
    for op in reversed(ops):
        if not needed.isdisjoint(_written(op)):
            live.append(op)
            needed |= _read(op)
    return live[::-1]


class Uses:
    """The writers and readers of each storage (without constants), updated from pass to pass."""

    def __init__(self, ops: Iterable[Op]) -> None:
        self.writers: dict[Storage, list[Op]] = defaultdict(list)
        self.readers: dict[Storage, list[Op]] = defaultdict(list)
        for op in ops:
            self.add(op)

    def add(self, op: Op) -> None:
        """Add an operation's reads and writes."""
        for storage in _written(op):
            self.writers[storage].append(op)
        for storage in _read(op):
            self.readers[storage].append(op)

    def remove(self, op: Op) -> None:
        """Remove an operation's reads and writes."""
        for storage in _written(op):
            self.writers[storage].remove(op)
        for storage in _read(op):
            self.readers[storage].remove(op)

    def merge(self, producer: Pointwise, consumer: Pointwise) -> None:
        """Update for a producer that was fused into its only consumer, which now reads the producer's inputs."""
        self.writers[producer.out.storage].remove(producer)
        self.readers[producer.out.storage].remove(consumer)
        for storage in _read(producer):
            readers = self.readers[storage]
            readers.remove(producer)
            if consumer not in readers:
                readers.append(consumer)


def _written(op: Op) -> list[Storage]:
    return [op.out.storage] if isinstance(op, Pointwise) else [t.storage for t in op.outputs]


def _read(op: Op) -> set[Storage]:
    return {t.storage for t in reads(op) if t.storage.weight is None}


def _fuse_pointwise(ops: list[Op], kept: set[Storage]) -> list[Op]:
    """Merge a pointwise producer into its consumer when that is its only reader."""
    uses = Uses(ops)
    gone: set[int] = set()
    for consumer in reversed(ops):
        if not isinstance(consumer, Pointwise) or id(consumer) in gone:
            continue
        # collect all producers first: the expression is rebuilt once
        inlined: dict[ex.Leaf, ex.Expr] = {}
        leaves = ex.leaves(consumer.expr)
        merged, left, size = True, MAX_FUSED, 0
        while merged and left:
            merged = False
            for storage in dict.fromkeys([leaf.tensor.storage for leaf in leaves if leaf.tensor is not None]):
                producer = sole_producer(storage, consumer, uses, kept)
                if not isinstance(producer, Pointwise):
                    continue
                read = [leaf for leaf in leaves if leaf.tensor is not None and leaf.tensor.storage is storage]
                inner = _inner(producer, read, consumer.out)
                if inner is None:
                    continue
                instead = ex.leaves(inner)
                fused = dict.fromkeys([new for leaf in leaves for new in (instead if leaf in read else (leaf,))])
                if len(fused) > MAX_OPERANDS:
                    continue
                grown = (size or ex.count(consumer.expr)) + ex.count(inner)
                if grown > MAX_OPERATIONS:
                    continue
                uses.merge(producer, consumer)
                inlined.update(dict.fromkeys(read, inner))
                leaves = tuple(fused)
                consumer.labels = producer.labels + consumer.labels
                gone.add(id(producer))
                merged, left, size = True, left - 1, grown
                break
        if inlined:
            consumer.expr = ex.inline(consumer.expr, inlined)
    return [op for op in ops if id(op) not in gone]


def sole_producer(storage: Storage, reader: Op, uses: Uses, kept: set[Storage]) -> Op | None:
    """The operation that makes all of a storage that only ``reader`` reads; None where there is no such one."""
    if storage.weight is not None or storage.port is not None or storage in kept:
        return None
    writers = uses.writers[storage]
    if len(writers) != 1 or uses.readers[storage] != [reader] or not writers[0].outputs[0].is_whole:
        return None
    return writers[0]


def _inner(producer: Pointwise, read: Sequence[ex.Leaf], out: Tensor) -> ex.Expr | None:
    """The producer's expression, to replace the leaves that ``read`` its result in an expression over the elements of
    ``out``; None where an input of the producer has no view of that shape."""
    for leaf in read:
        if leaf.tensor is None or not matches(leaf.tensor.size, out.size) or not leaf.tensor.is_whole:
            return None
    if same_shape(producer.out.shape, out.shape):
        return _rounded_to(producer.expr, producer.out)
    failed = False

    def moved(node: ex.Leaf) -> ex.Expr | None:
        nonlocal failed
        view = None if node.tensor is None else node.tensor.reshape(out.shape)
        failed |= view is None
        return None if view is None else ex.leaf(view)

    inner = ex.substitute(producer.expr, moved)
    return None if failed else _rounded_to(inner, producer.out)


def _rounded_to(inner: ex.Expr, out: Tensor) -> ex.Expr:
    """The producer's expression, converted to the compute type of ``out`` where its own differs."""
    kind = out.dtype.glsl_compute
    return inner if inner.ctype == kind else ex.Expr(kind, "cast", (inner,))


def _fuse_epilogues(ops: list[Op], kept: set[Storage], caps: DeviceCapabilities) -> list[Op]:
    """Move a pointwise operation into the epilogue of the kernel that computes its input."""
    uses = Uses(ops)
    position = {id(op): i for i, op in enumerate(ops)}
    depth = _depths(ops)
    result: list[Op | None] = list(ops)
    for op in ops:
        if not isinstance(op, Pointwise):
            continue
        # the last producer in dependency order first: the expression's other inputs can be computed before it
        candidates = [
            p
            for storage in dict.fromkeys([t.storage for t in op.inputs])
            if isinstance(p := sole_producer(storage, op, uses, kept), KernelOp)
            and p.problem.matrices is not None
            and p.epilogue is None
        ]
        for kernel in sorted(candidates, key=lambda k: (-depth[id(k)], -position[id(k)])):
            expr = as_epilogue(op, kernel)
            if expr is None:
                continue
            out = op.out.reshape(kernel.outputs[0].shape)
            if out is None or not _can_store(kernel, out, caps):
                continue
            uses.remove(op)
            uses.remove(kernel)
            result[position[id(kernel)]] = None
            result[position[id(op)]] = kernel
            position[id(kernel)] = position[id(op)]
            kernel.epilogue, kernel.epilogue_of = expr, (kernel.outputs[0],)
            kernel.outputs = [out]
            kernel.labels = kernel.labels + op.labels
            uses.add(kernel)
            break
    return [op for op in result if op is not None]


def _depths(ops: list[Op]) -> dict[int, int]:
    """The length of the longest chain of operations that ends with each operation."""
    made: dict[Storage, int] = {}
    depths = {}
    for op in ops:
        depth = depths[id(op)] = 1 + max([made.get(storage, 0) for storage in _read(op)], default=0)
        for storage in _written(op):
            made[storage] = max(depth, made.get(storage, 0))
    return depths


def as_epilogue(op: Pointwise, kernel: KernelOp) -> ex.Expr | None:
    """An operation on a kernel's result as the kernel's epilogue; None where kernels have no such one."""
    out, matrices = kernel.outputs[0], kernel.problem.matrices
    assert matrices is not None
    if len(kernel.outputs) != 1 or op.out.dtype is not out.dtype or not matches(op.out.size, out.size):
        return None
    if out.dtype.glsl_compute != "float":  # the compute types of epilogues
        return None
    # kernels' arguments have no fault word for the epilogue
    if len(ex.leaves(op.expr)) > MAX_OPERANDS or ex.is_checked(op.expr):
        return None
    failed = False
    value = ex.leaf(out)  # all reads of the result have the same index

    def moved(node: ex.Leaf) -> ex.Expr | None:
        nonlocal failed
        assert node.tensor is not None
        if node.tensor.storage is out.storage:
            failed |= not (node.tensor.is_whole and matches(node.tensor.size, out.size))
            return value
        view = node.tensor.reshape(out.shape)
        if view is None or epilogue_strides(view, matrices) is None:
            failed = True
            return None
        return ex.leaf(view)

    expr = ex.substitute(op.expr, moved)
    return None if failed else expr


def epilogue_strides(view: Tensor, matrices: tuple[int, int, int]) -> tuple[str, int, int] | None:
    """An epilogue's index into a view of as many elements as its kernel's ``matrices`` (`Problem.matrices`): ("o", 0, 0) is the
    flat index, ("rc", r, c) is ``row * r + col * c``, None is neither.
    """
    if view.is_contiguous:
        return ("o", 0, 0)
    lines = view.reshape(matrices)
    if lines is None:
        return None
    matrix, row, column = lines.strides
    return None if matrix or row < 0 or column < 0 else ("rc", row, column)


def _elide_copies(ops: list[Op], kept: set[Storage], caps: DeviceCapabilities) -> list[Op]:
    """Make producers write to the destination of a plain copy of their result (parts of a Concat, a plan's outputs)."""
    uses = Uses(ops)
    gone: set[int] = set()
    for copy in ops:
        if not (isinstance(copy, Pointwise) and isinstance(copy.expr, ex.Leaf)):
            continue
        source = copy.expr.tensor
        assert source is not None
        if source.dtype is not copy.out.dtype or not source.is_whole or not matches(source.size, copy.out.size):
            continue
        storage = source.storage
        if storage in kept or storage.is_constant or storage.port is not None:
            continue
        if len(uses.writers[storage]) != 1 or len(uses.writers[storage][0].outputs) != 1:
            if _move_whole(storage, copy, uses):
                gone.add(id(copy))
            continue
        [producer] = uses.writers[storage]
        place = copy.out.reshape(producer.outputs[0].shape)
        if place is None or not producer.outputs[0].is_whole:
            continue
        others = [op for op in uses.readers[storage] if op is not copy]
        if not _can_store(producer, place, caps) or (
            others and not (place.is_contiguous and _may_read(others, storage, place))
        ):
            continue
        for op in [producer, copy, *others]:
            uses.remove(op)
        producer.outputs[0:1] = [place] if isinstance(producer, KernelOp) else []
        if isinstance(producer, Pointwise):
            producer.out = place
        for op in others:
            retarget(op, storage, place)
        producer.labels = producer.labels + copy.labels
        for op in [producer, *others]:
            uses.add(op)
        gone.add(id(copy))
    return [op for op in ops if id(op) not in gone]


def _move_whole(storage: Storage, copy: Pointwise, uses: Uses) -> bool:
    """Move all operations on a storage to the place of its copy, if that is as dense. Returns whether they were moved."""
    if not (copy.out.is_contiguous and _may_read(uses.readers[storage], storage, copy.out)):
        return False
    touching = [op for op in dict.fromkeys([*uses.writers[storage], *uses.readers[storage]]) if op is not copy]
    for op in [copy, *touching]:
        uses.remove(op)
    for op in touching:
        retarget(op, storage, copy.out)
        uses.add(op)
    return True


def _may_read(readers: Iterable[Op], storage: Storage, place: Tensor) -> bool:
    """Whether the readers of a storage accept its alignment at ``place``."""
    at = alignment(place)
    return all(
        op.problem.can_load(need.name, at)
        for op in readers
        if isinstance(op, KernelOp)
        for need, t in zip(op.problem.operands[0], op.inputs, strict=True)
        if t.storage is storage
    )


def _can_store(producer: Op, place: Tensor, caps: DeviceCapabilities) -> bool:
    """Whether an operation can store its result in a view."""
    if isinstance(producer, Pointwise):
        return True
    problem = producer.problem.stored_in(place)
    return problem is producer.problem or (problem is not None and supports(problem, caps))


def retarget(op: Op, storage: Storage, place: Tensor) -> None:
    """Make an operation read and write a result at its new, dense destination."""

    def moved(tensor: Tensor) -> Tensor:
        if tensor.storage is not storage:
            return tensor
        return Tensor(tensor.dtype, tensor.shape, place.storage, tensor.strides, tensor.offset + place.offset)

    replace: Callable[[ex.Leaf], ex.Expr | None] = lambda node: (  # noqa: E731
        ex.leaf(moved(node.tensor)) if node.tensor is not None and node.tensor.storage is storage else None
    )
    if isinstance(op, Pointwise):
        op.out = moved(op.out)
        op.expr = ex.substitute(op.expr, replace)
    else:
        op.inputs, op.outputs = [moved(t) for t in op.inputs], [moved(t) for t in op.outputs]
        if op.epilogue is not None:
            op.epilogue = ex.substitute(op.epilogue, replace)


#: the steps of `optimize`, by name: from operations, the storages that must exist at the end, and the device
FUSION: tuple[tuple[str, Callable[[list[Op], set[Storage], DeviceCapabilities], list[Op]]], ...] = (
    ("dead operations", lambda ops, kept, caps: remove_dead(ops, kept)),
    ("wide expressions", lambda ops, kept, caps: split_wide(ops)),
    ("pointwise fusion", lambda ops, kept, caps: _fuse_pointwise(ops, kept)),
    ("epilogues", _fuse_epilogues),
    ("copies", _elide_copies),
)
