"""Windows of convolutions and pools, padding and output sizes, and slices of an axis, as ONNX defines them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vkep.errors import Decline, InvalidNode
from vkep.sizes import cached, wholes

#: kernels count elements along an axis in 31 bits
_LIMIT = 1 << 31


@dataclass(frozen=True)
class Window:
    """A resolved sliding window; ``pads`` are begins then ends."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    out: tuple[int, ...]


def check_window(rank: int, pads: Sequence[int], **sizes: Sequence[int]) -> None:
    """Check a window. Raises `InvalidNode` for attributes whose length differs from the number of spatial axes or whose
    values are too small, `Decline` for values beyond a kernel's integers."""
    for name, values in sizes.items():
        if len(values) != rank:
            raise InvalidNode(f"{name} {tuple(values)} has {len(values)} entries; the input has {rank} spatial axes")
        least = 0 if name in ("output_padding", "output_shape") else 1
        if not all(least <= v < _LIMIT for v in values):
            reason = f"{name} {tuple(values)}; each must be at least {least} and below 2**31"
            raise InvalidNode(reason) if min(values) < least else Decline(reason)
    if len(pads) != 2 * rank or not all(abs(p) < _LIMIT for p in pads):
        reason = f"pads {tuple(pads)}; {2 * rank} are expected, each of a size below 2**31"
        raise InvalidNode(reason) if len(pads) != 2 * rank else Decline(reason)


_AUTO_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


def resolve_window(
    spatial: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int] | None,
    pads: Sequence[int] | None,
    dilations: Sequence[int] | None,
    auto_pad: str = "NOTSET",
    ceil_mode: bool = False,
    pools: bool = False,
) -> Window:
    """Padding and output size from the attributes (ONNX Conv and the pools, "auto_pad" and "ceil_mode").

    ``spatial`` are the input's sizes without batch and channels. A pool's window (``pools``) may be larger than the padded
    input: its quotient is then rounded towards 0, as ONNX's shape inference and ONNX Runtime do, and the result may be
    empty. Raises `InvalidNode` for attributes that do not fit the input, `Decline` for sizes beyond a kernel's integers.
    """
    rank = len(spatial)
    return _resolved(
        wholes(spatial),
        tuple(kernel),
        tuple(strides or (1,) * rank),
        tuple(pads or (0,) * 2 * rank),
        tuple(dilations or (1,) * rank),
        auto_pad,
        ceil_mode,
        pools,
    )


@cached
def _resolved(
    spatial: tuple[int, ...],
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    pads: tuple[int, ...],
    dilations: tuple[int, ...],
    auto_pad: str,
    ceil_mode: bool,
    pools: bool,
) -> Window:
    rank = len(spatial)
    auto_pad = auto_pad or "NOTSET"  # ONNX Runtime treats an empty text as absent
    if auto_pad not in _AUTO_PADS:
        raise InvalidNode(f"auto_pad is {auto_pad!r}, expected one of {_AUTO_PADS}")
    check_window(rank, pads, kernel_shape=kernel, strides=strides, dilations=dilations)
    begins, ends = list(pads[:rank]), list(pads[rank:])
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
        over = room < 0
        steps = (-(-room // strides[axis]) if ceil_mode or over else room // strides[axis]) + 1
        if ceil_mode and (steps - 1) * strides[axis] >= size + begins[axis]:
            steps -= 1  # a window must begin inside the input or its leading padding
        if over and (not pools or steps < 0):
            raise InvalidNode(
                f"the window {list(kernel)} does not fit the input {list(spatial)} with pads {list(pads)}"
            )
        out.append(steps)
        padded = size + begins[axis] + ends[axis]
        if any(n >= _LIMIT for n in (reach, steps, padded)):
            raise Decline(
                f"a window that reaches over {reach} elements, {steps} times, of {padded} with pads; all must be below 2**31"
            )
    return Window(kernel, strides, dilations, (*begins, *ends), tuple(out))


def resolve_transposed_window(
    spatial: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int] | None,
    pads: Sequence[int] | None,
    dilations: Sequence[int] | None,
    output_padding: Sequence[int] | None = None,
    output_shape: Sequence[int] | None = None,
    auto_pad: str = "NOTSET",
) -> Window:
    """The window that ConvTranspose moves over its *result* (``out`` is the result's size), from ONNX's attributes.

    ``pads`` are cropped from the full result. Raises `InvalidNode` for attributes that contradict one another or leave no
    result, `Decline` for a result too large to count.
    """
    rank = len(spatial)
    step, spread = tuple(strides or (1,) * rank), tuple(dilations or (1,) * rank)
    extra = tuple(output_padding or (0,) * rank)
    amounts = list(pads or (0,) * 2 * rank)
    kernel = tuple(kernel)
    wanted_shape = tuple(output_shape) if output_shape else (1,) * rank
    check_window(
        rank,
        amounts,
        kernel_shape=kernel,
        strides=step,
        dilations=spread,
        output_padding=extra,
        output_shape=wanted_shape,
    )
    if any(more >= max(s, d) for more, s, d in zip(extra, step, spread, strict=True) if more):
        raise InvalidNode(f"output_padding {list(extra)} with strides {list(step)} and dilations {list(spread)}")
    out = []
    for axis, size in enumerate(spatial):
        reach = (kernel[axis] - 1) * spread[axis] + 1
        full = step[axis] * (size - 1) + extra[axis] + reach
        wanted = wanted_shape[axis] if output_shape else None
        if wanted is None and auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            wanted = size * step[axis]
        if wanted is not None:  # the padding follows from the size (ONNX ConvTranspose)
            total = max(0, full - wanted)
            if output_shape and (wanted + total - reach) // step[axis] + 1 != size:
                raise InvalidNode(
                    f"output_shape {list(output_shape)} does not follow from an input of {list(spatial)} with a kernel of "
                    f"{list(kernel)}, strides {list(step)} and dilations {list(spread)}: axis {axis} has {full} elements, "
                    f"and fewer than {step[axis] - extra[axis]} more are possible"
                )
            large, small = total - total // 2, total // 2
            # the odd element is added at the end with SAME_UPPER, else at the beginning
            amounts[axis], amounts[rank + axis] = (small, large) if auto_pad == "SAME_UPPER" else (large, small)
            out.append(wanted)
        else:
            if auto_pad == "VALID":
                amounts[axis] = amounts[rank + axis] = 0
            out.append(full - amounts[axis] - amounts[rank + axis])
        if full >= _LIMIT:
            raise Decline(f"{full} elements along an axis before padding is cut off; the kernel counts below 2**31")
    if any(size < 1 for size in out):
        raise InvalidNode(f"the result would have shape {out}")
    if any(size >= _LIMIT for size in out):
        raise Decline(f"the result would have shape {out}; the kernel counts below 2**31")
    return Window(kernel, step, spread, tuple(amounts), tuple(out))


def slice_span(size: int, start: int, end: int, step: int) -> tuple[int, int]:
    """The first index that ONNX's Slice selects along an axis of ``size``, and the number of elements; both 0 where it
    selects none.

    Not Python's slice: a negative step clamps its start to the axis (Slice-13, "starts"), where Python continues before
    its beginning. Raises `Decline` for a step of 0.
    """
    if step == 0:
        raise Decline("a slice step is 0")
    start, end = (index + size if index < 0 else index for index in (start, end))
    last = size if step > 0 else size - 1
    first, stop = min(max(start, 0), last), min(max(end, 0 if step > 0 else -1), last)
    count = -((first - stop) // step)
    return (first, count) if count > 0 else (0, 0)
