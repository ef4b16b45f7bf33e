"""Networks of images with norms of groups of channels, resampling and joined channels: what lies with channels last stays so."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkep
from tests.devices import GPU
from tests.lowering.test_channels_last import kernels_on_a_gpu, lying_last
from tools.passes.models import check_model
from vkep.kernels.reductions import norm

HALF = TensorProto.FLOAT16


class _Images:
    """A network of float16 images that grows by blocks; ``x`` is the last value, of ``c`` channels."""

    def __init__(self, rng: np.random.Generator, c: int = 16, size: int = 8, images: int = 2) -> None:
        self.rng = rng
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[TensorProto] = []
        self.c, self.size, self.images, self.made = c, size, images, 0
        self.x = "x"
        self.graph_input = helper.make_tensor_value_info("x", HALF, [images, c, size, size])

    def add(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        self.made += 1
        self.nodes.append(helper.make_node(op_type, list(inputs), [f"v{self.made}"], **attributes))
        return f"v{self.made}"

    def constant(self, array: np.ndarray) -> str:
        self.made += 1
        self.weights.append(numpy_helper.from_array(np.asarray(array), f"w{self.made}"))
        return f"w{self.made}"

    def half(self, *shape: int, near: float = 0.0) -> str:
        return self.constant((near + self.rng.standard_normal(shape) / 4).astype(np.float16))

    def conv(self, channels: int, kernel: int = 1) -> None:
        w = self.half(channels, self.c, kernel, kernel)
        self.x = self.add("Conv", self.x, w, self.half(channels), pads=[kernel // 2] * 4)
        self.c = channels

    def group_norm(self, groups: int, written: bool, scale: float = 1.0) -> None:
        """By InstanceNormalization (``written``), whose own factors are ``scale``, or by the operator."""
        if not written:
            factors = [self.half(self.c, near=1), self.half(self.c)]
            if self.rng.random() < 0.5:
                factors[int(self.rng.integers(2))] = self.means()
            self.x = self.add("GroupNormalization", self.x, *factors, num_groups=groups)
            return
        rows = self.add("Reshape", self.x, self.constant(np.array([0, groups, -1])))
        own = self.constant(np.full(groups, scale, np.float16)), self.constant(np.zeros(groups, np.float16))
        rows = self.add("InstanceNormalization", rows, *own)
        y = self.add("Reshape", rows, self.constant(np.array([self.images, self.c, self.size, self.size])))
        y = self.add("Mul", y, self.half(self.c, 1, 1, near=1))
        self.x = self.add("Add", *(y, self.half(self.c, 1, 1))[:: 1 if self.rng.random() < 0.5 else -1])

    def means(self) -> str:
        """A number of each channel, by a convolution of the first image's means."""
        y = self.add("Conv", self.add("GlobalAveragePool", self.x), self.half(self.c, self.c, 1, 1))
        y = self.add("Slice", y, self.constant(np.array([0])), self.constant(np.array([1])))
        return self.add("Reshape", y, self.constant(np.array([self.c])))

    def silu(self) -> None:
        self.x = self.add("Mul", self.x, self.add("Sigmoid", self.x))

    def resize(self, mode: str) -> None:
        scales = self.constant(np.array([1, 1, 2, 2], np.float32))
        self.x = self.add("Resize", self.x, "", scales, mode=mode, coordinate_transformation_mode="asymmetric")
        self.size *= 2

    def model(self) -> onnx.ModelProto:
        shape = [self.images, self.c, self.size, self.size]
        outputs = [helper.make_tensor_value_info(self.x, HALF, shape)]
        graph = helper.make_graph(self.nodes, "images", [self.graph_input], outputs, self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def unet(rng: np.random.Generator) -> onnx.ModelProto:
    """A residual block with norms as exporters write them, a step down and up, and the skipped image joined."""
    g = _Images(rng)
    g.conv(32, 3)
    skipped = g.x, g.c
    g.group_norm(4, written=True)
    g.silu()
    g.conv(32, 3)
    g.x = g.add("Add", g.x, skipped[0])
    g.x = g.add("Concat", g.x, skipped[0], axis=1)
    g.c += skipped[1]
    g.group_norm(8, written=False)
    g.silu()
    g.resize("nearest")
    g.conv(8, 3)
    return g.model()


@pytest.fixture
def short_rows(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Norms of rows of any length are by factors, as those of large images."""
    monkeypatch.setattr(norm, "_SHORT_ROW", 1)
    return monkeypatch


@pytest.mark.usefixtures("short_rows")
def test_images_move_in_and_out_alone() -> None:
    kernels = kernels_on_a_gpu(unet(np.random.default_rng(3)))
    assert kernels["conv_last.comp"] == 3 and kernels["moments.comp"] == kernels["moments_join.comp"] == 2
    assert kernels["pointwise_tile.comp"] <= 2, f"the input comes in, the result goes out; got {kernels}"
    # each norm with its activation, the parts of the Concat (the sum is one of them)
    assert kernels["pointwise.comp"] <= 4 + 2, kernels


def test_short_rows_of_a_device_without_matrices_have_one_kernel() -> None:
    assert norm.gains_by_factors(32, 1 << 12, "float16", GPU)
    assert not norm.gains_by_factors(32, 1 << 12, "float32", GPU)


@pytest.mark.usefixtures("short_rows")
@pytest.mark.parametrize("between", [(4, 16, 4, 8), (4, 8, 8, 8)], ids=["the same count", "fewer"])
def test_factors_of_other_channels_stay(between: tuple[int, ...]) -> None:
    """A Reshape between the factor and the shift: axis 1 has other channels of the norm before it."""
    g = _Images(np.random.default_rng(7))
    rows = g.add("Reshape", g.x, g.constant(np.array([0, 4, -1])))
    own = g.constant(np.ones(4, np.float16)), g.constant(np.zeros(4, np.float16))
    rows = g.add("InstanceNormalization", rows, *own)
    y = g.add("Reshape", rows, g.constant(np.array(between)))
    y = g.add("Mul", y, g.half(between[1], 1, 1, near=1))
    y = g.add("Reshape", y, g.constant(np.array([2, 16, 8, 8])))
    g.x = g.add("Add", y, g.half(16, 1, 1))
    report = check_model(g.model(), GPU, {})
    assert report.islands and not report.differences, "\n".join(map(str, report.differences))


@pytest.mark.usefixtures("short_rows")
@pytest.mark.parametrize("seed", range(12))
def test_passes_keep_the_results(seed: int) -> None:
    rng = np.random.default_rng(seed)
    g = _Images(rng, c=int(rng.choice([8, 16])), size=int(rng.choice([4, 6])), images=int(rng.choice([1, 2])))
    g.conv(16, 3)
    kept: list[tuple[str, int, int]] = []
    counts: Counter[str] = Counter()
    for _ in range(7):
        block = str(
            rng.choice(["conv", "norm", "operator", "factors", "instance", "resize", "concat", "sum", "keep", "silu"])
        )
        counts[block] += 1
        if block == "conv":
            g.conv(int(rng.choice([8, 16, 32])), int(rng.choice([1, 3])))
        elif block in ("norm", "operator", "factors"):
            groups = int(rng.choice([n for n in (1, 2, 4, 8) if g.c % n == 0]))
            g.group_norm(groups, written=block != "operator", scale=1.5 if block == "factors" else 1.0)
        elif block == "instance":
            g.x = g.add("InstanceNormalization", g.x, g.half(g.c, near=1), g.half(g.c))
        elif block == "resize" and g.size < 12:
            g.resize(str(rng.choice(["nearest", "linear"])))
        elif block == "silu":
            g.silu()
        elif block == "keep":
            kept.append((g.x, g.c, g.size))
        else:
            same = [(x, c) for x, c, size in kept if size == g.size]
            if same and block == "concat":
                parts = [(g.x, g.c), *same[-2:]][:: int(rng.choice([1, -1]))]
                g.x, g.c = g.add("Concat", *(x for x, _ in parts), axis=1), sum(c for _, c in parts)
            elif same and block == "sum" and same[-1][1] == g.c:
                g.x = g.add("Add", g.x, same[-1][0])
    g.conv(8, 3)
    report = check_model(g.model(), GPU, {}, seed)
    assert report.islands and not report.differences, "\n".join(map(str, report.differences))


def test_results(short_rows: pytest.MonkeyPatch) -> None:
    """On this device, whose 1x1 convolutions are taken for products of channels that lie last, and by the other layout."""
    rng = np.random.default_rng(5)
    g = _Images(rng)
    g.conv(32)
    skipped = g.x
    g.group_norm(4, written=True)
    g.silu()
    g.resize("linear")
    g.conv(32)
    g.group_norm(8, written=False)
    g.x = g.add("Concat", g.x, g.x, axis=1)
    g.c = 64
    g.group_norm(16, written=True)
    g.conv(8)
    assert skipped
    model, x = g.model(), rng.standard_normal((2, 16, 8, 8)).astype(np.float16)
    with vkep.InferenceSession(model, fallback="error") as session:
        [expected] = session.run(None, {"x": x})
    short_rows.setattr("vkep.ops.normalization.gains_by_factors", lambda *_: True)
    with lying_last(), vkep.InferenceSession(model, fallback="error") as session:
        [island] = session.islands()
        sources = Counter(island.plan.pipelines[d.pipeline].shader.source for d in island.plan.dispatches)
        [found] = session.run(None, {"x": x})
    assert sources["moments_join.comp"] == 3 and not sources["norm.comp"]
    np.testing.assert_allclose(found.astype(np.float32), expected.astype(np.float32), rtol=1e-2, atol=2e-2)
