"""Products of the same rows by several weights are one product: results, and which are taken and which are not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from gpu_shared.capabilities import DeviceCapabilities
from tests.lowering.drawn_products import draw
from tests.session.models import model
from tools.ort_cpu import cpu_session
from tools.passes.check import watched
from tools.passes.models import check_model
from tools.plan_devices import DEVICES
from tools.size_conditions import declared
from vkep import InferenceSession
from vkep.graph import load_model
from vkep.graph.weights import ArrayWeight, JoinedWeight
from vkep.ir.ops import KernelOp
from vkep.ir.program import IslandStep
from vkep.kernels.tuning import Trial
from vkep.passes import joined_products
from vkep.passes.rewrite import Changes, Graph
from vkep.plan.records import Plan
from vkep.session.planning import saved
from vkep.sizes import Trace

Open = Callable[..., InferenceSession]
GPU = DEVICES["gpu with cooperative matrices"]
DRAWN = range(24)


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The columns of each product that was joined, of each change."""
    found: list[list[int]] = []
    inner = joined_products._changes

    def changes(products: Sequence[Any], op: KernelOp, graph: Graph) -> Changes | None:
        made = inner(products, op, graph)
        if made is not None:
            found.append([product.problem.n for product in products])
        return made

    monkeypatch.setattr(joined_products, "_changes", changes)
    return found


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products are joined on any device, whatever kernel computes them."""
    monkeypatch.setattr(joined_products, "no_cooperative_tile", lambda *given: "")
    monkeypatch.setattr(joined_products, "_computed_alike", lambda *given: True)


def _expected(proto: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    return cpu_session(proto).run(None, dict(feeds))


@pytest.mark.parametrize("alike", [False, True], ids=["drawn", "alike"])
@pytest.mark.parametrize("seed", DRAWN)
def test_the_operations_of_a_drawn_graph(joined: list[list[int]], seed: int, alike: bool) -> None:
    """Interpreted for a GPU with cooperative matrices, before and after each pass, at fixed and at open sizes."""
    proto, feeds, text = draw(seed, alike)
    report = check_model(proto, GPU, feeds)
    assert not report.differences, f"{report.differences[0]}\n{text}"
    assert report.islands and (joined or not alike), text
    with watched(feeds) as sized:
        case = declared(load_model(proto.SerializeToString()), {"length": feeds["x"].shape[1]})
        case.with_trace(Trace(), GPU)
    assert not sized.differences, f"{sized.differences[0]}\n{text}"


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("alike", [False, True], ids=["drawn", "alike"])
@pytest.mark.parametrize("seed", DRAWN[::3])
def test_a_drawn_graph(open_session: Open, joined: list[list[int]], seed: int, alike: bool) -> None:
    """By kernels, at three lengths through one session, against ONNX Runtime."""
    proto, feeds, text = draw(seed, alike)
    session = open_session(proto, fallback="error")
    for length in (feeds["x"].shape[1], 3, 17):
        x = {"x": np.resize(feeds["x"], (feeds["x"].shape[0], length, feeds["x"].shape[2]))}
        if not alike and length != feeds["x"].shape[1] and any("matrix" in part for part in text):
            continue
        for got, expected in zip(session.run(None, x), _expected(proto, x), strict=True):
            np.testing.assert_allclose(got, expected, rtol=4e-3, atol=4e-3 * np.abs(expected).max(), err_msg=str(text))
    assert joined or not alike, text


TAKEN = (
    "q = MatMul(h, v) k = MatMul(h, w) a = Transpose<perm=[1,0]>(q) b = Transpose<perm=[1,0]>(k) y = Neg(a) z = Neg(b)"
)
SHAPES = {"v": (32, 64), "w": (32, 128)}
DENSE = "a = LpNormalization(q) s = Neg(a)"
NOT_TAKEN = {
    "a weight that is read elsewhere": TAKEN + " s = MatMul(r, w)",
    "one weight twice": TAKEN.replace("w)", "v)") + " s = Neg(r)",
    "a result that is an output": TAKEN.replace("q = ", "s = ").replace("(q)", "(s)"),
    "results that an operator reads densely": TAKEN.replace("Neg(a)", "Neg(q)").replace("a = Transpose<perm=[1,0]>(q)", DENSE),
    "rows of a matrix": TAKEN.replace("MatMul(h, w)", "MatMul(r, w)") + " s = Neg(r)",
    "other expressions": TAKEN.replace("(q)", "(e)").replace("a =", "e = Tanh(q) a =") + " s = Neg(r)",
    "a factor that a run has": TAKEN.replace("MatMul(h, w)", "MatMul(h, p)") + " s = Neg(r)",
}  # fmt: skip


def _model(nodes: str, kind: str = "float16", n: Mapping[str, tuple[int, int]] = SHAPES) -> onnx.ModelProto:
    made = "y, z" + (", s" if " s = " in f" {nodes}" else "")
    typed = ", ".join(f"{kind}[a{k},b{k}] {name}" for k, name in enumerate(made.split(", ")))
    inputs = f"{kind}[40,32] x, {kind}[40,32] r, {kind}[32,128] p"
    proto = model(f"g ({inputs}) => ({typed}) {{ h = Neg(x) {nodes} }}", opset=20)
    rng = np.random.default_rng(5)
    for name, shape in n.items():
        values = rng.normal(0, 0.2, shape).astype("float16" if kind == "float16" else "float32")
        proto.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    return proto


def _lowered(proto: onnx.ModelProto, caps: DeviceCapabilities = GPU) -> list[Plan]:
    case = declared(load_model(proto.SerializeToString()), {})
    return [step.plan for step in case.lowered(case.sizes, caps).steps if isinstance(step, IslandStep)]


def test_the_device_holds_the_joined_weights_alone(joined: list[list[int]]) -> None:
    proto = _model(TAKEN)
    [plan] = _lowered(proto)
    assert joined == [[64, 128]]
    assert [(c.label, c.nbytes) for c in plan.constants] == [("v + w", 2 * 32 * 192)]
    product = next(d for d in plan.dispatches if "MatMul" in d.label)
    assert product.candidate == "cooperative" and len(product.label.split(" + ")) == 2, "reports name both nodes"


@pytest.mark.parametrize("what", NOT_TAKEN)
def test_not_taken(joined: list[list[int]], what: str) -> None:
    _lowered(_model(NOT_TAKEN[what]))
    assert not joined


@pytest.mark.parametrize(
    ("changes", "kind", "columns"),
    [
        ({"features": GPU.features - {"cooperative_matrix"}}, "float16", 128),
        ({}, "float", 128),
        ({}, "float16", 124),  # columns that are no whole vectors
    ],
    ids=["without matrices", "float32", "columns"],
)
def test_other_devices_types_and_columns(
    joined: list[list[int]], changes: dict[str, Any], kind: str, columns: int
) -> None:
    _lowered(_model(TAKEN, kind, {"v": (32, 64), "w": (32, columns)}), replace(GPU, **changes))
    assert not joined


def test_where_another_kernel_computes_one_product_they_stay(
    joined: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = joined_products._kernel
    monkeypatch.setattr(
        joined_products, "_kernel", lambda problem, *given: "tiled" if problem.n == 192 else inner(problem, *given)
    )
    _lowered(_model(TAKEN))
    assert not joined


@pytest.mark.parametrize("rows", [1, 8, 40])
def test_few_rows_share_the_weights_of_many(joined: list[list[int]], rows: int) -> None:
    """Else a session of both would hold the weights twice."""
    nodes = "h = Neg(x) q = MatMul(h, v) k = MatMul(h, w) y = MatMul(q, e) z = MatMul(k, f)"
    keys = []
    for m in (rows, 40):
        proto = model(f"g (float16[{m},32] x) => (float16[{m},8] y, float16[{m},8] z) {{ {nodes} }}", opset=20)
        proto.graph.initializer.extend(_model("", n={**SHAPES, "e": (64, 8), "f": (128, 8)}).graph.initializer)
        [plan] = _lowered(proto)
        keys.append({constant.key for constant in plan.constants})
    assert len(joined) == 2 and keys[0] == keys[1] and len(keys[0]) == 3


@pytest.mark.parametrize("biases", [(True, True, True), (True, False, True), (False, False, False)])
def test_attention_reads_queries_keys_and_values_in_place(biases: Sequence[bool]) -> None:
    """Three dispatches: of the input, of one product, of attention (Whisper's keys have no bias)."""
    part = "{0}p = MatMul(h, {0}w) {0}b = {1} {0}s = Reshape({0}b, shape) {0} = Transpose<perm=[0,2,{2}]>({0}s)"
    parts = [
        part.format(name, f"Add({name}p, {name}c)" if bias else f"Identity({name}p)", "3,1" if name == "k" else "1,3")
        for name, bias in zip("qkv", biases, strict=True)
    ]
    shape = "<int64[4] shape = {2,64,4,16}>"
    proto = model(
        f"g (float16[2,64,64] x) => (float16[2,4,64,16] y) {shape} {{ h = Neg(x) {' '.join(parts)} "
        "s = MatMul(q, k) d = Mul(s, scale) p = Softmax(d) y = MatMul(p, v) }",
        opset=20,
    )
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array(0.25, np.float16), "scale"))
    rng = np.random.default_rng(8)
    for name in "qkv":
        for kind, dims in (("w", (64, 64)), ("c", (64,))):
            values = rng.normal(0, 0.1, dims).astype(np.float16)
            proto.graph.initializer.append(onnx.numpy_helper.from_array(values, f"{name}{kind}"))
    [plan] = _lowered(proto)
    assert [d.candidate for d in plan.dispatches] == ["", "cooperative", "cooperative"]
    assert plan.pipelines[plan.dispatches[2].pipeline].shader.source == "attention_coop.comp"
    assert dict(plan.pipelines[plan.dispatches[2].pipeline].spec)["VECTORS"] == 1


@pytest.mark.usefixtures("everywhere")
def test_saved_plans_and_external_weights(
    open_session: Open, joined: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved, "cache_folder", lambda *parts: tmp_path.joinpath(*parts))
    monkeypatch.setattr(saved, "_LEAST_BYTES", 0)
    proto, feeds = _model(TAKEN), {"x": np.ones((40, 32), np.float16), "r": np.ones((40, 32), np.float16)}
    feeds["p"] = np.ones((32, 128), np.float16)
    expected = _expected(proto, feeds)
    path = tmp_path / "m.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="m.data", size_threshold=0)
    for opened in (1, 2):
        session = open_session(path)
        for got, want in zip(session.run(None, feeds), expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-3)
        assert len(joined) == 1, f"session {opened} plans once"
    assert list((tmp_path / "plans").glob("*.vkepplan"))


@pytest.mark.usefixtures("everywhere")
def test_tuning_knows_the_joined_product(joined: list[list[int]]) -> None:
    trial = Trial()
    with InferenceSession(_model(TAKEN), tuned=trial):
        assert joined and {labels for asked in trial.asked.values() for labels in asked.labels} == {
            "MatMul_1 + MatMul_2"
        }


def test_a_joined_weight() -> None:
    rng = np.random.default_rng(1)
    arrays = [rng.normal(size=(3, n)).astype(np.float16) for n in (2, 4)]
    sources = [ArrayWeight(name, array) for name, array in zip("ab", arrays, strict=True)]
    first, second, other = (
        JoinedWeight(sources, [a.shape for a in arrays], 1, lambda: arrays, tag) for tag in ("t", "t", "u")
    )
    np.testing.assert_array_equal(first.array(), np.concatenate(arrays, 1))
    assert first.key == second.key != other.key and first.nbytes == first.array().nbytes
    assert (first.shape, first.name, first.in_file) == ((3, 6), "a + b", False)
