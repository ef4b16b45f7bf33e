"""Walks through tables and lists of tokens, whose length is data: time warping, and where predictions leave a source."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.indices import noting
from vkep.kernels.kernel import Kernel, KernelCall
from vkep.kernels.launch import floor_power_of_two
from vkep.kernels.problem import Need, Problem
from vkep.kernels.reference import undefined
from vkep.kernels.select import Candidate, Emission, implement

WARP_TRACE = Kernel(
    "warp_trace.comp", reach=lambda call: dict.fromkeys(("x", "trace"), 4 * call["rows"] * call["columns"])
)
WARP_PATH = Kernel(
    "warp_path.comp",
    reach=lambda call: {
        "trace": 4 * call["rows"] * call["columns"],
        "path": 8 * (call["rows"] + call["columns"]),
        "count": 8,
    },
)
BIFURCATION = Kernel(
    "bifurcation.comp",
    reach=lambda call: {
        "source": 8 * call["sources"],
        "current": 8 * call["currents"],
        "start": 8,
        "predicted": 8 * call["predictions"],
        "tokens": 8 * (call["currents"] + call["predictions"]),
        "found": 16,
        "fault": 4,
    },
)


@dataclass(frozen=True)
class WarpProblem(Problem):
    """The cheapest path through ``x`` [rows, columns] (float32) from its first cell to its last, by steps to the next row, the
    next column or both: ``count`` (int64 [1]) cells, at the end of ``path`` (int32 [2, rows + columns]: rows, columns).
    """

    rows: int
    columns: int

    def needs(self) -> tuple[Need, ...]:
        return (Need("x", "float32", (self.rows, self.columns), flat=True),)

    def makes(self) -> tuple[Need, ...]:
        return Need("path", "int32", (2, self.rows + self.columns)), Need("count", "int64", (1,))

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        cost = np.full((self.rows + 1, self.columns + 1), np.inf)
        cost[0, 0] = 0.0
        steps = np.zeros((self.rows, self.columns), np.int64)
        for i, j in np.ndindex(self.rows, self.columns):
            both, up, left = cost[i, j], cost[i, j + 1], cost[i + 1, j]
            steps[i, j] = 0 if both < up and both < left else 1 if up < both and up < left else 2
            cost[i + 1, j + 1] = (both, up, left)[steps[i, j]] + x[i, j]
        cells, (i, j) = [], (self.rows, self.columns)
        while i > 0 and j > 0:
            cells.append((i - 1, j - 1))
            step = steps[i - 1, j - 1]
            i, j = i - (step != 2), j - (step != 1)
        path = undefined((2, self.rows + self.columns))
        if cells:
            path[:, -len(cells) :] = np.array(cells[::-1]).T
        return path, np.array([len(cells)])


def _too_high(problem: WarpProblem, caps: DeviceCapabilities) -> str:
    most = caps.max_shared_memory_bytes // 12 - 1
    return f"{problem.rows} rows, a workgroup keeps {most}" if problem.rows > most else ""


def _warped(problem: WarpProblem, e: Emission) -> list[KernelCall]:
    trace = e.target.scratch("uint32", (problem.rows, problem.columns))
    params = {"rows": problem.rows, "columns": problem.columns}
    local = floor_power_of_two(min(256, e.caps.max_workgroup_invocations, max(problem.rows, 1)))
    return [
        WARP_TRACE.call(
            grid=(1,),
            operands={"x": e["x"], "trace": trace},
            params=params,
            spec={"ROOM": problem.rows + 1},
            local_size=(local,),
            flops=3 * problem.rows * problem.columns,
        ),
        WARP_PATH.call(
            grid=(1,), operands={"trace": trace, "path": e["path"], "count": e["count"]}, params=params, local_size=(1,)
        ),
    ]


implement(WarpProblem, Candidate("by anti-diagonals", _warped, when=_too_high))


@dataclass(frozen=True)
class BifurcationProblem(Problem):
    """Of int64 tokens: ``tokens`` [currents + predictions] begin with ``current`` [currents] and those of ``predicted``
    [predictions] up to the first that is not the ``source``'s [sources] from ``start`` [1] on. ``found`` [2] is their number,
    and the end in the source of the longest n-gram that they end in, of ``shortest`` to ``longest`` tokens: -1 where that is not
    there, or twice.
    """

    sources: int
    currents: int
    predictions: int
    shortest: int
    longest: int

    def needs(self) -> tuple[Need, ...]:
        predicted = (Need("predicted", "int64", (self.predictions,)),) if self.predictions else ()
        return (
            Need("source", "int64", (self.sources,)),
            Need("current", "int64", (self.currents,)),
            Need("start", "int64", (1,)),
            *predicted,
        )

    def makes(self) -> tuple[Need, ...]:
        return Need("tokens", "int64", (self.currents + self.predictions,)), Need("found", "int64", (2,))

    @property
    def fault(self) -> str:
        """The error's message where the predictions do not match the source tokens."""
        if not self.predictions:
            return ""
        return f"prev_suffix_match_idx leaves another number of source tokens than {self.predictions - 1}"

    def reference(
        self, source: np.ndarray, current: np.ndarray, start: np.ndarray, predicted: np.ndarray | None = None
    ) -> tuple[np.ndarray, ...]:
        known = current.tolist()
        if predicted is not None:
            first = min(max(int(start[0]), 0), self.sources)
            pairs = zip(predicted[:-1].tolist(), source[first:].tolist(), strict=False)
            agreed = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
            known += predicted[: agreed + 1].tolist()
        texts, suffix = source.tolist(), -1
        for size in range(self.shortest, min(self.longest, len(known)) + 1):
            ends = [
                at + size
                for at in range(self.sources - size + 1)
                if texts[at : at + size] == known[len(known) - size :]
            ]
            if not ends:
                break
            suffix = ends[0]
            if suffix >= self.sources:
                break
            suffix = -1 if len(ends) > 1 else suffix
        tokens = undefined(self.currents + self.predictions)
        tokens[: len(known)] = known
        return tokens, np.array([len(known), suffix])


def _bifurcation(problem: BifurcationProblem, e: Emission) -> KernelCall:
    fault, code = noting(e, problem.fault)
    names = ("source", "current", "start", "predicted", "tokens", "found")
    return BIFURCATION.call(
        grid=(1,),
        operands={**{name: e.get(name) for name in names}, "fault": fault},
        params={
            "sources": problem.sources,
            "currents": problem.currents,
            "predictions": problem.predictions,
            "shortest": problem.shortest,
            "longest": problem.longest,
            "fault_code": code,
        },
        local_size=(1,),
    )


implement(BifurcationProblem, Candidate("one lane", _bifurcation))
