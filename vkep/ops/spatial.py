"""Windows of convolutions and pools: padding and output sizes as ONNX defines them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vkep.lowering.builder import Builder


@dataclass(frozen=True)
class Window:
    """A resolved sliding window; ``pads`` are begins then ends."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    out: tuple[int, ...]


def resolve_window(
    b: Builder,
    spatial: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int] | None,
    pads: Sequence[int] | None,
    dilations: Sequence[int] | None,
    auto_pad: str = "NOTSET",
    ceil_mode: bool = False,
) -> Window:
    """Padding and output size from the attributes (ONNX Conv and the pools, "auto_pad" and "ceil_mode")."""
    rank = len(spatial)
    strides, dilations = tuple(strides or (1,) * rank), tuple(dilations or (1,) * rank)
    kernel = tuple(kernel)
    if not len(kernel) == len(strides) == len(dilations) == rank:
        b.decline(f"kernel {kernel}, strides {strides} and dilations {dilations} do not fit {rank} spatial axes")
    begins, ends = list((pads or (0,) * 2 * rank)[:rank]), list((pads or (0,) * 2 * rank)[rank:])
    out = []
    for axis, size in enumerate(spatial):
        reach = (kernel[axis] - 1) * dilations[axis] + 1
        if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            steps = -(-size // strides[axis])
            total = max(0, (steps - 1) * strides[axis] + reach - size)
            small, large = total // 2, total - total // 2
            begins[axis], ends[axis] = (small, large) if auto_pad == "SAME_UPPER" else (large, small)
        elif auto_pad == "VALID":
            begins[axis] = ends[axis] = 0
        room = size + begins[axis] + ends[axis] - reach
        steps = (-(-room // strides[axis]) if ceil_mode else room // strides[axis]) + 1
        if ceil_mode and (steps - 1) * strides[axis] >= size + begins[axis]:
            steps -= 1  # a window must begin inside the input or its leading padding
        if steps < 1:
            b.decline(f"the window {kernel} does not fit the input {tuple(spatial)} with pads {tuple(pads or ())}")
        out.append(steps)
    if max(0, *out, *strides, *dilations, *(abs(p) for p in (*begins, *ends))) >= 2**31:
        b.decline("a window of 2**31 elements or more")
    return Window(kernel, strides, dilations, (*begins, *ends), tuple(out))
