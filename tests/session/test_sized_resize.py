"""Resize to sizes that change: one plan, whose tables of positions and weights kernels make, against a session for each signature
alone (bit for bit) and ONNX Runtime's CPU provider; and models of the kind that has it: a feature pyramid and a U-Net.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import pytest

from tests.session.models import model
from tools.ort_cpu import cpu_session
from vkep import InferenceSession

Open = Callable[..., InferenceSession]

HEAD = """
    shape = Shape(z)
    two = Constant <value_ints: ints = [2]> ()
    four = Constant <value_ints: ints = [4]> ()
    to = Slice(shape, two, four)
    none = Constant <value_floats: floats = []> ()
"""


def resized(name: str, attributes: str, x: str = "x", roi: str = "none") -> str:
    attributes = attributes.replace("nearest ", 'mode: string = "nearest", ').replace(
        "linear ", 'mode: string = "linear", '
    )
    attributes = attributes.replace("cubic ", 'mode: string = "cubic", ').replace(
        "by ", "coordinate_transformation_mode: string = "
    )
    return f"{name} = Resize <axes: ints = [2, 3], {attributes}> ({x}, {roi}, none, to)"


#: nodes that make "a", "b" and "c" of "x", as large as "z"
CASES: dict[str, Sequence[str]] = {
    "corners": [
        resized("a", 'linear by "align_corners"'),
        resized("b", 'nearest by "align_corners", nearest_mode: string = "ceil"'),
        resized("c", 'cubic by "align_corners"'),
    ],
    "centres": [
        resized("a", 'linear by "pytorch_half_pixel"'),
        resized("b", 'nearest by "half_pixel", nearest_mode: string = "round_prefer_ceil"'),
        resized("c", 'cubic by "half_pixel", exclude_outside: int = 1'),
    ],
    "old": [
        resized("a", 'linear by "asymmetric"'),
        resized("b", 'nearest by "asymmetric", nearest_mode: string = "floor"'),
        resized("c", 'linear by "half_pixel_symmetric"'),
    ],
    "antialiased": [
        resized("a", 'linear by "half_pixel", antialias: int = 1'),
        resized("b", 'cubic by "half_pixel", antialias: int = 1, exclude_outside: int = 1'),
        resized("c", 'cubic by "half_pixel", antialias: int = 1'),
    ],
    "cropped": [
        "roi = Constant <value_floats: floats = [0.25, -0.125, 0.875, 1.25]> ()",
        resized("a", 'linear by "tf_crop_and_resize", extrapolation_value: float = 7.0', roi="roi"),
        resized("b", 'nearest by "tf_crop_and_resize", extrapolation_value: float = 7.0', roi="roi"),
        resized("c", 'cubic by "tf_crop_and_resize", extrapolation_value: float = 7.0', roi="roi"),
    ],
    "of integers": [
        "i = Cast <to: int = 7> (x)",
        resized("a", 'nearest by "half_pixel"', "i"),
        "j = Cast <to: int = 6> (x)",
        resized("b", 'nearest by "align_corners"', "j"),
        resized("c", 'nearest by "half_pixel", keep_aspect_ratio_policy: string = "not_larger"'),
    ],
}  # fmt: skip


def drawn(seed: int) -> list[tuple[int, ...]]:
    """Heights and widths of an image and of the result; at the end with 1, and with one that stays."""
    draw = random.Random(seed)
    sizes = [tuple(draw.randint(4, 30) for _ in range(4)) for _ in range(4)]
    return [(8, 6, 12, 9), (9, 7, 20, 5), *sizes, (6, 1, 7, 4), (5, 8, 5, 16)]


@pytest.mark.parametrize("case", CASES)
def test_one_plan_gives_the_results_of_a_plan_for_each_size(open_session: Open, case: str) -> None:
    made = {"of integers": ("int64", "int32", "float")}.get(case, ("float",) * 3)
    outputs = ", ".join(f"{kind}[n,c,{name},r] {name}" for kind, name in zip(made, "abc", strict=True))
    proto = model(
        f"g (float[n,c,h,w] x, float[k,l,p,q] z) => ({outputs}) {{ {HEAD} {' '.join(CASES[case])} }}", opset=19
    )
    data = proto.SerializeToString()
    session = open_session(data)
    plans: list[int] = []
    for h, w, p, q in drawn(len(case)):
        given = values(len(plans), x=(1, 3, h, w), z=(1, 1, p, q))
        results = session.run(None, given)
        for got, alone in zip(results, open_session(data).run(None, given), strict=True):
            assert got.dtype == alone.dtype and got.shape == alone.shape
            np.testing.assert_allclose(got, alone, rtol=1e-6, atol=4e-6)  # the order of axes may be another
        plans.append(planned(session))
    assert plans[5] <= 3 and plans[-1] <= 5


@pytest.mark.parametrize("scale", [0.025, 0.0033333334, 300.0, 1.7])
def test_scales_that_are_no_dyadic_fractions(open_session: Open, scale: float) -> None:
    """The integers of a place by float32's nearest number of 1/40 are too large for kernels."""
    text = f"""g (float[1,2,n] x) => (float[1,2,m] y) {{ s = Constant <value_floats: floats = [1.0, 1.0, {scale}]> ()
        y = Resize <mode: string = "linear", coordinate_transformation_mode: string = "half_pixel"> (x, , s) }}"""
    data = model(text, opset=18).SerializeToString()
    session, peer = open_session(data), cpu_session(data)
    for count in (6, 9, 7, 30, 22):
        x = np.random.default_rng(count).random((1, 2, round(count / min(scale, 1))), np.float32)
        [got] = session.run(None, {"x": x})
        np.testing.assert_allclose(got, peer.run(None, {"x": x})[0], rtol=1e-5, atol=1e-5, strict=True)
    assert planned(session) <= 3


PYRAMID = """g (float[1,3,h,w] x) => (float[1,8,a,b] p1, float[1,8,c,d] p2, float[1,8,e,f] p3) {
    c1 = Conv <pads: ints = [1,1,1,1], strides: ints = [2,2]> (x, k1)
    c2 = Conv <pads: ints = [1,1,1,1], strides: ints = [2,2]> (c1, k2)
    c3 = Conv <pads: ints = [1,1,1,1], strides: ints = [2,2]> (c2, k2)
    none = Constant <value_floats: floats = []> ()
    begin = Constant <value_ints: ints = [0]> ()
    two = Constant <value_ints: ints = [2]> ()
    end = Constant <value_ints: ints = [4]> ()
    p3 = Conv (c3, k3)
    s3 = Shape(p3)
    lead = Slice(s3, begin, two)
    l2 = Conv (c2, k3)
    s2 = Shape(l2)
    at2 = Slice(s2, two, end)
    to2 = Concat <axis: int = 0> (lead, at2)
    u2 = Resize <mode: string = "nearest", coordinate_transformation_mode: string = "asymmetric", nearest_mode: string = "floor">
        (p3, none, none, to2)
    p2 = Add(l2, u2)
    l1 = Conv (c1, k3)
    s1 = Shape(l1)
    at1 = Slice(s1, two, end)
    to1 = Concat <axis: int = 0> (lead, at1)
    u1 = Resize <mode: string = "nearest", coordinate_transformation_mode: string = "asymmetric", nearest_mode: string = "floor">
        (p2, none, none, to1)
    p1 = Add(l1, u1)
}"""
U_NET = """g (float[1,3,h,w] x) => (float[1,4,a,b] y) {
    none = Constant <value_floats: floats = []> ()
    begin = Constant <value_ints: ints = [0]> ()
    two = Constant <value_ints: ints = [2]> ()
    end = Constant <value_ints: ints = [4]> ()
    d1 = Conv <pads: ints = [1,1,1,1]> (x, k1)
    m1 = MaxPool <kernel_shape: ints = [2,2], strides: ints = [2,2]> (d1)
    d2 = Conv <pads: ints = [1,1,1,1]> (m1, k2)
    m2 = MaxPool <kernel_shape: ints = [2,2], strides: ints = [2,2]> (d2)
    d3 = Conv <pads: ints = [1,1,1,1]> (m2, k2)
    s2 = Shape(d2)
    s3 = Shape(d3)
    lead = Slice(s3, begin, two)
    at2 = Slice(s2, two, end)
    to2 = Concat <axis: int = 0> (lead, at2)
    u2 = Resize <mode: string = "linear", coordinate_transformation_mode: string = "align_corners"> (d3, none, none, to2)
    j2 = Concat <axis: int = 1> (d2, u2)
    e2 = Conv <pads: ints = [1,1,1,1]> (j2, k4)
    s1 = Shape(d1)
    at1 = Slice(s1, two, end)
    to1 = Concat <axis: int = 0> (lead, at1)
    u1 = Resize <mode: string = "linear", coordinate_transformation_mode: string = "align_corners"> (e2, none, none, to1)
    j1 = Concat <axis: int = 1> (d1, u1)
    y = Conv (j1, k5)
}"""
WEIGHTS = {"k1": (8, 3, 3, 3), "k2": (8, 8, 3, 3), "k3": (8, 8, 1, 1), "k4": (8, 16, 3, 3), "k5": (4, 16, 1, 1)}


@pytest.mark.parametrize("text", [PYRAMID, U_NET], ids=["pyramid", "u-net"])
def test_images_of_any_size_through_a_model_that_upsamples_to_its_skips(open_session: Open, text: str) -> None:
    proto = model(text, opset=13)
    weights = values(1, **{name: shape for name, shape in WEIGHTS.items() if f"{name})" in text})
    proto.graph.initializer.extend([onnx.numpy_helper.from_array(w / 9, name) for name, w in weights.items()])
    session = open_session(proto.SerializeToString())
    peer = cpu_session(proto)
    draw = random.Random(5)
    plans: list[int] = []
    for h, w in [(33, 40), (47, 38), *[(draw.randint(20, 70), draw.randint(20, 70)) for _ in range(10)]]:
        given = values(h, x=(1, 3, h, w))
        for got, expected in zip(session.run(None, given), peer.run(None, given), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-3)
        plans.append(planned(session))
    assert plans[3] == plans[-1] <= 4


def values(seed: int, **shapes: tuple[int, ...]) -> dict[str, Any]:
    draw = np.random.default_rng(seed)
    return {name: draw.normal(0, 3, shape).astype(np.float32) for name, shape in shapes.items()}


def planned(session: InferenceSession) -> int:
    return session._parts.graph.plan_count
