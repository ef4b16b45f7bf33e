"""Pointwise kernels touch the elements of their views and no others: the generated indices are evaluated for every lane.

`generated_reach` rests on this. No driver is used.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from gpu_shared.capabilities import DeviceCapabilities
from tests.devices import GPU
from vkep.dtypes import DTYPES
from vkep.ir.tensor import Storage, Tensor, collapse
from vkep.kernels import pointwise as kernels
from vkep.kernels.kernel import GLSL_BYTES, KernelCall
from vkep.passes.emit import _pointwise_operand

CPU = DeviceCapabilities.for_tests()
#: an operand's access in the generated code: its pointer type and its index
_ACCESS = re.compile(r"\b(X\d+|Y)\(operand\([^()]*\)\)\.v\[([^\]]+)\]")
Values = dict[str, Any]


def _view(rng: np.random.Generator, shape: Sequence[int], dtype: str) -> Tensor:
    """A view of a shape with axes in any order of memory, some of them broadcast, backwards or with gaps."""
    strides, step = [0] * len(shape), 1
    order = list(range(len(shape)))[::-1] if rng.random() < 0.4 else list(rng.permutation(len(shape)))
    for axis in order:
        kind = rng.random()
        if kind < 0.15 or shape[axis] == 1:
            continue
        gap = 4 if kind > 0.9 else 1
        strides[axis] = step * gap * (-1 if 0.15 < kind < 0.25 else 1)
        step = step * shape[axis] * gap + int(rng.choice([0, 0, 0, 1, 4]))  # rows may have a pitch
    before = -sum((dim - 1) * s for dim, s in zip(shape, strides, strict=True) if s < 0)
    offset = 4 * int(rng.integers(0, 3)) + before
    element = DTYPES[dtype]
    return Tensor(element, tuple(shape), Storage((offset + step) * element.itemsize), tuple(strides), offset)


def _call(
    out: Tensor, inputs: Sequence[Tensor], caps: DeviceCapabilities
) -> tuple[KernelCall, list[kernels.PointwiseOperand]]:
    shape, strides = collapse(out.shape, [out.strides, *(t.strides for t in inputs)])
    operands = [_pointwise_operand(t, shape, s) for t, s in zip([out, *inputs], strides, strict=True)]
    [call] = kernels.pointwise(shape, operands[0], operands[1:], "FUNCTION", (), caps)
    return call, operands


def _arguments(call: KernelCall) -> Values:
    interface = call.kernel.interface(call.defines)
    values = struct.unpack("<" + interface.codes, call.scalars)
    return {name: value for (name, _), value in zip(interface.params, values, strict=True)}


def _execute(code: str, values: Values, arguments: Values, touched: list[tuple[str, Any]]) -> None:
    """Evaluate generated statements for all lanes at once; ``touched`` gets each access: pointer type and unit indices."""

    def evaluate(text: str) -> Any:
        text = re.sub(r"args\.(\w+)", r"ARGS['\1']", text.replace("gl_WorkGroupSize.x", "LOCAL_X"))
        text = re.sub(r"\b(\d+)u\b", r"\1", text.replace("uint(", "np.int64("))
        return eval(text, {"np": np, "min": np.minimum, "ARGS": arguments}, values) & 0xFFFFFFFF

    for statement in code.split(";"):
        if division := re.search(r"rest = fast_divmod\(rest, args\.(\w+), .*, (q\d+)\)", statement):
            by = arguments[division[1]]
            values[division[2]], values["rest"] = values["rest"] % by, values["rest"] // by
        elif guarded := re.search(r"if \((.*?)\) \{", statement):
            taken = eval(re.sub(r"args\.(\w+)", r"ARGS['\1']", guarded[1]), {"ARGS": arguments}, values)
            touched += [(name, evaluate(index)[taken]) for name, index in _ACCESS.findall(statement)]
        elif found := _ACCESS.findall(statement):
            touched += [(name, np.broadcast_to(evaluate(index), values["lanes"])) for name, index in found]
        elif assigned := re.search(r"uint (\w+) = (.*)", statement):
            values[assigned[1]] = evaluate(assigned[2])


def _flat(call: KernelCall) -> list[tuple[str, Any]]:
    """The accesses of ``pointwise.comp``."""
    arguments, local = _arguments(call), call["LOCAL_X"]
    defines = dict(call.variant.defines)
    stride = local * int(defines.get("POINTWISE_UNITS", 1))
    groups, lanes, steps = np.ogrid[: call.grid[0], :local, : arguments["iterations"]]
    i = (groups * stride * arguments["iterations"] + lanes + steps * stride).reshape(-1)
    i = i[i < arguments["n"]].astype(np.int64)
    touched: list[tuple[str, Any]] = []
    _execute(defines["POINTWISE_UNIT"], {"i": i, "LOCAL_X": local, "lanes": i.shape}, arguments, touched)
    return touched


def _tiled(call: KernelCall) -> list[tuple[str, Any]]:
    """The accesses of ``pointwise_tile.comp``."""
    arguments, defines = _arguments(call), dict(call.variant.defines)
    pair, tile, lines = int(defines.get("PAIR", "1u")[:-1]), call["TILE"], call["LINES"]
    side = tile // pair
    group, y, x, n = (a.astype(np.int64) for a in np.ogrid[: arguments["groups"], :lines, :side, : tile // lines])
    shape = np.broadcast_shapes(group.shape, y.shape, x.shape, n.shape)
    last_tile, rest = group % arguments["last_tiles"], group // arguments["last_tiles"]
    along_tile, rest = rest % arguments["along_tiles"], rest // arguments["along_tiles"]
    values: Values = {"rest": rest, "lanes": shape}
    _execute(defines["TILE_COORDINATES"], values, arguments, [])
    touched: list[tuple[str, Any]] = []
    row = (y + n // pair * lines) * pair + n % pair
    values["q_last"] = np.minimum(last_tile * tile + row, arguments["last"] - 1)
    values["q_along"] = np.minimum(along_tile * side + x, arguments["along"] // pair - 1)
    _execute(defines["TILE_LOAD"], values, arguments, touched)
    values["q_along"], values["q_last"] = along_tile * tile + y + n * lines, last_tile * side + x
    taken = (values["q_last"] < arguments["last"] // pair) & (values["q_along"] < arguments["along"])
    stored: list[tuple[str, Any]] = []
    _execute(defines["TILE_STORE"], values, arguments, stored)
    return touched + [(name, index[np.broadcast_to(taken, shape)]) for name, index in stored]


def _check(call: KernelCall, operands: Sequence[kernels.PointwiseOperand], shape: Sequence[int]) -> None:
    tiled = call.kernel is not kernels.POINTWISE
    touched = _tiled(call) if tiled else _flat(call)
    declared = dict(call.variant.defines)["TILE_DECLS" if tiled else "POINTWISE_DECLS"]
    types = {name: kind for kind, name in re.findall(r"TENSOR\((\w+), (\w+)\)", declared)}
    for k, operand in enumerate(operands):
        name = f"X{k - 1}" if k else "Y"
        wide = _bytes(types[name]) // operand.dtype.itemsize
        units = np.concatenate([index.reshape(-1) for found, index in touched if found == name])
        if not k:
            assert len(np.unique(units)) == len(units), "an element is written once"
        got = (np.unique(units)[:, None] * wide + np.arange(wide)).reshape(-1)
        axes = np.ix_(*(np.arange(dim) for dim in shape))
        wanted = operand.start + sum(a * step for a, step in zip(axes, operand.strides, strict=True))
        np.testing.assert_array_equal(got, np.unique(wanted), err_msg=name)


def _bytes(kind: str) -> int:
    vector = re.fullmatch(r"(?:f16|[iu]16|[iu]8|[iu]|d)?vec(\d)", kind)
    if vector is None or kind in GLSL_BYTES:
        return GLSL_BYTES[kind]
    return int(vector[1]) * {"f16": 2, "i16": 2, "u16": 2}.get(kind[:3], 4)


@pytest.mark.parametrize("seed", range(200))
@pytest.mark.parametrize("caps", [CPU, GPU], ids=["cpu", "gpu"])
def test_views(monkeypatch: pytest.MonkeyPatch, caps: DeviceCapabilities, seed: int) -> None:
    monkeypatch.setattr(kernels, "_PAIR_UNITS", 8)
    rng = np.random.default_rng(seed)
    shape = [int(d) for d in rng.choice([1, 2, 3, 4, 5, 8, 12], rng.integers(1, 5))]
    dtypes = rng.choice(["float32", "float16", "uint8"], 3)
    inputs = [_view(rng, shape, str(dtype)) for dtype in dtypes[1:]]
    out = Tensor.contiguous(DTYPES[str(dtypes[0])], shape)
    call, operands = _call(out, inputs, caps)
    _check(call, operands, collapse(shape, [out.strides, *(t.strides for t in inputs)])[0])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("shape", [(36, 48), (3, 70, 100), (2, 66, 3, 34), (40, 33), (2, 130, 2, 128), (65, 34)])
@pytest.mark.parametrize("pitch", [0, 1, 2])
def test_transpositions(dtype: str, shape: tuple[int, ...], pitch: int) -> None:
    """An input whose elements are dense along another axis than the output's, beside dense and broadcast ones."""
    rng = np.random.default_rng(7)
    for axis in range(len(shape) - 1):
        order = [a for a in range(len(shape)) if a != axis] + [axis]
        strides, step = [0] * len(shape), 1
        for a in reversed(order):
            strides[a], step = step, step * shape[a] + pitch
        kind = DTYPES[dtype]
        across = Tensor(kind, shape, Storage(step * kind.itemsize), tuple(strides))
        row = Tensor(kind, shape, Storage(shape[-1] * kind.itemsize), (*(0,) * (len(shape) - 1), 1))
        column = Tensor.contiguous(DTYPES["float32"], (*shape[:-1], 1)).expand(shape)
        inputs = [across, row, column, Tensor.contiguous(kind, shape)]
        out = Tensor.contiguous(kind, shape)
        call, operands = _call(out, [inputs[i] for i in rng.permutation(4)], GPU)
        assert (call.kernel is kernels.POINTWISE) == (min(shape[axis], shape[-1]) < 16)
        _check(call, operands, collapse(shape, [out.strides, *(t.strides for t in inputs)])[0])
