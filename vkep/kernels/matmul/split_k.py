"""Products that are split along k, and the dispatch that adds their parts: ``shaders/matmul_reduce.comp``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from vkep.dtypes import DTYPES
from vkep.kernels.epilogue import call_arguments
from vkep.kernels.kernel import Kernel, KernelCall
from vkep.kernels.launch import ceil_div
from vkep.kernels.matmul.tiles import OF_STORAGE, flat_grid
from vkep.kernels.problem import extent
from vkep.kernels.select import Emission


def _reach(call: KernelCall) -> Mapping[str, int]:
    m, n, inner, total = call["m"], call["n"], call["batch1"], call["total"]
    sizes = (ceil_div(ceil_div(total, m * n), inner), inner, m, n)
    y = extent(sizes, [call[name] for name in ("y_batch0", "y_batch1", "y_row", "y_col")])
    return {"partials": call["splits"] * total * 4, "y": y * call.size_of("T")}


_CODES = ({"T": "int8_t"}, {"T": "uint8_t"})
_VARIANTS = (*OF_STORAGE, *_CODES, *({**of, "SUM": "int"} for of in (*OF_STORAGE, *_CODES)))
MATMUL_REDUCE = Kernel("matmul_reduce.comp", variants=_VARIANTS, reach=_reach)
_LANES = 64


@dataclass(frozen=True, slots=True)
class Sums:
    """The results [batch, m, n] of a product: their sizes, the number of inner batches, and the strides of y (elements;
    outer batch, inner batch, row, column)."""

    m: int
    n: int
    batch: int
    inner: int
    y_strides: tuple[int, int, int, int]
    dtype: str
    alpha: float = 1.0


def split_product(
    e: Emission, splits: int, sums: Sums, defines: dict[str, str], product: Callable[..., KernelCall]
) -> list[KernelCall]:
    """The dispatches of ``product(y, **call_arguments)``; with several ``splits`` its y are partial sums (int32
    of ``CODES``, else float32; [splits, batch, m, n]), which a second dispatch adds.
    """
    if splits == 1:
        return [product(e["y"], **call_arguments(e.epilogue, defines))]
    total = sums.batch * sums.m * sums.n
    whole = "CODES" in defines
    partials = e.target.scratch("int32" if whole else "float32", (splits, total))
    strides = dict(zip(("y_batch0", "y_batch1", "y_row", "y_col"), sums.y_strides, strict=True))
    return [
        product(partials, defines=defines),
        MATMUL_REDUCE.call(
            grid=flat_grid(total, _LANES, e.caps),
            operands={"partials": partials, "y": e["y"]},
            params={
                "m": sums.m,
                "n": sums.n,
                "splits": splits,
                "total": total,
                "batch1": sums.inner,
                "alpha": sums.alpha,
                **strides,
            },
            local_size=(_LANES, 1, 1),
            flops=splits * total,
            **call_arguments(e.epilogue, {"T": DTYPES[sums.dtype].glsl, **({"SUM": "int"} if whole else {})}),
        ),
    ]
