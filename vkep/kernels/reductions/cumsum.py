"""Running sums and products along the middle of a tensor viewed as [outer, axis, inner] (``shaders/cumsum.comp``)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vkep.kernels.kernel import Kernel, KernelCall
from vkep.kernels.launch import ceil_div, element_defines, share_columns
from vkep.kernels.reductions.columns import ColumnProblem, column_blocks
from vkep.kernels.reference import wide
from vkep.kernels.select import Candidate, Emission, implement

CUMSUM = Kernel(
    "cumsum.comp",
    variants=tuple(map(element_defines, ("float32", "float16", "int32", "int64"))),
    reach=lambda call: dict.fromkeys("xy", column_blocks(call) * call["axis"] * call.size_of("IN_T")),
)


@dataclass(frozen=True)
class ScanProblem(ColumnProblem):
    """ONNX CumSum (``product``: CumProd) over the middle of [outer, axis, inner]; float16 accumulates in float32."""

    exclusive: bool = False
    reverse: bool = False
    product: bool = False

    def reference(self, x: np.ndarray) -> np.ndarray:
        step = -1 if self.reverse else 1
        y = (np.cumprod if self.product else np.cumsum)(wide(x)[:, ::step], axis=1)
        if self.exclusive:
            y = np.concatenate([np.full_like(y[:, :1], 1 if self.product else 0), y[:, :-1]], axis=1)
        return y[:, ::step]


def _scan(problem: ScanProblem, e: Emission) -> KernelCall:
    share = share_columns(problem.columns, problem.axis, problem.inner, e.caps, shuffles=False)
    return CUMSUM.call(
        **share.launch,
        operands=e.operands,
        params=problem.params | {"segment": ceil_div(problem.axis, share.split)},
        spec={"SPLIT": share.split, "EXCLUSIVE": int(problem.exclusive), "REVERSE": int(problem.reverse)},
        defines=element_defines(problem.dtype) | ({"PRODUCT": "1"} if problem.product else {}),
    )


implement(ScanProblem, Candidate("cumsum", _scan))
