"""Drawn calls whose attributes may contradict one another, whose windows may have no elements, and whose indices have
their type's whole range: each has ONNX Runtime's result, or is refused by both."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.ops.cases import assert_like, by_onnxruntime, model_of, on_vulkan
from vkep import InvalidInputError, InvalidModelError

pytestmark = pytest.mark.usefixtures("vulkan")
Array = np.ndarray[Any, Any]
FAR = (2**63 - 1, 2**63 - 2, -(2**63), 2**32, 2**32 + 1, -(2**32), 2**31, -(2**31) - 1)


class Call(NamedTuple):
    """A node's inputs, those that are constants, its attributes and outputs."""

    inputs: dict[str, Array | None]
    constants: tuple[str, ...] = ()
    attributes: dict[str, Any] = {}
    outputs: tuple[str, ...] = ("y",)


def answered(op_type: str, call: Call, opset: int = 22, constant: bool = False) -> bool:
    """Whether ONNX Runtime has a result, which is compared then; otherwise vkep must refuse the call too. ``constant``: of
    all inputs, so that the node may be folded, by an evaluator that checks less."""
    constants = tuple(n for n, v in call.inputs.items() if v is not None) if constant else call.constants
    model = model_of(op_type, call.inputs, outputs=call.outputs, constants=constants, opset=opset, **call.attributes)
    values: dict[str, Any] = call.inputs
    expected, refused = attempted(by_onnxruntime, model, values)
    if "NOT_IMPLEMENTED" in refused:
        pytest.fail(f"{call}: {refused}")
    got, reason = attempted(on_vulkan, model, values) if expected or not constant else (expected, "")
    if bool(got) != bool(expected):
        pytest.fail(f"{call}: ONNX Runtime: {refused or 'a result'}; vkep: {reason or 'a result'}")
    if expected:
        tolerance = 2e-3 if expected[0].dtype == np.float16 else 1e-4
        try:
            assert_like(got, expected, tolerance, tolerance)
        except AssertionError as error:
            raise AssertionError(str(call)) from error
    return bool(expected)


def attempted(run: Callable[..., list[Array]], model: Any, values: dict[str, Any]) -> tuple[list[Array], str]:
    """The results, or why there are none."""
    refusals = (InvalidModelError, InvalidInputError) if run is on_vulkan else Exception
    try:
        return run(model, values), ""
    except refusals as error:
        return [], str(error)


def ramp(*shape: int, dtype: Any = np.float32) -> Array:
    return (np.arange(np.prod(shape, dtype=np.int64)) - 3).reshape(shape).astype(dtype)


def some(r: Random, low: int, high: int, count: int) -> list[int]:
    return [r.randint(low, high) for _ in range(count)]


def window(r: Random, rank: int) -> dict[str, Any]:
    """A window that may be larger than what it moves over, and lie in the padding."""
    drawn: dict[str, Any] = {}
    if r.random() < 0.6:
        drawn["strides"] = some(r, 1, 3, rank)
    if r.random() < 0.5:
        drawn["dilations"] = some(r, 1, 4, rank)
    if r.random() < 0.6:
        drawn["pads"] = some(r, 0, 2, 2 * rank)
    if r.random() < 0.2:
        drawn["auto_pad"] = r.choice(["VALID", "NOTSET"])
    return drawn


def pool(dtype: Any = np.float32, outputs: tuple[str, ...] = ("y",), **choices: int) -> Callable[[Random], Call]:
    def drawn(r: Random) -> Call:
        rank = r.choice([1, 1, 2])
        spatial = some(r, 0 if r.random() < 0.1 else 1, 5, rank)
        attributes = window(r, rank) | {"kernel_shape": some(r, 1, 3, rank), "ceil_mode": r.randint(0, 1)}
        attributes |= {name: r.randint(0, most) for name, most in choices.items()}
        return Call({"x": ramp(r.choice([1, 1, 2, 0]), 2, *spatial, dtype=dtype)}, (), attributes, outputs)

    return drawn


def convolution(r: Random) -> Call:
    rank = r.choice([1, 2])
    x, w = ramp(1, 2, *some(r, 1, 6, rank)), ramp(3, 2, *some(r, 1, 3, rank))
    return Call({"x": x, "w": w}, ("w",), window(r, rank))


def transposed_convolution(r: Random) -> Call:
    rank = r.choice([1, 2])
    attributes = window(r, rank)
    if r.random() < 0.4:  # below the strides: ONNX Runtime refuses what only the dilation allows (docs/operators.md)
        attributes["output_padding"] = [r.randrange(stride) for stride in attributes.get("strides", [1] * rank)]
    if r.random() < 0.6:
        attributes["output_shape"] = some(r, 0 if r.random() < 0.1 else 1, 10, r.choice([rank, rank, rank, rank + 2]))
    x, w = ramp(1, 1, *some(r, 1, 4, rank)), ramp(1, 1, *some(r, 1, 3, rank))
    return Call({"x": x, "w": w}, ("w",), attributes)


def resize(r: Random) -> Call:
    attributes: dict[str, Any] = {"mode": r.choice(["nearest", "linear", "cubic"])}
    modes = ["half_pixel", "asymmetric", "pytorch_half_pixel", "half_pixel_symmetric", *["align_corners"] * 3]
    attributes["coordinate_transformation_mode"] = r.choice(modes)
    if r.random() < 0.2:
        attributes[r.choice(["antialias", "exclude_outside"])] = 1
    given = r.choice([["scales"], ["sizes"], ["scales"], ["sizes"], ["scales", "sizes"], []])
    scales = [r.choice([0.4, 0.5, 0.6, 0.7, 1, 1.5, 2, 2.6]) for _ in "hw"]
    sizes = some(r, 0 if r.random() < 0.1 else 1, 7, 2)
    if r.random() < 0.05:
        scales[0] = r.choice([-1.0, 0.0])
    if r.random() < 0.5:
        attributes["axes"] = [2, 3]
        attributes["keep_aspect_ratio_policy"] = r.choice(["stretch", "stretch", "not_larger", "not_smaller"])
    else:
        scales, sizes = [1, 1, *scales], [1, 2, *sizes]
    inputs: dict[str, Array | None] = {"x": ramp(1, 2, r.randint(2, 5), r.randint(2, 5)), "roi": None}
    inputs["scales"] = np.array(scales, np.float32) if "scales" in given else None
    inputs["sizes"] = np.array(sizes, np.int64) if "sizes" in given else None
    return Call(inputs, tuple(given), attributes)


def pad(r: Random) -> Call:
    x = ramp(*some(r, 1, 4, r.choice([1, 2, 3])))
    amounts = [r.choice([-3, -2, -1, 0, 0, 1, 2, 3]) for _ in range(2 * x.ndim)]
    mode = r.choice(["constant", "constant", "edge", "reflect", "wrap"])
    kept = [n + min(b, 0) + min(e, 0) for n, b, e in zip(x.shape, amounts, amounts[x.ndim :], strict=False)]
    if mode != "constant" and 0 in kept:  # ONNX Runtime also refuses it where nothing is to be repeated
        mode = "constant"
    inputs: dict[str, Array | None] = {"x": x, "pads": np.array(amounts), "value": np.array(9, np.float32)}
    return Call(inputs, ("pads", "value"), {"mode": mode})


def split(r: Random) -> Call:
    outputs = ("a", "b", "c")[: r.randint(1, 3)]
    inputs: dict[str, Array | None] = {"x": ramp(r.randint(0, 7), 2)}
    attributes: dict[str, Any] = {"axis": r.choice([0, 0, 0, 1, -2, 2])}
    if r.random() < 0.5:
        inputs["split"] = np.array(some(r, -1 if r.random() < 0.2 else 0, 4, len(outputs)))
    if r.random() < 0.6:
        attributes["num_outputs"] = r.choice([0, *[len(outputs)] * 4])
    return Call(inputs, ("split",) if "split" in inputs else (), attributes, outputs)


def blocks(r: Random) -> Call:
    return Call({"x": ramp(r.randint(0, 2), *some(r, 0, 8, 3))}, (), {"blocksize": r.choice([1, 2, 2, 2, 3, 0, -1])})


def reduction(r: Random) -> Call:
    x = ramp(*some(r, 1, 3, r.choice([1, 2, 3])))
    axes = np.array([r.randint(-x.ndim - (r.random() < 0.2), x.ndim - 1) for _ in range(r.randint(1, 3))])
    return Call({"x": x, "axes": axes}, ("axes",), {"keepdims": r.randint(0, 1)})


def unpool(r: Random) -> Call:
    rank = r.choice([1, 2])
    x = ramp(2, 1, *some(r, 1, 2, rank))
    shape = [2, 1, *[2 * n + r.choice([0, 0, 1, 2, -1 if r.random() < 0.3 else 0]) for n in x.shape[2:]]]
    total = max(int(np.prod(shape)), x.size)
    places = np.array(r.sample(range(total), x.size)).reshape(x.shape)
    if r.random() < 0.2:
        places.flat[0] = r.choice([total, -1, *FAR])
    inputs = {"x": x, "i": places, "shape": np.array(shape)}
    return Call({**inputs}, ("shape",), {"kernel_shape": [2] * rank, "strides": [2] * rank})


def dynamic_range(r: Random) -> Call:
    low, high = sorted([r.choice([0.0, 0.0, -1.0, 3.0, -5.5]), r.choice([0.0, 0.0, 2.0, -0.5])])
    x = np.linspace(low, high, r.choice([0, 1, 2, 7]), dtype=np.float32)
    return Call({"x": x}, outputs=("y", "scale", "zero"))


def index(r: Random, extent: int) -> int:
    return r.choice([*range(-extent - 1, extent + 1), *FAR]) if r.random() < 0.5 else r.randrange(-extent, extent)


def gather(r: Random) -> Call:
    i = np.array([index(r, 3) for _ in range(r.randint(1, 2))])
    return Call({"x": ramp(3, 4), "i": i}, ("i",) if r.random() < 0.3 else ())


def gather_elements(r: Random) -> Call:
    return Call({"x": ramp(3, 4), "i": np.array([[index(r, 3)]])}, ("i",) if r.random() < 0.3 else ())


def coordinates(r: Random) -> tuple[Array, Array]:
    keys, lead = r.choice([0, 0, 1, 2]), r.choice([(), (1,), (3,), (2, 2), (0,)])
    i = np.zeros((*lead, keys), np.int64)
    for row in i.reshape(-1, keys) if keys else []:
        row[:] = [index(r, n) for n in (3, 4)[:keys]]
    return ramp(3, 4), i


def gather_nd(r: Random) -> Call:
    x, i = coordinates(r)
    return Call({"x": x, "i": i}, ("i",) if r.random() < 0.3 else ())


def gather_nd_of_batches(r: Random) -> Call:
    i = np.zeros((*r.choice([(3,), (3, 2), (3, 0), (2,)]), r.choice([0, 1])), np.int64)
    return Call({"x": ramp(3, 4), "i": i}, (), {"batch_dims": 1})


def scatter_nd(r: Random) -> Call:
    x, i = coordinates(r)
    updates = np.asarray(ramp(*i.shape[:-1], *x.shape[i.shape[-1] :]) * 10)
    reduction = r.choice(["add", "mul", "max", "min"]) if i[..., 0:1].size != 1 and i.shape[-1] else "none"
    if not i.shape[-1]:
        reduction = r.choice(["none", "none", "add", "mul", "max", "min"])
    return Call({"x": x, "i": i, "u": updates}, ("i",) if r.random() < 0.3 else (), {"reduction": reduction})


def scatter_elements(r: Random) -> Call:
    i = np.array([[index(r, 3)]])
    return Call({"x": ramp(3, 4), "i": i, "u": np.full((1, 1), 9, np.float32)}, ("i",) if r.random() < 0.3 else ())


def tensor_scatter(r: Random) -> Call:
    length, added = 4, r.randint(1, 4)
    at = np.array([r.choice([0, 1, 3, 5, 9, -1, *FAR]) for _ in range(2)])
    if r.random() < 0.3:
        at[:] = np.abs(at) % (length - added + 1)
    x, update = ramp(2, length, 1), ramp(2, added, 1) * 10
    return Call({"x": x, "u": update, "i": at}, (), {"axis": 1, "mode": r.choice(["linear", "circular", "circular"])})


def one_hot(r: Random) -> Call:
    i = np.array([index(r, 3) for _ in range(3)])
    return Call({"i": i, "depth": np.array(r.choice([3, 3, 1, 0, -1])), "v": np.array([0, 1], np.float32)}, ("depth",))


def slice_(r: Random) -> Call:
    ends = [n for n in FAR if n < 2**31 - 1]  # docs/operators.md: a greater one is not ONNX Runtime's front of the axis
    step = r.choice([1, -1, 2, -2, *FAR])
    start, end = (r.choice([*range(-5, 6), *(FAR if step > 0 or k == 0 else ends)]) for k in range(2))
    x = {"x": ramp(3, 4), "s": np.array([start]), "e": np.array([end]), "a": np.array([0]), "t": np.array([step])}
    return Call({**x}, ("s", "e", "a", "t"))


def top(r: Random) -> Call:
    return Call({"x": ramp(2, 4), "k": np.array([r.choice([0, 1, 4, 5, -1, *FAR])])}, ("k",), {}, ("y", "i"))


def cumulative(r: Random) -> Call:
    return Call({"x": ramp(3, 4), "axis": np.array(r.choice([*range(-3, 3), *FAR]))}, ("axis",))


def diagonal(r: Random) -> Call:
    return Call({"x": ramp(3, 4)}, (), {"k": r.choice([*range(-5, 6), *FAR])})


def triangle(r: Random) -> Call:
    k = np.array(r.choice([*range(-5, 6), *FAR]))
    return Call({"x": ramp(3, 4), "k": k}, ("k",) if r.random() < 0.5 else (), {"upper": r.randint(0, 1)})


def regions(r: Random) -> Call:
    boxes = np.array([[0, 0, 2, 2]], np.float32)
    inputs = {"x": ramp(2, 1, 4, 4), "r": boxes, "i": np.array([r.choice([0, 1, -1, 2, *FAR])])}
    return Call({**inputs}, (), {"output_height": 2, "output_width": 2})


def reversal(r: Random) -> Call:
    return Call(
        {"x": ramp(4, 1), "n": np.array([r.choice([0, 1, 4, 5, -1, *FAR])])}, (), {"batch_axis": 1, "time_axis": 0}
    )


DRAWN: dict[str, tuple[str, Callable[[Random], Call], int]] = {
    "MaxPool": ("MaxPool", pool(), 22),
    "MaxPool float64": ("MaxPool", pool(np.float64), 22),
    "MaxPool float16": ("MaxPool", pool(np.float16), 22),
    "MaxPool int8": ("MaxPool", pool(np.int8), 22),
    "MaxPool uint8": ("MaxPool", pool(np.uint8), 22),
    "AveragePool": ("AveragePool", pool(count_include_pad=1), 22),
    "AveragePool float16": ("AveragePool", pool(np.float16, count_include_pad=1), 22),
    "LpPool": ("LpPool", pool(), 22),
    "Conv": ("Conv", convolution, 22),
    "ConvTranspose": ("ConvTranspose", transposed_convolution, 22),
    "Resize": ("Resize", resize, 19),
    "Pad": ("Pad", pad, 19),
    "Split": ("Split", split, 18),
    "DepthToSpace": ("DepthToSpace", blocks, 13),
    "SpaceToDepth": ("SpaceToDepth", blocks, 13),
    "ReduceSum": ("ReduceSum", reduction, 13),
    "ReduceMax": ("ReduceMax", reduction, 18),
    "MaxUnpool": ("MaxUnpool", unpool, 22),
    "DynamicQuantizeLinear": ("DynamicQuantizeLinear", dynamic_range, 11),
    "Gather": ("Gather", gather, 13),
    "GatherElements": ("GatherElements", gather_elements, 13),
    "GatherND": ("GatherND", gather_nd, 13),
    "GatherND batches": ("GatherND", gather_nd_of_batches, 13),
    "ScatterND": ("ScatterND", scatter_nd, 18),
    "ScatterElements": ("ScatterElements", scatter_elements, 18),
    "TensorScatter": ("TensorScatter", tensor_scatter, 24),
    "OneHot": ("OneHot", one_hot, 11),
    "Slice": ("Slice", slice_, 13),
    "TopK": ("TopK", top, 11),
    "CumSum": ("CumSum", cumulative, 14),
    "EyeLike": ("EyeLike", diagonal, 9),
    "Trilu": ("Trilu", triangle, 14),
    "RoiAlign": ("RoiAlign", regions, 16),
    "ReverseSequence": ("ReverseSequence", reversal, 10),
}
#: of which no drawn call is refused
ALWAYS = ("DynamicQuantizeLinear", "EyeLike", "Trilu", "Slice")


@pytest.mark.gpu
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("name", DRAWN)
def test_drawn_calls(name: str, constant: bool) -> None:
    op_type, draw, opset = DRAWN[name]
    r = Random(name)
    results = [answered(op_type, draw(r), opset, constant) for _ in range(40)]
    assert any(results)
    assert all(results) == (name in ALWAYS)


@pytest.mark.gpu
def test_windows_without_elements() -> None:
    """Of each pool and type: the only window lies in the padding."""
    attributes = {"kernel_shape": [2], "dilations": [4], "pads": [1, 1]}
    for op_type, kinds in {"MaxPool": "fdebB", "AveragePool": "fe", "LpPool": "fe"}.items():
        for kind in kinds:
            assert answered(op_type, Call({"x": ramp(1, 2, 3, dtype=np.dtype(kind))}, (), attributes))
    x = ramp(1, 1, 3)
    assert answered("MaxPool", Call({"x": x}, (), attributes, ("y", "i")))
    assert answered("AveragePool", Call({"x": x}, (), attributes | {"count_include_pad": 1}))


def test_a_function_body_of_constants_keeps_scalars() -> None:
    """LinearAttention's body takes steps by scalar indices: with a constant query the first of them are folded."""
    inputs = {name: ramp(1, 2, 8) / 8 for name in ("query", "key", "value")}
    attributes: dict[str, Any] = {"q_num_heads": 2, "kv_num_heads": 2, "update_rule": "linear"}
    outputs = ("y", "state")
    plain = on_vulkan(model_of("LinearAttention", inputs, outputs=outputs, opset=27, **attributes), inputs)
    for constants in [("query",), ("key", "value")]:
        model = model_of("LinearAttention", inputs, outputs=outputs, constants=constants, opset=27, **attributes)
        assert_like(on_vulkan(model, inputs), plain)
