"""The fused elementwise kernel: generates the body of ``pointwise.comp`` and chooses its grid."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpu_shared.capabilities import DeviceCapabilities
from vkep.dtypes import DType, load_code
from vkep.kernels.fastdiv import magic_params
from vkep.kernels.kernel import Kernel, KernelCall
from vkep.kernels.launch import floor_power_of_two
from vkep.kernels.pointwise_tile import extra_operands, generated_reach, pointwise_tile, transposed_axis
from vkep.sizes import at_hand, divides, matches

_SAMPLE = {
    "EXTRA_BASE": "1u",
    "EXTRA_OPERANDS": "uvec2 x0;",
    "EXTRA_PARAMS": "",
    "POINTWISE_DECLS": "TENSOR(float, Y) TENSOR(float, X0)",
    "POINTWISE_FUNCTION": "float compute(float x0) { return max(x0, 0.0); }",
    "POINTWISE_UNIT": "Y(operand(args.y, 0u)).v[i] = compute(X0(operand(args.x0, EXTRA_BASE + 0u)).v[i]);",
}
POINTWISE = Kernel("pointwise.comp", variants=(_SAMPLE,), reach=generated_reach)

#: elements of one vector load or store
VECTOR = 4
#: a GPU is fully occupied by this many units even if each lane computes two
_PAIR_UNITS = 1 << 19
_VECTOR_TYPES = {
    "float": "vec4",
    "float16_t": "f16vec4",
    "double": "dvec4",
    "int": "ivec4",
    "uint": "uvec4",
    "int8_t": "i8vec4",
    "uint8_t": "u8vec4",
    "int16_t": "i16vec4",
    "uint16_t": "u16vec4",
    "int64_t": "i64vec4",
    "uint64_t": "u64vec4",
}


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
    return dtype.glsl if width == 1 else _VECTOR_TYPES[dtype.glsl]


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
