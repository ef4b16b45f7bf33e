"""Models in the forms in which users run them have the results of ONNX Runtime without optimization, wholly on Vulkan, and the
judge of these forms finds what is wrong."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.ops.cases import shared_context
from tools.models.fusions import FUSIONS
from tools.ort_cpu import cpu_session
from tools.user_forms.__main__ import lost, main, table
from tools.user_forms.compare import DIFFERS, EQUAL, NOT_MADE, REFUSED, Result, compare, is_for_cpu_kernels
from tools.user_forms.forms import FORMS, Feeds, Form
from tools.user_forms.judge import Expected, rounded, spread
from tools.user_forms.sources import source
from vkep import InferenceSession, UnsupportedModelError

OPTIMIZED = [name for name in FORMS if name.startswith("optimized")]
#: forms that need onnxruntime alone, and parts of networks that each changes
OTHERS = [
    name for name, form in FORMS.items() if form.package == "onnxruntime" and name not in ("as it is", *OPTIMIZED)
]
PARTS = (
    "a detector's head",
    "MatMul, Add",
    "Gelu of a product with bias",
    "Conv, Add, Relu",
    "SkipLayerNormalization with bias",
)


@pytest.mark.parametrize("name", FUSIONS)
def test_what_onnxruntime_optimizes_has_the_same_results(name: str) -> None:
    model, feeds = source(name)()
    fused: set[str] = set()
    for form in ("as it is", *OPTIMIZED):
        result = compare(name, FORMS[form], model, feeds, shared_context())
        assert result.verdict in ((EQUAL, REFUSED) if form == "optimized ALL" else (EQUAL,)), f"{form}: {result.why}"
        assert not result.on_cpu
        fused |= set(result.fused)
    assert not FUSIONS[name].fused or FUSIONS[name].fused in fused, f"ONNX Runtime makes {sorted(fused)} of it"


@pytest.mark.parametrize("form", OTHERS)
@pytest.mark.parametrize("name", PARTS)
def test_a_form_has_onnxruntimes_results(name: str, form: str) -> None:
    model, feeds = source(name)()
    result = compare(name, FORMS[form], model, feeds, shared_context())
    assert (result.verdict, result.on_cpu) == (EQUAL, ()), result.why


def test_a_model_for_onnxruntimes_cpu_kernels_is_refused() -> None:
    model, feeds = source("Conv, Relu")()
    form = FORMS["optimized ALL"].make(model, feeds)
    if not is_for_cpu_kernels(form):
        pytest.skip("ONNX Runtime has no such kernels for this processor")
    with pytest.raises(UnsupportedModelError, match=r"com\.microsoft\.nchwc.*ORT_ENABLE_EXTENDED"):
        InferenceSession(form)


def test_the_judge_finds_what_is_wrong() -> None:
    right = np.linspace(-2, 2, 8, dtype=np.float32)
    assert Expected([right]).difference([right]) == ""
    assert "off" in Expected([right]).difference([right + np.float32(1e-3)])
    assert "off" in Expected([right]).difference([np.where(right > 1, np.nan, right).astype(np.float32)])
    ends = np.array([np.inf, -np.inf, np.nan], np.float32)
    assert Expected([ends]).difference([ends]) == ""
    assert "off" in Expected([ends]).difference([ends[[1, 0, 2]]])
    assert "expected float32[8]" in Expected([right]).difference([right[:4]])
    assert Expected([right], off=0.1).difference([right + np.float32(0.09)]) == ""
    half = Expected([right], wide=[right], far=1e-3)
    assert half.difference([right - np.float32(1e-3)]) == ""
    assert "from float32" in half.difference([right + np.float32(0.01)])


def test_what_rounding_to_float16_does() -> None:
    text = "g (float[3] x) => (float[3] y) { a = Mul(x, w) y = Sub(a, x) }"
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 17]> {text}')
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1.001, -1e30, 3], np.float32), "w"))
    x = np.array([1.0009765625, 1, 0.1], np.float32)
    [y] = cpu_session(rounded(model), optimized=False).run(None, {"x": x})
    half = np.float16
    expected = [half(half(x[0] * np.float32(half(1.001))) - x[0]), -65504, half(np.float32(half(x[2] * 3)) - x[2])]
    np.testing.assert_array_equal(y, np.array(expected, np.float32))


def test_what_rounding_decides_is_measured() -> None:
    model, feeds = FUSIONS["Conv, Relu"].model(), FUSIONS["Conv, Relu"].feeds()
    assert spread(model, feeds) == 0
    quantized = FUSIONS["quantized Gemm"]
    assert 0.05 <= spread(quantized.model(), quantized.feeds()) <= 0.15  # the last step is 0.05
    # every value lies between two steps
    text = "g (float[64] x) => (float[64] y) { q = QuantizeLinear(x, s) d = DequantizeLinear(q, s) y = Mul(d, k) }"
    tied = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}')
    scales = {"s": np.float32(0.25), "k": np.float32(3)}
    tied.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(v), name) for name, v in scales.items())
    assert spread(tied, {"x": (np.arange(64, dtype=np.float32) + np.float32(0.5)) / 4}) == pytest.approx(2 * 3 * 0.25)


def test_a_form_that_is_wrong_differs_and_one_that_fails_is_not_made() -> None:
    model, feeds = source("QuickGelu")()
    other = FUSIONS["QuickGelu"].model()
    other.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.array(2, np.float32), "k"))
    wrong = Form("wrong", lambda model, feeds: other)
    assert compare("m", wrong, model, feeds, shared_context()).verdict == DIFFERS

    def failing(model: onnx.ModelProto, feeds: Feeds) -> onnx.ModelProto:
        raise ValueError("no such operator")

    result = compare("m", Form("failing", failing), model, feeds, shared_context())
    assert result == Result("m", "failing", NOT_MADE, "ValueError: no such operator")


def test_a_crash_is_a_difference_and_a_model_that_takes_too_long_is_not_made() -> None:
    assert [r.verdict for r in lost("a", "crashed: exit code -11", ["QDQ", "onnxslim"])] == [DIFFERS, DIFFERS]
    assert lost("a", "hung: no result in 60 s", ["QDQ"]) == [Result("a", "QDQ", NOT_MADE, "hung: no result in 60 s")]


def test_the_table_names_what_is_left_out_and_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(FORMS, "absent", Form("absent", lambda model, feeds: model, package="no_such_package"))
    results = [
        Result("a", "QDQ", EQUAL),
        Result("b", "QDQ", DIFFERS, "0.5 off"),
        Result("c", "QDQ", EQUAL, "", ("TopK",)),
    ]
    printed = table(results, ["QDQ", "absent"]).splitlines()
    assert printed[2:] == [
        "| QDQ | 2 | 1 | 0 | 0 | 1 |",
        "| absent | left out: no package no_such_package | | | | |",
        "differs: b, QDQ: 0.5 off",
        "equal: c, QDQ:  on the CPU: TopK",
    ]
    with pytest.raises(SystemExit):
        main(["no model"])
    assert "'no model' is no model of tools.models" in capsys.readouterr().err
