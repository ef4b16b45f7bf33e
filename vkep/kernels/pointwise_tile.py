"""Elementwise kernels across a transposition, for GPUs: ``shaders/pointwise_tile.comp``.

Reading along one axis and writing along another touches a memory sector for each element. Through a tile in shared memory,
reads and writes are both of whole rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpu_shared.capabilities import DeviceCapabilities
from vkep.dtypes import DType
from vkep.kernels.fastdiv import magic_params
from vkep.kernels.kernel import ITS_VIEW, Kernel, KernelCall
from vkep.kernels.launch import ceil_div, grid, shared_itemsize
from vkep.shaders.interface import Operand

if TYPE_CHECKING:
    from vkep.kernels.pointwise import PointwiseOperand

_SAMPLE = {
    "EXTRA_BASE": "1u",
    "EXTRA_OPERANDS": "uvec2 x0;",
    "EXTRA_PARAMS": "uint s0_0; uint s1_0;",
    "TILE_DECLS": "TENSOR(float, Y) TENSOR(float, X0) shared float tile0[PAIR * PLANE];",
    "TILE_FUNCTION": "float compute(float x0) { return x0; }",
    "TILE_COORDINATES": "",
    "TILE_REGISTERS": "float r0[ROWS];",
    "TILE_KEEP": "tile0[slot] = r0[n];",
    "TILE_LOAD": "r0[n] = X0(operand(args.x0, EXTRA_BASE + 0u)).v[q_along + q_last * args.s1_0];",
    "TILE_STORE": "Y(operand(args.y, 0u)).v[q_last + q_along * args.s0_0] = compute(tile0[slot]);",
}


def generated_reach(call: KernelCall) -> Mapping[str, int]:
    """Indices are generated from each view's own sizes and strides, and each axis' position is below its size: that of a unit
    (four elements, or two) below the size over the unit's, which divides it and all strides of the other axes. Lanes outside
    load at a clamped position (`_second`, ``pointwise_tile.comp``) and store nothing.
    """
    return {operand.name: ITS_VIEW for operand, _ in call.operands}


POINTWISE_TILE = Kernel("pointwise_tile.comp", variants=(_SAMPLE,), reach=generated_reach)
#: shorter axes would leave most of a tile unused
_MIN_AXIS = 16
_LANES = 256
#: the minimum shared memory of devices that run 256 lanes per workgroup, in practice
_MAX_SHARED_BYTES = 16384 + 512
_PAIRS = {
    "float": "vec2",
    "float16_t": "f16vec2",
    "int": "ivec2",
    "uint": "uvec2",
    "int16_t": "i16vec2",
    "uint16_t": "u16vec2",
}


def transposed_axis(
    shape: Sequence[int], out: PointwiseOperand, inputs: Sequence[PointwiseOperand], caps: DeviceCapabilities
) -> int | None:
    """The axis along which some input is dense while the output is dense along the last; None where a tile gains nothing."""
    if caps.device_type == "cpu" or len(shape) < 2 or out.strides[-1] != 1 or shape[-1] < _MIN_AXIS:
        return None
    across = [x for x in inputs if x.strides[-1] not in (0, 1)]
    axes = {next((a for a, s in enumerate(x.strides[:-1]) if s == 1), None) for x in across}
    if len(axes) != 1 or None in axes:
        return None
    [axis] = axes
    if axis is None or shape[axis] < _MIN_AXIS or any(s < 0 for x in (out, *inputs) for s in x.strides):
        return None
    side = _tile(shape, axis, out.dtype) // (2 if _in_pairs(shape, axis, out, inputs) else 1)
    shared = (
        sum(shared_itemsize(x.dtype, caps) for x in across) * _tile(shape, axis, out.dtype) ** 2 // side * (side + 1)
    )
    lanes = min(caps.max_workgroup_invocations, caps.max_workgroup_size[0])
    room = min(caps.max_shared_memory_bytes, _MAX_SHARED_BYTES)
    return axis if lanes >= _LANES and shared <= room else None


def _tile(shape: Sequence[int], axis: int, dtype: DType) -> int:
    """Elements of a tile's side: 32 elements of 4 bytes are a memory line; smaller elements gain from longer rows."""
    return 64 if dtype.itemsize < 4 and min(shape[axis], shape[-1]) > 32 else 32


def _in_pairs(shape: Sequence[int], axis: int, out: PointwiseOperand, inputs: Sequence[PointwiseOperand]) -> bool:
    """Whether 2-byte elements can be loaded and stored in pairs: all pairs lie within rows, at whole words."""
    if out.dtype.itemsize != 2 or shape[axis] % 2 or shape[-1] % 2 or _tile(shape, axis, out.dtype) != 64:
        return False
    for x in (out, *inputs):
        if x.strides[-1] == 0:
            continue
        run = axis if x.strides[-1] != 1 else len(shape) - 1
        if any(s % 2 for a, s in enumerate(x.strides) if a != run) or x.offset % 2 or x.dtype.glsl not in _PAIRS:
            return False
        if run == axis and x.dtype.itemsize != 2:
            return False
    return True


def extra_operands(inputs: Sequence[PointwiseOperand], fault: Any) -> tuple[list[tuple[Operand, Any]], dict[str, str]]:
    """The operands that an expression adds to a kernel's own: its inputs, and the word for faults, with that word's
    define."""
    extra = [(Operand(f"x{k}"), x.tensor) for k, x in enumerate(inputs)]
    if fault is None:
        return extra, {}
    word = f"operand(args.fault, EXTRA_BASE + {len(extra)}u)"
    return [*extra, (Operand("fault", writes=True), fault)], {"FAULT_WORD": word}


def pointwise_tile(
    shape: Sequence[int],
    axis: int,
    out: PointwiseOperand,
    inputs: Sequence[PointwiseOperand],
    function: str,
    scalars: Sequence[tuple[str, str, float | int]],
    load: Callable[[DType, str], str],
    operations: int,
    fault: Any = None,
) -> KernelCall:
    """As `pointwise`, for the ``axis`` that `transposed_axis` returns; ``load`` converts a stored element to its
    compute type."""
    tile = _tile(shape, axis, out.dtype)
    pair = 2 if _in_pairs(shape, axis, out, inputs) else 1
    side = tile // pair
    params: list[tuple[str, str, float | int]] = []
    others = [a for a in range(len(shape) - 1) if a != axis]
    lines = []
    for a in reversed(others[1:]):
        params += [(key, "uint", value) for key, value in magic_params(f"d{a}", shape[a]).items()]
        lines.append(f"uint q{a}; rest = fast_divmod(rest, args.d{a}, args.d{a}_mul, args.d{a}_shift, q{a});")
    if others:
        lines.append(f"uint q{others[0]} = rest;")

    def index(strides: Sequence[int], operand: int, wide: int) -> str:
        terms = []
        for a, step in enumerate(strides):
            position = "q_last" if a == len(shape) - 1 else "q_along" if a == axis else f"q{a}"
            if step == 1:
                terms.append(position)
            elif step:
                params.append((f"s{operand}_{a}", "uint", step // wide))
                terms.append(f"{position} * args.s{operand}_{a}")
        return " + ".join(terms) or "0u"

    def element(dtype: DType, wide: int) -> str:
        return _PAIRS[dtype.glsl] if wide == 2 else dtype.glsl

    decls = [f"TENSOR({element(out.dtype, pair)}, Y)"]
    registers, loads, kept, stored = [], [], [], []
    values: list[list[str]] = [[] for _ in range(pair)]
    out_index = index(out.strides, 0, pair)
    for k, x in enumerate(inputs):
        wide = pair if x.strides[-1] else 1
        kind = element(x.dtype, wide)
        source = f"X{k}(operand(args.x{k}, EXTRA_BASE + {k}u)).v[{index(x.strides, k + 1, wide)}]"
        decls.append(f"TENSOR({kind}, X{k})")
        if x.strides[-1] not in (0, 1):
            decls.append(f"shared {kind} tile{k}[PAIR * PLANE];")
            registers.append(f"{kind} r{k}[ROWS];")
            loads.append(f"r{k}[n] = {source};")
            if pair == 1:
                kept.append(f"tile{k}[slot] = r{k}[n];")
            else:
                kept += [
                    f"tile{k}[slot{plane}] = {kind}(r{k}[n].{half}, r{k}[n + 1u].{half});"
                    for plane, half in (("", "x"), (" + PLANE", "y"))
                ]
            source = f"tile{k}[slot]"
        stored.append(f"{kind} v{k} = {source};")
        for n in range(pair):
            values[n].append(load(x.dtype, f"v{k}[{n}]" if wide == 2 else f"v{k}"))
    result = ", ".join(f"compute({', '.join(v)})" for v in values)
    stored.append(f"Y(operand(args.y, 0u)).v[{out_index}] = {element(out.dtype, pair)}({result});")
    tiles = ceil_div(shape[-1], tile), ceil_div(shape[axis], tile)
    extra, noted = extra_operands(inputs, fault)
    groups = math.prod(tiles) * math.prod(shape[a] for a in others)
    return POINTWISE_TILE.call(
        grid=grid(groups),
        local_size=(side, _LANES // side, 1),
        operands={"y": out.tensor},
        params={
            "last": shape[-1],
            "along": shape[axis],
            "groups": groups,
            **magic_params("last_tiles", tiles[0]),
            **magic_params("along_tiles", tiles[1]),
        },
        spec={"TILE": tile, "LINES": _LANES // side},
        extra_operands=extra,
        extra_params=[*params, *scalars],
        defines={
            "TILE_DECLS": " ".join(decls),
            "TILE_FUNCTION": function,
            "TILE_COORDINATES": " ".join(lines),
            "TILE_REGISTERS": " ".join(registers),
            "TILE_LOAD": " ".join(loads),
            "TILE_KEEP": " ".join(kept),
            "TILE_STORE": " ".join(stored),
            **({"PAIR": "2u"} if pair == 2 else {}),
            **noted,
        },
        flops=operations * math.prod(shape),
    )
