"""Models as ONNX Runtime saves them after its optimization: every form has the results of the plain model, on Vulkan."""

from __future__ import annotations

import pytest

from tests.ops.cases import shared_context
from tools.models.fusions import FUSIONS
from tools.optimized_forms import difference, forms, is_for_cpu_kernels, own_operators
from tools.ort_cpu import cpu_session
from vkep import InferenceSession, UnsupportedModelError


@pytest.mark.parametrize("name", FUSIONS)
def test_every_form_has_the_same_results(name: str) -> None:
    fusion = FUSIONS[name]
    model, feeds = fusion.model(), fusion.feeds()
    expected = cpu_session(model, optimized=False).run(None, feeds)
    seen: set[bytes] = set()
    fused: set[str] = set()
    for level, form in forms(model):
        fused |= own_operators(form) | {node.op_type for node in form.graph.node if node.op_type.startswith("QLinear")}
        text = form.graph.SerializeToString()
        if text in seen or is_for_cpu_kernels(form):
            continue
        seen.add(text)
        assert not (why := difference(form, feeds, expected, shared_context())), f"{level}: {why}"
    assert not fusion.fused or fusion.fused in fused, f"ONNX Runtime makes {sorted(fused)} of it"


def test_a_model_for_onnxruntimes_cpu_kernels_is_refused() -> None:
    form = dict(forms(FUSIONS["Conv, Relu"].model()))["ALL"]
    if not is_for_cpu_kernels(form):
        pytest.skip("ONNX Runtime has no such kernels for this processor")
    with pytest.raises(UnsupportedModelError, match=r"com\.microsoft\.nchwc.*ORT_ENABLE_EXTENDED"):
        InferenceSession(form)
