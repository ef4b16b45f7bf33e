"""ai.onnx.ml's tree ensembles. Semantics: ONNX's ai.onnx.ml operators, and ONNX Runtime's CPU provider (tree_ensemble_*.h)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import numpy_helper

from vkep.dtypes import DTYPES, FLOAT32, UINT32
from vkep.ir import algebra as fn
from vkep.ir.builder import Builder
from vkep.ir.expr import Expr
from vkep.ir.tensor import Tensor
from vkep.kernels.ml.trees import FEATURE_SHIFT, LEAF, MISSING, MODES, TreeLeafProblem, TreeSumProblem
from vkep.ops.allowed import FLOATING, every
from vkep.ops.ml_scores import (
    FEATURES,
    ML,
    TRANSFORMS,
    labels_at,
    one_of_two,
    transformed,
    two_scores,
)
from vkep.ops.registry import operator

Ints = Sequence[int]
Floats = Sequence[float]
Array = np.ndarray
_MEMBER = 6
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
#: maximum bytes of the table of each leaf's weight for each target
_LARGEST_TABLE = 1 << 28


@dataclass(frozen=True)
class Forest:
    """Trees for `vkep.kernels.ml.trees`, and the weight of each leaf for each target (NaN: none)."""

    roots: Array
    nodes: Array
    splits: Array
    weights: Array
    depth: int
    features: int  #: minimum number of features in a row


@dataclass(frozen=True, kw_only=True)
class NodeAttributes:
    """Attributes of TreeEnsembleClassifier and TreeEnsembleRegressor: lists with one entry per node."""

    nodes_treeids: Ints = ()
    nodes_nodeids: Ints = ()
    nodes_featureids: Ints = ()
    nodes_modes: Sequence[str] = ()
    nodes_values: Floats = ()
    nodes_values_as_tensor: onnx.TensorProto | None = None
    nodes_truenodeids: Ints = ()
    nodes_falsenodeids: Ints = ()
    nodes_missing_value_tracks_true: Ints = ()
    nodes_hitrates: Floats = ()
    nodes_hitrates_as_tensor: onnx.TensorProto | None = None
    base_values: Floats = ()
    base_values_as_tensor: onnx.TensorProto | None = None
    post_transform: str = "NONE"


def numbers(listed: Floats | Ints, tensor: onnx.TensorProto | None) -> Array:
    """An attribute that is a list, or a tensor with the same content."""
    return np.array(listed) if tensor is None else numpy_helper.to_array(tensor).reshape(-1)


def forest(
    b: Builder,
    a: NodeAttributes,
    treeids: Ints,
    nodeids: Ints,
    targets: Ints,
    weights: Array,
    count: int,
    sums: bool,
    kind: type[np.floating],
) -> Forest:
    """The trees whose nodes are identified by tree and number. ``treeids``, ``nodeids``, ``targets`` and ``weights``
    are the leaves' weights for one of ``count`` targets. ``sums``: weights of the same leaf and target may be added."""
    size = len(a.nodes_modes)
    splits = numbers(a.nodes_values, a.nodes_values_as_tensor).astype(kind)
    missing = np.array(a.nodes_missing_value_tracks_true or [0] * size, np.int64)
    columns = [
        np.array(ids, np.int64)
        for ids in (a.nodes_treeids, a.nodes_nodeids, a.nodes_featureids, a.nodes_truenodeids, a.nodes_falsenodeids)
    ]
    if not size or {len(column) for column in (*columns, splits, missing)} != {size}:
        b.invalid(f"the lists of nodes have {[len(c) for c in (*columns, splits, missing)]} entries, expected {size}")
    trees, names, features, when_true, when_false = columns
    leaf = np.array([mode == "LEAF" for mode in a.nodes_modes])
    features[leaf] = 0  # a leaf reads no feature, whatever its entry is
    unknown = set(a.nodes_modes) - {*MODES, "LEAF"}
    if unknown:
        b.decline(f"nodes_modes has {sorted(unknown)[0]!r}")
    order = np.lexsort((names, trees))

    def find(tree: Array, name: Array, what: str) -> Array:
        keys = trees[order].astype(np.float64) * 2.0**32 + names[order]
        at = np.minimum(np.searchsorted(keys, tree * 2.0**32 + name), size - 1)
        found = order[at]
        wrong = np.flatnonzero((trees[found] != tree) | (names[found] != name))
        if wrong.size:
            b.invalid(f"{what} names node {name[wrong[0]]} of tree {tree[wrong[0]]}, which is not there")
        return found

    inner = np.flatnonzero(~leaf)
    children = np.zeros((2, size), np.int64)
    for row, ids, what in ((0, when_true, "nodes_truenodeids"), (1, when_false, "nodes_falsenodeids")):
        children[row, inner] = find(trees[inner], ids[inner], what)
    number = np.cumsum(leaf) - 1  # entries of a leaf
    place = np.where(leaf, number | LEAF, np.arange(size))
    mode = np.array([MODES.index(m) if m != "LEAF" else 0 for m in a.nodes_modes])
    _, first = np.unique(trees, return_index=True)
    named = [np.array(ids, np.int64) for ids in (treeids, nodeids, targets)]
    if {len(column) for column in (*named, weights)} != {len(weights)}:
        b.invalid(f"the lists of leaves' weights have {[len(c) for c in (*named, weights)]} entries")
    at = find(named[0], named[1], "a weight")
    table = leaf_table(b, int(leaf.sum()), count, leaf[at], number[at], named[2], weights.astype(kind), sums)
    return planted(b, place[np.sort(first)], place[children], mode, features, missing, splits, table)


def leaf_table(
    b: Builder, leaves: int, count: int, is_leaf: Array, leaf: Array, target: Array, weights: Array, sums: bool
) -> Array:
    """[leaves, targets] of weights; those of inner nodes are ignored, as in ONNX Runtime."""
    if count < 1 or leaves * count * weights.itemsize > _LARGEST_TABLE:
        b.decline(f"{leaves} leaves of {count} targets; the kernels take tables of up to {_LARGEST_TABLE >> 20} MiB")
    if not ((target >= 0) & (target < count)).all() or not np.isfinite(weights).all():
        b.invalid(f"a leaf's weight is not finite, or of a target outside [0, {count - 1}]")
    leaf, target, weights = leaf[is_leaf], target[is_leaf], weights[is_leaf]
    cells, where = np.unique(leaf * count + target, return_inverse=True)
    if len(cells) < len(leaf) and not sums:
        b.decline("a leaf has several weights for one target")
    table = np.full(leaves * count, np.nan, weights.dtype)
    table[cells] = np.bincount(where, weights, len(cells)).astype(weights.dtype)
    return table.reshape(leaves, count)


def planted(
    b: Builder, roots: Array, children: Array, mode: Array, features: Array, missing: Array, splits: Array, table: Array
) -> Forest:
    """A forest, after a check that its paths end. ``roots`` and ``children`` [2, nodes]: numbers of nodes, or of leaves
    with `LEAF`."""
    depth, here = 0, np.unique(roots)
    while (here := here[here < LEAF]).size:
        depth += 1
        if depth > len(mode):
            b.invalid("the nodes of a tree form a circle")
        here = np.unique(children[:, here])
    if features.size and (features.min() < 0 or features.max() >= 1 << 27):
        b.invalid(f"features are {features.min()} to {features.max()}, expected 0 to 2**27 - 1")
    words = np.stack([features << FEATURE_SHIFT | (missing != 0) * MISSING | mode, *children], axis=1)
    needed = 1 + int(features.max(initial=-1))
    return Forest(roots.astype(np.uint32), words.astype(np.uint32), splits, table, depth, needed)


def grown(b: Builder, x: Tensor, made: Forest, total: str) -> Tensor:
    """The total of a forest for each row and target, [rows, targets] of the splits' type; NaN where no leaf has a
    weight."""
    if made.features > x.shape[1]:
        b.invalid(f"the input has {x.shape[1]} features, expected at least {made.features}, which nodes read")
    kind = x.dtype.name
    trees, (leaves, targets) = len(made.roots), made.weights.shape
    leaf = b.empty(UINT32, [x.shape[0], trees])
    problem = TreeLeafProblem(x.shape[0], x.shape[1], trees, len(made.splits), made.depth, kind)
    b.compute(problem, [x, *(b.constant(t) for t in (made.roots, made.nodes, made.splits))], [leaf])
    out = b.empty(x.dtype, [x.shape[0], targets])
    b.compute(TreeSumProblem(x.shape[0], trees, leaves, targets, kind, total), [leaf, b.constant(made.weights)], [out])
    return out


def features_of(b: Builder, x: Tensor) -> tuple[Tensor, type[np.floating]]:
    """Features as a dense [rows, features] of the type in which splits are compared: float64 for float64, else
    float32."""
    if x.rank not in (1, 2):
        b.decline(f"features of rank {x.rank}, expected 1 or 2")
    wide = x.dtype.name == "float64"
    x = b.reshape(x, [1, x.shape[0]]) if x.rank == 1 else x
    return b.contiguous(x if wide else b.cast(x, FLOAT32)), np.float64 if wide else np.float32


def _weight(said: Expr, absent: float = 0.0) -> Expr:
    return fn.where(fn.isnan(said), absent, said)


def _regressed(
    b: Builder, said: Tensor, trees: int, aggregate: str, base: Array, transform: str, to: str = "float32"
) -> Tensor:
    """Scores of targets after averaging, base values and the post-transform."""
    targets = said.shape[1]
    scores = _weight(b.reads(said)[0])
    if aggregate == "AVERAGE":
        scores = b.expr("div", scores, float(trees))
    if base.size:
        if base.size != targets:
            b.invalid(f"{base.size} base values for {targets} targets")
        scores = b.expr("add", scores, b.constant(base.astype(said.dtype.numpy)))
    stored = b.cast(b.store(scores, said.dtype), DTYPES[to])
    if transform != "NONE" and (to != "float32" or (targets == 1 and transform != "PROBIT")):
        b.decline(f"post_transform {transform} of {targets} targets ({to})")
    return transformed(b, stored, transform)


@operator("TreeEnsembleRegressor", domain=ML, types={"T": FEATURES})
def tree_ensemble_regressor(
    b: Builder,
    x: Tensor,
    *,
    a: NodeAttributes,
    aggregate_function: str = "SUM",
    n_targets: int | None = None,
    target_treeids: Ints = (),
    target_nodeids: Ints = (),
    target_ids: Ints = (),
    target_weights: Floats = (),
    target_weights_as_tensor: onnx.TensorProto | None = None,
) -> Tensor:
    if aggregate_function not in _AGGREGATES:
        b.invalid(f"aggregate_function is {aggregate_function!r}, expected one of {_AGGREGATES}")
    x, kind = features_of(b, x)
    total = "SUM" if aggregate_function == "AVERAGE" else aggregate_function
    weights = numbers(target_weights, target_weights_as_tensor)
    count = n_targets or 0
    made = forest(b, a, target_treeids, target_nodeids, target_ids, weights, count, total == "SUM", kind)
    said = grown(b, x, made, total)
    base = numbers(a.base_values, a.base_values_as_tensor)
    return _regressed(b, said, len(made.roots), aggregate_function, base, a.post_transform)


@operator("TreeEnsembleClassifier", domain=ML, types={"T1": FEATURES})
def tree_ensemble_classifier(
    b: Builder,
    x: Tensor,
    *,
    a: NodeAttributes,
    classlabels_int64s: Ints = (),
    class_treeids: Ints = (),
    class_nodeids: Ints = (),
    class_ids: Ints = (),
    class_weights: Floats = (),
    class_weights_as_tensor: onnx.TensorProto | None = None,
) -> list[Tensor]:
    x, kind = features_of(b, x)
    weights = numbers(class_weights, class_weights_as_tensor)
    labels = list(classlabels_int64s)
    if len(labels) < 2:
        b.decline(f"{len(labels)} class labels; the kernels take two or more integers")
    made = forest(b, a, class_treeids, class_nodeids, class_ids, weights, len(labels), True, kind)
    said = b.cast(grown(b, x, made, "SUM"), FLOAT32)
    base = numbers(a.base_values, a.base_values_as_tensor).astype(np.float32)
    if len(labels) == 2:
        weighed = [not np.isnan(made.weights[:, k]).all() for k in (0, 1)]
        if weighed[1] and np.isnan(made.weights[:, 1]).any():
            b.decline("leaves without a weight of the second class, where ONNX Runtime takes that of the first for it")
        return _one_of_two(b, said, labels, weighed, bool((weights >= 0).all()), base, a.post_transform)
    if base.size not in (0, len(labels)):
        b.invalid(f"{base.size} base values for {len(labels)} classes")
    scores, candidates = b.pointwise(_weight, said), b.pointwise(lambda v: _weight(v, -math.inf), said)
    if base.size:
        scores = candidates = b.pointwise("add", scores, b.constant(base))
    return [labels_at(b, labels, candidates), transformed(b, scores, a.post_transform)]


def _one_of_two(
    b: Builder, said: Tensor, labels: Ints, weighed: Sequence[bool], positive: bool, base: Array, transform: str
) -> list[Tensor]:
    """The label and scores of two classes of which one has weights, by its score: the second class wins above one half
    if no weight is negative, else above 0. ``weighed``: whether each class has weights."""
    least = 0.5 if positive else 0.0
    if weighed == [False, True] and not base.size:
        scores = b.pointwise(_weight, said)
        holds = b.expr("gt", scores.slice(1, 1, 1), least)
        return [one_of_two(b, holds, labels, said.shape[0]), transformed(b, scores, transform)]
    if weighed[1] or base.size > 1:
        b.decline("two classes with weights or base values of both, where ONNX Runtime's label is not that of a class")
    first = float(base[0]) if base.size else 0.0
    score = b.pointwise(lambda v, more: _weight(v) + more, said.slice(1, 0, 1), first)
    holds = b.expr("gt", score, least)
    return [one_of_two(b, holds, labels, said.shape[0]), two_scores(b, score, transform, positive)]


@operator("TreeEnsemble", domain=ML, since=5, types={"T": every("TreeEnsemble", among=FLOATING, domain=ML)})
def tree_ensemble(
    b: Builder,
    x: Tensor,
    *,
    nodes_featureids: Ints,
    nodes_modes: onnx.TensorProto,
    nodes_splits: onnx.TensorProto,
    nodes_truenodeids: Ints,
    nodes_falsenodeids: Ints,
    nodes_trueleafs: Ints,
    nodes_falseleafs: Ints,
    leaf_targetids: Ints,
    leaf_weights: onnx.TensorProto,
    tree_roots: Ints,
    n_targets: int | None = None,
    aggregate_function: int = 1,
    post_transform: int = 0,
    membership_values: onnx.TensorProto | None = None,
    nodes_missing_value_tracks_true: Ints = (),
    nodes_hitrates: onnx.TensorProto | None = None,
) -> Tensor:
    if not 0 <= aggregate_function < len(_AGGREGATES) or not 0 <= post_transform < len(TRANSFORMS):
        b.invalid(f"aggregate_function is {aggregate_function}, post_transform {post_transform}")
    to, (x, kind) = x.dtype.name, features_of(b, x)
    aggregate = _AGGREGATES[aggregate_function]
    total = "SUM" if aggregate == "AVERAGE" else aggregate
    mode = numbers((), nodes_modes).astype(np.int64)
    splits, weights = numbers((), nodes_splits).astype(kind), numbers((), leaf_weights).astype(kind)
    size, targets = len(mode), np.array(leaf_targetids, np.int64)
    missing = np.array(nodes_missing_value_tracks_true or [0] * size, np.int64)
    features, roots = np.array(nodes_featureids, np.int64), np.array(tree_roots, np.int64)
    ids = np.array([nodes_truenodeids, nodes_falsenodeids], np.int64)
    leafs = np.array([nodes_trueleafs, nodes_falseleafs], np.int64) != 0
    if {len(splits), len(missing), len(features), ids.shape[1], leafs.shape[1]} != {size} or len(targets) != len(
        weights
    ):
        b.invalid(f"{size} modes, and other numbers of nodes' splits, features or children, or of leaves' weights")
    most = np.where(leafs, len(weights), size)
    if not ((ids >= 0) & (ids < most)).all() or not ((roots >= 0) & (roots < size)).all():
        b.invalid("a child or a root is no node or leaf")
    children = np.where(leafs, ids | LEAF, ids)
    if (mode == _MEMBER).any():
        sets = numbers((), membership_values).astype(kind) if membership_values is not None else np.zeros(0, kind)
        mode, features, missing, splits, children = _chains(b, mode, features, missing, splits, children, sets)
    if not ((mode >= 0) & (mode < len(MODES))).all():
        b.invalid(f"nodes_modes has {mode.max()}")
    every_leaf = np.arange(len(weights))
    table = leaf_table(b, len(weights), n_targets or 0, every_leaf >= 0, every_leaf, targets, weights, total == "SUM")
    made = planted(b, roots, children, mode, features, missing, splits, table)
    said = grown(b, x, made, total)
    return _regressed(b, said, len(roots), aggregate, np.zeros(0), TRANSFORMS[post_transform], to)


def _chains(
    b: Builder, mode: Array, features: Array, missing: Array, splits: Array, children: Array, sets: Array
) -> tuple[Array, ...]:
    """Set-membership nodes as chains that compare with each member. ``sets``: the members, each node's list ended by a
    NaN."""
    ends = np.flatnonzero(np.isnan(sets))
    members = np.split(sets, ends + 1) if sets.size else []
    asking = np.flatnonzero(mode == _MEMBER)
    if len(members) < len(asking):
        b.invalid(f"membership_values has {len(members)} sets for {len(asking)} nodes")
    equal = MODES.index("BRANCH_EQ")
    mode, splits, children = mode.copy(), splits.copy(), children.copy()
    more: list[tuple[int, int, int, float, int, int]] = []
    for node, group in zip(asking, members, strict=False):
        values = [float(v) for v in group if not np.isnan(v)] or [np.nan]
        first, last = children[:, node]
        chain = [int(node), *(len(mode) + len(more) + k for k in range(len(values) - 1))]
        mode[node], splits[node] = equal, values[0]
        children[1, node] = chain[1] if len(chain) > 1 else last
        for k, value in enumerate(values[1:], 1):
            following = chain[k + 1] if k + 1 < len(chain) else last
            more.append((equal, int(features[node]), int(missing[node]), value, int(first), int(following)))
    if not more:
        return mode, features, missing, splits, children
    columns = list(zip(*more, strict=True))
    added = [np.array(column) for column in columns]
    return (
        np.concatenate([mode, added[0]]),
        np.concatenate([features, added[1]]),
        np.concatenate([missing, added[2]]),
        np.concatenate([splits, added[3].astype(splits.dtype)]),
        np.concatenate([children, np.stack(added[4:])], axis=1),
    )
