"""Decision trees: the leaf of each row in each tree, and the total of those leaves' weights
(``shaders/tree_*.comp``)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vkep.kernels.fastdiv import magic_params
from vkep.kernels.kernel import Kernel, KernelCall
from vkep.kernels.launch import ceil_div, element_type, flat_lanes
from vkep.kernels.problem import Need, Problem
from vkep.kernels.select import Candidate, Emission, implement

#: the bit that distinguishes a leaf's number from a node's, and the fields of a node's first word
LEAF, MISSING, FEATURE_SHIFT = 1 << 31, 8, 4
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
TOTALS = ("SUM", "MIN", "MAX")

TREE_LEAF = Kernel(
    "tree_leaf.comp",
    variants=({"IN_T": "float"},),
    reach=lambda call: {
        "x": ceil_div(call["total"], call["trees"]) * call["features"] * call.size_of("IN_T"),
        "roots": 4 * call["trees"],
        "nodes": 12 * call["count"],
        "splits": call["count"] * call.size_of("IN_T"),
        "leaf": 4 * call["total"],
    },
)
TREE_SUM = Kernel(
    "tree_sum.comp",
    variants=({"IN_T": "float"},),
    reach=lambda call: {
        "leaf": 4 * ceil_div(call["total"], call["targets"]) * call["trees"],
        "weights": call["leaves"] * call["targets"] * call.size_of("IN_T"),
        "y": call["total"] * call.size_of("IN_T"),
    },
)


@dataclass(frozen=True)
class TreeLeafProblem(Problem):
    """``leaf`` [rows, trees] (uint32) of ``x`` [rows, features]; a path has at most ``depth`` of the ``count`` nodes.

    ``roots`` [trees] and the second and third word of ``nodes`` [count, 3] are nodes' numbers, or leaves' with `LEAF`;
    the first word is a feature, whether a NaN takes the first child, and an index of `MODES`.
    """

    rows: int
    features: int
    trees: int
    count: int
    depth: int
    dtype: str

    def needs(self) -> tuple[Need, ...]:
        return (
            Need("x", self.dtype, (self.rows, self.features)),
            Need("roots", "uint32", (self.trees,)),
            Need("nodes", "uint32", (self.count, 3)),
            Need("splits", self.dtype, (self.count,)),
        )

    def makes(self) -> tuple[Need, ...]:
        return (Need("leaf", "uint32", (self.rows, self.trees)),)

    def reference(self, x: np.ndarray, roots: np.ndarray, nodes: np.ndarray, splits: np.ndarray) -> np.ndarray:
        at = np.broadcast_to(roots.astype(np.int64), (self.rows, self.trees)).copy()
        compare = (np.less_equal, np.less, np.greater_equal, np.greater, np.equal, np.not_equal)
        for _ in range(self.depth):
            row, tree = np.nonzero(at < self.count)
            node = at[row, tree]
            word, mode = nodes[node, 0].astype(np.int64), nodes[node, 0] & 7
            value = x[row, np.minimum(word >> FEATURE_SHIFT, self.features - 1)]
            holds = np.select(
                [mode == k for k in range(5)], [f(value, splits[node]) for f in compare[:5]], value != splits[node]
            )
            first = np.where(np.isnan(value), ((word & MISSING) != 0) | (mode == 5), holds)
            at[row, tree] = np.where(first, nodes[node, 1], nodes[node, 2])
        return at & ~LEAF


@dataclass(frozen=True)
class TreeSumProblem(Problem):
    """``y`` [rows, targets]: the sum, minimum or maximum of the ``weights`` [leaves, targets] of each row's leaves
    (``leaf`` [rows, trees], uint32). NaN weights are skipped; the result is NaN where all are."""

    rows: int
    trees: int
    leaves: int
    targets: int
    dtype: str
    total: str = "SUM"  #: one of `TOTALS`

    def needs(self) -> tuple[Need, ...]:
        return (
            Need("leaf", "uint32", (self.rows, self.trees)),
            Need("weights", self.dtype, (self.leaves, self.targets)),
        )

    def makes(self) -> tuple[Need, ...]:
        return (Need("y", self.dtype, (self.rows, self.targets)),)

    def reference(self, leaf: np.ndarray, weights: np.ndarray) -> np.ndarray:
        taken = weights[np.minimum(leaf, self.leaves - 1)]  # [rows, trees, targets]
        some = ~np.isnan(taken)
        ufunc, none = {"SUM": (np.add, 0.0), "MIN": (np.minimum, np.inf), "MAX": (np.maximum, -np.inf)}[self.total]
        return np.where(some.any(axis=1), ufunc.reduce(np.where(some, taken, none), axis=1), np.nan)


def _leaf(problem: TreeLeafProblem, e: Emission) -> KernelCall:
    total = problem.rows * problem.trees
    sizes = {"total": total, "features": problem.features, "count": problem.count, "depth": problem.depth}
    return TREE_LEAF.call(
        **flat_lanes(e.caps, total),
        operands=e.operands,
        params=sizes | magic_params("trees", problem.trees),
        defines={"IN_T": element_type(problem.dtype).glsl},
    )


def _sum(problem: TreeSumProblem, e: Emission) -> KernelCall:
    total = problem.rows * problem.targets
    sizes = {"total": total, "trees": problem.trees, "leaves": problem.leaves}
    return TREE_SUM.call(
        **flat_lanes(e.caps, total),
        operands=e.operands,
        params=sizes | magic_params("targets", problem.targets),
        spec={"MODE": TOTALS.index(problem.total)},
        defines={"IN_T": element_type(problem.dtype).glsl},
    )


implement(TreeLeafProblem, Candidate("a lane a row and tree", _leaf))
implement(TreeSumProblem, Candidate("a lane a row and target", _sum))
