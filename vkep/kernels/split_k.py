"""Adding the parts of a product that was split along k: ``shaders/matmul_reduce.comp``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.epilogue import Epilogue, call_arguments
from vkep.kernels.kernel import Kernel, KernelCall, Operand
from vkep.kernels.tiles import STORAGE, Scratch, flat_grid, storage_type

MATMUL_REDUCE = Kernel(
    "matmul_reduce.comp",
    operands=(Operand("partials"), Operand("y", writes=True)),
    params=(
        *((name, "uint") for name in ("m", "n", "splits", "total", "batch1")),
        *((name, "uint") for name in ("y_row", "y_col", "y_batch0", "y_batch1")),
        ("alpha", "float"),
    ),
    variants=tuple({"T": t} for t in STORAGE.values()),
)
_LANES = 64


def partial_sums(scratch: Scratch | None, splits: int, results: int, what: str) -> Any:
    """Memory for the float32 sums of ``results`` in ``splits`` parts; None where there is one part, which needs none.

    Raises `ValueError` without ``scratch``.
    """
    if splits == 1:
        return None
    if scratch is None:
        raise ValueError(f"{what}: {splits} splits of k need scratch memory, and none was given")
    return scratch(4 * splits * results)


def reduce_partials(
    sizes: tuple[int, int, int, int],
    y_strides: Mapping[str, int],
    splits: int,
    alpha: float,
    dtype: str,
    caps: DeviceCapabilities,
    partials: Any,
    y: Any,
    epilogue: Epilogue | None,
) -> KernelCall:
    """``y`` = ``alpha`` times the sum over splits of partials [splits, batch, m, n] (float32).

    ``sizes`` are m, n, all batches and the inner batches; ``y_strides`` (elements) by the names of the GLSL.
    """
    m, n, batch, inner = sizes
    total = batch * m * n
    return MATMUL_REDUCE.call(
        grid=flat_grid(total, _LANES, caps, "matmul"),
        operands={"partials": partials, "y": y},
        params={
            "m": m,
            "n": n,
            "splits": splits,
            "total": total,
            "batch1": inner,
            "alpha": alpha,
            **y_strides,
        },
        local_size=(_LANES, 1, 1),
        flops=splits * total,
        **call_arguments(epilogue, {"T": storage_type(dtype)}),
    )
