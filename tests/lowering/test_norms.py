"""Norms of one row that only products read are no dispatches of their own on a GPU."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from gpu_shared.capabilities import DeviceCapabilities
from tools.models.language import ARCHITECTURES, language_model
from tools.plan_digests import DEVICES
from vkep import dtypes
from vkep.graph.load import load_model
from vkep.ir.infer import Known
from vkep.ir.program import IslandStep, ValueSpec
from vkep.placement.partition import lower
from vkep.plan.records import ShaderVariant

GPU = replace(
    DEVICES["gpu with cooperative matrices"],
    features=DEVICES["gpu with cooperative matrices"].features | {"integer_dot_product"},
)


def dispatched(precision: str, tokens: int, caps: DeviceCapabilities) -> list[ShaderVariant]:
    """The shader of each dispatch of a decoder's run on some tokens."""
    loaded = load_model(language_model(replace(ARCHITECTURES["llama"], hidden=128, heads=8), precision))
    sizes = {"batch": 1, "length": tokens, "total": 20, "past": 19, "past_length": 19}
    known: dict[str, Known] = dict(loaded.graph.weights)
    for info in loaded.graph.inputs:
        dtype = dtypes.from_onnx(info.elem_type)
        assert dtype is not None
        shape = tuple(d if isinstance(d, int) else sizes.get(str(d), 32) for d in info.shape or ())
        known[info.name] = ValueSpec(dtype, shape)
    program = lower(loaded.graph.nodes, known, [v.name for v in loaded.graph.outputs], loaded.opsets, caps)
    plans = [step.plan for step in program.steps if isinstance(step, IslandStep)]
    return [plan.pipelines[d.pipeline].shader for plan in plans for d in plan.dispatches]


def kernels(precision: str, tokens: int, caps: DeviceCapabilities) -> Counter[str]:
    """How often a decoder's run on some tokens dispatches each GLSL file."""
    return Counter(shader.source for shader in dispatched(precision, tokens, caps))


@pytest.mark.parametrize("precision", ["int4-fp16", "fp16"])
def test_a_step_has_no_norms(precision: str) -> None:
    assert kernels(precision, 1, GPU)["norm.comp"] == 0


def test_rows_and_cpus_keep_them() -> None:
    norms = 5  # two a layer, and the last
    assert kernels("int4-fp16", 3, GPU)["norm.comp"] == norms
    assert kernels("int4-fp16", 1, DEVICES["cpu"])["norm.comp"] == norms
