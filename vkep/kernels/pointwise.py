"""The fused elementwise kernels: generates their bodies and chooses their grids.

``pointwise.comp`` computes most. Reading along one axis and writing along another touches a memory sector for each element:
on GPUs ``pointwise_tile.comp`` goes through a tile in shared memory, so that reads and writes are both of whole rows.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_shared.capabilities import DeviceCapabilities
from vkep.dtypes import DType, load_code
from vkep.kernels.fastdiv import magic_params
from vkep.kernels.kernel import ITS_VIEW, Kernel, KernelCall
from vkep.kernels.launch import ceil_div, floor_power_of_two, grid, shared_itemsize
from vkep.shaders.interface import Operand
from vkep.sizes import at_hand, divides, matches

_SAMPLE = {
    "EXTRA_BASE": "1u",
    "EXTRA_OPERANDS": "uvec2 x0;",
    "EXTRA_PARAMS": "",
    "POINTWISE_DECLS": "TENSOR(float, Y) TENSOR(float, X0)",
    "POINTWISE_FUNCTION": "float compute(float x0) { return max(x0, 0.0); }",
    "POINTWISE_UNIT": "Y(operand(args.y, 0u)).v[i] = compute(X0(operand(args.x0, EXTRA_BASE + 0u)).v[i]);",
}


def generated_reach(call: KernelCall) -> Mapping[str, int]:
    """Indices are generated from each view's own sizes and strides, and each axis' position is below its size: that of a unit
    (four elements, or two) below the size over the unit's, which divides it and all strides of the other axes. Lanes outside
    load at a clamped position (`_second`, ``pointwise_tile.comp``) and store nothing.
    """
    return {operand.name: ITS_VIEW for operand, _ in call.operands}


POINTWISE = Kernel("pointwise.comp", variants=(_SAMPLE,), reach=generated_reach)

#: elements of one vector load or store
VECTOR = 4
#: a GPU is fully occupied by this many units even if each lane computes two
_PAIR_UNITS = 1 << 19


@dataclass(frozen=True)
class PointwiseOperand:
    """An operand: the caller's object, its element type, strides over the collapsed shape, and element offset.

    The operand's address is that of the view's lowest element. ``start`` is the distance from there to the view's first
    element, above 0 where strides are negative (an index into a buffer reference must not be).
    """

    tensor: Any
    dtype: DType
    strides: tuple[int, ...]
    offset: int
    start: int = 0


def pointwise(
    shape: Sequence[int],
    out: PointwiseOperand,
    inputs: Sequence[PointwiseOperand],
    function: str,
    scalars: Sequence[tuple[str, str, float | int]],
    caps: DeviceCapabilities,
    operations: int = 1,
    fault: Any = None,
) -> list[KernelCall]:
    """Dispatches for ``compute(x0, x1, ...)`` over ``shape`` (collapsed: see `vkep.ir.tensor.collapse`).

    ``function`` is GLSL that defines ``compute``, taking one value of each input in its compute type and returning what
    is stored; it may read ``scalars`` as ``args.<name>``, and report faults in ``fault`` as ``FAULT_WORD``. Element
    counts are below 2**31.
    """
    total = 1
    for dim in shape:
        total *= dim
    if total == 0:
        return []
    axis = transposed_axis(shape, out, inputs, caps)
    if axis is not None:
        return [pointwise_tile(shape, axis, out, inputs, function, scalars, load_code, operations, fault)]
    width = VECTOR if _vectorizes(shape, out, inputs) else 1
    units = [*shape[:-1], shape[-1] // width]
    code = _Coordinates(units)
    out_index = code.index(out.strides, width, 0)
    in_index = [code.index(x.strides, width, k + 1, x.start) for k, x in enumerate(inputs)]

    decls = [f"TENSOR({_element(out.dtype, width)}, Y)"]
    unit = [code.statements()]
    values: list[list[str]] = [[] for _ in range(width)]
    for k, x in enumerate(inputs):
        wide = width if matches(x.strides[-1], 1) else 1
        decls.append(f"TENSOR({_element(x.dtype, wide)}, X{k})")
        unit.append(f"{_element(x.dtype, wide)} v{k} = X{k}(operand(args.x{k}, EXTRA_BASE + {k}u)).v[{in_index[k]}];")
        for lane in range(width):
            values[lane].append(load_code(x.dtype, f"v{k}[{lane}]" if wide > 1 else f"v{k}"))
    calls = ", ".join(f"compute({', '.join(v)})" for v in values)
    stored = calls if width == 1 else f"{_element(out.dtype, width)}({calls})"
    unit.append(f"Y(operand(args.y, 0u)).v[{out_index}] = {stored};")

    count = total // width
    pair = caps.device_type != "cpu" and not code.used and _is_long(count)
    defines = {"POINTWISE_UNIT": " ".join(part for part in unit if part)}
    if pair:  # the loads of both units come before the first store: the compiler does not reorder them
        first, second = unit[1:-1], [_second(part) for part in unit[1:-1]]
        defines = {
            "POINTWISE_UNITS": "2",
            "POINTWISE_UNIT": " ".join(
                [
                    "uint j = i + gl_WorkGroupSize.x; uint j_read = min(j, args.n - 1u);",
                    *first,
                    *second,
                    unit[-1],
                    f"if (j < args.n) {{ {_second(unit[-1], 'j')} }}",
                ]
            ),
        }
    extra, noted = extra_operands(inputs, fault)
    lanes, iterations = _grid(count // 2 if pair else count, caps)
    block = lanes * iterations * (2 if pair else 1)
    return [
        POINTWISE.call(
            grid=(-(-count // block), 1, 1),
            local_size=(lanes, 1, 1),
            operands={"y": out.tensor},
            params={"n": count, "iterations": iterations},
            extra_operands=extra,
            extra_params=[*code.params, *scalars],
            defines={
                "POINTWISE_DECLS": " ".join(decls),
                "POINTWISE_FUNCTION": function,
                **defines,
                **noted,
            },
            flops=operations * total,
        )
    ]


def _second(code: str, index: str = "j_read") -> str:
    """A statement of the first unit, rewritten for the second one with another index and other variables."""
    return re.sub(r"\bv(\d+)\b", r"w\1", code).replace(".v[i]", f".v[{index}]")


class _Coordinates:
    """The GLSL of each operand's index from a unit's flat index; divides only if an operand is not linear."""

    def __init__(self, shape: Sequence[int]) -> None:
        self.shape = list(shape)
        self.params: list[tuple[str, str, float | int]] = []
        self.used = False

    def index(self, strides: Sequence[int], width: int, operand: int, start: int = 0) -> str:
        # In units: the inner stride is 0 or 1 when vectorised, and outer strides are multiples of the width
        # for an operand that is read as vectors.
        wide = width if matches(strides[-1], 1) else 1
        steps = [s // wide for s in strides[:-1]] + [strides[-1]]
        if all(matches(s, 0) for s in steps):
            return "0u"
        linear, expected = True, 1
        for dim, step in zip(reversed(self.shape), reversed(steps), strict=True):
            linear = linear and (matches(step, expected) or matches(dim, 1))
            expected *= dim
        if linear:
            return "i"
        self.used = True
        terms = []
        for axis, step in enumerate(steps):
            if matches(step, 0):
                continue
            if matches(step, 1):
                terms.append(f"q{axis}")
            else:
                name = f"s{operand}_{axis}"
                self.params.append((name, "int", step))
                terms.append(f"q{axis} * uint(args.{name})")
        code = " + ".join(terms)
        if start:
            self.params.append((f"b{operand}", "uint", start // wide))
            return f"args.b{operand} + {code}"
        return code

    def statements(self) -> str:
        if not self.used:
            return ""
        lines = ["uint rest = i;"]
        for axis in range(len(self.shape) - 1, 0, -1):
            name = f"d{axis}"
            self.params += [(key, "uint", value) for key, value in magic_params(name, self.shape[axis]).items()]
            lines.append(
                f"uint q{axis}; rest = fast_divmod(rest, args.{name}, args.{name}_mul, args.{name}_shift, q{axis});"
            )
        return " ".join([*lines, "uint q0 = rest;"])


def _vectorizes(shape: Sequence[int], out: PointwiseOperand, inputs: Sequence[PointwiseOperand]) -> bool:
    if not divides(VECTOR, shape[-1]) or not matches(out.strides[-1], 1):
        return False
    for x in (out, *inputs):
        if matches(x.strides[-1], 0):
            continue
        if not (matches(x.strides[-1], 1) and all(divides(VECTOR, s) for s in (*x.strides[:-1], x.offset))):
            return False
    return True


def _element(dtype: DType, width: int) -> str:
    return dtype.glsl if width == 1 else dtype.glsl_vector


@at_hand
def _is_long(units: int) -> bool:
    return units >= _PAIR_UNITS


@at_hand
def _grid(units: int, caps: DeviceCapabilities) -> tuple[int, int]:
    """Lanes of a workgroup, and units of each lane."""
    limit = caps.max_workgroup_count[0]
    if caps.device_type == "cpu":
        lanes, iterations = 128, 4  # on a CPU driver each workgroup has a cost, and there are few threads to fill
        iterations = min(iterations, max(1, units // (lanes * 16)))
    else:
        lanes, iterations = 256, 1
    lanes = min(lanes, floor_power_of_two(caps.max_workgroup_invocations))
    while -(-units // (lanes * iterations)) > min(limit, 1 << 20):
        iterations *= 2
    return lanes, iterations


# ---- across a transposition

_TILE_SAMPLE = {
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
POINTWISE_TILE = Kernel("pointwise_tile.comp", variants=(_TILE_SAMPLE,), reach=generated_reach)
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
    if caps.device_type == "cpu" or len(shape) < 2 or not matches(out.strides[-1], 1) or _is_short(shape[-1]):
        return None
    across = [x for x in inputs if not (matches(x.strides[-1], 0) or matches(x.strides[-1], 1))]
    axes = {next((a for a, s in enumerate(x.strides[:-1]) if matches(s, 1)), None) for x in across}
    if len(axes) != 1 or None in axes:
        return None
    [axis] = axes
    if axis is None or _is_short(shape[axis]) or any(s < 0 for x in (out, *inputs) for s in x.strides):
        return None
    tile = _tile(shape[axis], shape[-1], out.dtype.itemsize)
    side = tile // (2 if _in_pairs(shape, axis, out, inputs) else 1)
    shared = sum(shared_itemsize(x.dtype, caps) for x in across) * tile**2 // side * (side + 1)
    lanes = min(caps.max_workgroup_invocations, caps.max_workgroup_size[0])
    room = min(caps.max_shared_memory_bytes, _MAX_SHARED_BYTES)
    return axis if lanes >= _LANES and shared <= room else None


@at_hand
def _is_short(axis: int) -> bool:
    return axis < _MIN_AXIS


@at_hand
def _tile(along: int, last: int, itemsize: int) -> int:
    """Elements of a tile's side: 32 elements of 4 bytes are a memory line; smaller elements gain from longer rows."""
    return 64 if itemsize < 4 and min(along, last) > 32 else 32


def _in_pairs(shape: Sequence[int], axis: int, out: PointwiseOperand, inputs: Sequence[PointwiseOperand]) -> bool:
    """Whether 2-byte elements can be loaded and stored in pairs: all pairs lie within rows, at whole words."""
    if out.dtype.itemsize != 2 or _tile(shape[axis], shape[-1], 2) != 64:
        return False
    if not (divides(2, shape[axis]) and divides(2, shape[-1])):
        return False
    for x in (out, *inputs):
        if matches(x.strides[-1], 0):
            continue
        run = len(shape) - 1 if matches(x.strides[-1], 1) else axis
        steps = [s for a, s in enumerate(x.strides) if a != run]
        if x.dtype.glsl not in _PAIRS or not all(divides(2, n) for n in (*steps, x.offset)):
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
    tile = _tile(shape[axis], shape[-1], out.dtype.itemsize)
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
            if matches(step, 1):
                terms.append(position)
            elif not matches(step, 0):
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
        wide = 1 if matches(x.strides[-1], 0) else pair
        kind = element(x.dtype, wide)
        source = f"X{k}(operand(args.x{k}, EXTRA_BASE + {k}u)).v[{index(x.strides, k + 1, wide)}]"
        decls.append(f"TENSOR({kind}, X{k})")
        if not (matches(x.strides[-1], 0) or matches(x.strides[-1], 1)):
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
