"""Passes keep the results of operations, by the interpreter's opinion; passes that are broken on purpose are named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import onnx.parser
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from tests.nightly import nightly_but
from tools.fuzz.networks.compare import judge_passes
from tools.fuzz.networks.graph import Network
from tools.fuzz.networks.strategy import networks
from tools.passes.bound import bound
from tools.passes.check import Report, islands, watched
from tools.passes.models import case_values, check_case, check_model, check_planned, node_cases, planned
from tools.plan_cases import PlanCase
from tools.plan_devices import DEVICES
from tools.size_conditions import declared
from tools.size_conditions import node_cases as sized_cases
from vkep.dtypes import DTYPES
from vkep.graph import load_model
from vkep.ir import expr as ex
from vkep.ir.ops import Pointwise
from vkep.ir.tensor import Storage, Tensor
from vkep.passes import attention, emit, fuse, layout, pipeline
from vkep.passes.rewrite import Goal, Graph
from vkep.sizes import Trace

#: of the catalog, the models that take longest
_LARGE = ("bert", "gpt2step", "mobilenetv2", "resnet", "elem16m", "op_add_4m", "matmul1024", "op_conv7x7")


def _model(text: str, **weights: np.ndarray) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 18]> g {text}')
    model.graph.initializer.extend(numpy_helper.from_array(a, name) for name, a in weights.items())
    return model


def _random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def _holds(report: Report) -> None:
    assert not report.differences, "\n".join(map(str, report.differences))


def _marks(name: str, by_default: bool) -> list[pytest.MarkDecorator]:
    """Each model without sizes runs for one device by default, but for two that take a minute."""
    by_default = by_default and "with sizes" not in name  # node cases have sizes by default
    by_default = by_default and not name.startswith(("resnet18", "elem16m"))
    slow = [pytest.mark.slow] if name.startswith(_LARGE) or "in place" in name else []
    return slow if by_default else [*slow, pytest.mark.nightly]


@pytest.mark.parametrize(
    ("case", "device"),
    [
        pytest.param(case, device, id=f"{case.name}-{device}", marks=_marks(case.name, k % len(DEVICES) == j))
        for k, case in enumerate(planned())
        for j, device in enumerate(DEVICES)
    ],
)
def test_models(case: PlanCase, device: str) -> None:
    report = check_planned(case, DEVICES[device])
    _holds(report)
    assert report.islands


@pytest.mark.slow
@pytest.mark.parametrize("device", nightly_but(("gpu with cooperative matrices",), DEVICES))
def test_node_cases(device: str) -> None:
    total = Report()
    for name, case in node_cases():
        report = check_case(case, DEVICES[device])
        assert not report.differences, f"{name}: {report.differences[0]}"
        total.islands, total.compared = total.islands + report.islands, total.compared + report.compared
        total.not_interpreted += report.not_interpreted
    assert total.islands > 1500 and total.compared > 1200


@pytest.mark.parametrize("text", ["conv", "attention_4d_gqa", "maxpool", "resize", "scatter", "layer_norm"])
def test_some_node_cases(text: str) -> None:
    compared = 0
    for name, case in node_cases(text):
        report = check_case(case, DEVICES["gpu with cooperative matrices"])
        assert not report.differences, f"{name}: {report.differences[0]}"
        compared += report.compared
    assert compared


@pytest.mark.parametrize("kind", ["float32", "mixed"])
@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_random_graphs(kind: str, data: st.DataObject) -> None:
    verdict = judge_passes(data.draw(networks(kind)))
    assert verdict.kind == "right", verdict.text


def test_random_networks_show_a_broken_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuse, "_in_compute_type", lambda inner, out: ex.Expr("float", "neg", (inner,)))
    verdicts = []

    @settings(max_examples=8, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(networks("float32"))
    def check(network: Network) -> None:
        verdicts.append(judge_passes(network))

    check()
    assert any("pointwise fusion: " in verdict.text for verdict in verdicts)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("axis", [1, 2, 3])
@pytest.mark.parametrize("images", [1, 2])
def test_a_convolution_into_a_concat(axis: int, images: int, device: str) -> None:
    """Its kernels write images whose channels are dense: of the axes that a Concat joins, only the channels' leaves them so."""
    shape = [images, 4, 6, 6]
    shape[axis] *= 2
    text = f"(float[{images},3,6,6] x) => (float{shape} y) {{ a = Conv(x, w) b = Conv(x, w) y = Concat<axis={axis}>(a, b) }}"
    _holds(check_model(_model(text, w=_random(4, 3, 1, 1)), DEVICES[device], {}))


def test_expected_results_are_compared() -> None:
    [(_, case)] = [(name, case) for name, case in node_cases("test_gemm_all_attributes")]
    inputs, expected = case_values(case)
    caps = DEVICES["cpu"]
    assert check_model(case.model(), caps, inputs, expected=expected).compared == 1
    wrong = {name: value + np.float32(0.5) for name, value in expected.items()}
    [difference] = check_model(case.model(), caps, inputs, expected=wrong).differences
    assert difference.name == "lowering" and "MatMulProblem" in difference.touched[0]


def _broken(
    name: str, model: onnx.ModelProto, module: Any, attribute: str, to: Any, sized: bool = False
) -> tuple[str, tuple[str, ...]]:
    """The pass that is named for a model whose passes are sound, and the operations that it made. ``sized``: its plan has
    sizes."""
    case = PlanCase("model", lambda: declared(load_model(model.SerializeToString()), {}), sized=True)

    def check() -> Report:
        caps = DEVICES["gpu with cooperative matrices"]
        return check_planned(case, caps) if sized else check_model(model, caps, {})

    _holds(check())
    with mock.patch.object(module, attribute, to):
        [difference] = check().differences
    assert difference.name == name
    assert difference.touched or name == "emission"
    return difference.what, difference.touched


CONV = "(float16[1,8,6,6] x) => (float16[1,8,6,6] y) { a = Conv<pads=[1,1,1,1]>(x, w) b = Add(a, x) y = Conv(b, v) }"


def test_a_layout_with_height_and_width_exchanged_is_named() -> None:
    model = _model(CONV, w=_random(8, 8, 3, 3).astype(np.float16), v=_random(8, 8, 1, 1).astype(np.float16))
    what, _ = _broken("layout", model, layout, "channels_first", lambda x: x.transpose((0, 3, 2, 1)))
    assert "'y'" in what


@pytest.mark.parametrize("sized", [False, True])
def test_fusion_that_loses_an_operand_is_named(sized: bool) -> None:
    def inner(producer: Pointwise, *args: Any) -> ex.Expr | None:
        made = whole(producer, *args)
        return made.args[0] if made is not None and made.op == "sub" else made

    whole = fuse._inner
    shape = "[n,m]" if sized else "[2,3]"
    model = _model(f"(float{shape} x, float{shape} z) => (float{shape} y) {{ a = Sub(x, z) y = Mul(a, x) }}")
    what, touched = _broken("pointwise fusion", model, fuse, "_inner", inner, sized)
    assert "6 of 6 elements differ" in what
    assert len(touched) == 1 and "mul(port x" in touched[0]


def test_only_operations_that_a_pass_made_are_named_with_sizes() -> None:
    text = (
        "(float[n,m] x, float[n,m] z) => (float[n,m] y) { a = Sub(x, z) b = Softmax(a) c = Softmax(b) y = Mul(c, x) }"
    )
    case = declared(load_model(_model(text).SerializeToString()), {"n": 2, "m": 3})
    with watched() as report:
        case.with_trace(Trace(), DEVICES["cpu"])
    assert (report.islands, report.passes, report.differences) == (1, 1, [])  # fusion


def test_sizes_become_numbers_and_record_no_condition() -> None:
    text = "(float[n,m] x) => (float[m,k] y) { s = Size(x) r = CastLike(s, x) t = Transpose(x) y = Mul(t, r) }"
    case, trace = declared(load_model(_model(text).SerializeToString()), {"n": 2, "m": 3}), Trace()
    with islands() as found:
        case.with_trace(trace, DEVICES["cpu"])
    (ops, goal), conditions = found[0], dict(trace.conditions)
    for at in (None, [4, 5]):
        (cast, product), made = bound((ops, goal), at)
        n, m = at or (2, 3)
        assert isinstance(cast, Pointwise) and isinstance(product, Pointwise)
        assert [node.value for node in cast.expr.args[0].args if isinstance(node, ex.Const)] == [n * m]
        assert product.inputs[0] == Tensor(product.out.dtype, (m, n), product.inputs[0].storage, (1, m))
        assert product.out.storage is made.results[0].storage and product.out.storage.nbytes == n * m * 4
    assert trace.conditions == conditions
    plain = (ops[:0], DEVICES["cpu"])
    assert bound(plain) is plain


@pytest.mark.parametrize(
    "text", ["conv_with_strides", "layer_normalization_2d", "attention_4d_gqa_softcap", "resize_upsample_sizes"]
)
def test_some_node_cases_with_sizes(text: str) -> None:
    caps, islands = DEVICES["gpu with cooperative matrices"], 0
    for name, case in sized_cases(text):
        with watched() as report:
            case.with_trace(Trace(), caps)
        assert not report.differences, f"{name}: {report.differences[0]}"
        islands += report.islands
    assert islands


def test_attention_that_loses_its_mask_is_named() -> None:
    text = """(float[1,4,1,64] q, float[1,4,64,2048] k, float[1,4,2048,64] v, float[1,1,1,2048] m) => (float[1,4,1,64] y)
    { s = MatMul(q, k) t = Add(s, m) p = Softmax<axis=-1>(t) y = MatMul(p, v) }"""
    lowered = attention._as_sdpa

    def unmasked(match: Any, caps: Any) -> Any:
        return lowered(replace(match, masks=[]), caps)

    _, touched = _broken("attention", _model(text), attention, "_as_sdpa", unmasked)
    assert any("AttentionProblem" in op for op in touched)


def test_an_epilogue_on_a_view_that_the_kernel_cannot_write_is_refused() -> None:
    text = "(float[1,3,6,6] x) => (float[1,4,12,6] y) { a = Conv(x, w) b = Conv(x, w) y = Concat<axis=2>(a, b) }"
    model = _model(text, w=_random(4, 3, 1, 1))
    anywhere = mock.patch.object(fuse, "stored_in", lambda op, place, caps, **more: replace(op, outputs=[place]))
    with anywhere, pytest.raises(ValueError, match="the elements of y do not lie densely"):
        check_model(model, DEVICES["gpu with cooperative matrices"], {})


def test_a_result_that_overwrites_an_input_too_early_is_named() -> None:
    """The past is read after the present, which is in its memory, was written."""
    kind = DTYPES["float32"]
    past = Tensor.contiguous(kind, (4,), Storage(16, port=0, label="past"))
    present = Tensor.contiguous(kind, (4,), Storage(16, port=1, label="present"))
    y = Tensor.contiguous(kind, (4,), Storage(16, port=2, label="y"))
    turned = past.slice(0, 3, 4, -1)

    def ops() -> list[Pointwise]:
        double = ex.Expr("float", "add", (ex.leaf(past), ex.leaf(past)))
        return [Pointwise(present, double, ["Add"]), Pointwise(y, ex.leaf(turned), ["Flip"])]

    goal = Goal([present, y], DEVICES["cpu"], {1: 0})
    with watched() as report:
        pipeline.run_passes(ops(), goal)
    _holds(report)
    with mock.patch.object(Graph, "overwritten", return_value=set()), watched() as report:
        pipeline.run_passes(ops(), goal)
    assert [difference.name for difference in report.differences] == ["in place"]


CHAIN = "(float[8,8] x, float[8,8] z) => (float[8,8] y) { a = MatMul(x, z) b = MatMul(z, a) c = MatMul(b, z) y = Sub(c, x) }"


def test_dispatches_in_one_group_are_named() -> None:
    def schedule(accesses: Any, peak: Any) -> list[int]:
        return [0] * len(accesses)

    what, _ = _broken("emission", _model(CHAIN), emit, "schedule", schedule)
    assert "MatMul" in what and "in no order" in what


def test_dispatches_in_another_order_are_named() -> None:
    def schedule(accesses: Any, peak: Any) -> list[int]:
        return list(range(len(accesses)))[::-1]

    what, _ = _broken("emission", _model(CHAIN), emit, "schedule", schedule)
    assert "reads what nothing wrote, instead of MatMul" in what


def test_buffers_in_one_place_are_named() -> None:
    def place(lifetimes: Any, piece: Any) -> tuple[list[int], int]:
        return [0] * len(lifetimes), max(life.nbytes for life in lifetimes)

    what, _ = _broken("emission", _model(CHAIN), emit, "pack", place)
    assert "MatMul" in what
