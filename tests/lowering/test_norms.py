"""Norms of one row that only products read are no dispatches of their own on a GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import onnx
import pytest

from gpu_shared.capabilities import DeviceCapabilities
from tools.plan_devices import DEVICES
from vkep import dtypes
from vkep.graph.load import load_model
from vkep.ir.infer import Known
from vkep.ir.program import IslandStep, ValueSpec
from vkep.models.language import ARCHITECTURES, language_model
from vkep.placement.partition import lower
from vkep.plan.records import ShaderVariant

GPU = replace(
    DEVICES["gpu with cooperative matrices"],
    features=DEVICES["gpu with cooperative matrices"].features | {"integer_dot_product"},
)


def dispatched(
    precision: str,
    tokens: int,
    caps: DeviceCapabilities,
    architecture: str = "llama",
    change: Callable[[onnx.ModelProto], None] = lambda model: None,
) -> list[ShaderVariant]:
    """The shader of each dispatch of a decoder's run on some tokens, after a change of its model."""
    model = language_model(replace(ARCHITECTURES[architecture], hidden=128, heads=8), precision)
    change(model)
    loaded = load_model(model)
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


def kernels(precision: str, tokens: int, caps: DeviceCapabilities, architecture: str = "llama") -> Counter[str]:
    """How often a decoder's run on some tokens dispatches each GLSL file."""
    return Counter(shader.source for shader in dispatched(precision, tokens, caps, architecture))


@pytest.mark.parametrize("precision", ["int4-fp16", "fp16"])
def test_a_step_has_no_norms(precision: str) -> None:
    assert kernels(precision, 1, GPU)["norm.comp"] == 0


@pytest.mark.parametrize("caps", [GPU, DEVICES["cpu"]], ids=["gpu", "cpu"])
def test_a_sum_with_a_norm_is_part_of_it(caps: DeviceCapabilities) -> None:
    """Gemma normalizes what attention and the products add: two norms a layer that no product reads."""
    one, rows = (
        Counter(s.source for s in dispatched("int4-fp16", tokens, caps, "gemma2"))["pointwise.comp"]
        for tokens in (1, 3)
    )
    assert rows - one >= 2 * ARCHITECTURES["gemma2"].layers


def test_norms_of_queries_and_keys_are_in_the_update_of_the_cache() -> None:
    assert kernels("int4-fp16", 1, GPU, "qwen3")["norm.comp"] == 0
    assert kernels("int4-fp16", 3, GPU, "qwen3")["norm.comp"] == 5  # those of a layer's rows, and the last
    assert kernels("int4-fp16", 1, DEVICES["cpu"], "qwen3")["norm.comp"] == 9


def test_norms_of_keys_that_are_values_too_are_kept() -> None:
    def values_are_keys(model: onnx.ModelProto) -> None:
        for node in model.graph.node:
            if node.op_type == "GroupQueryAttention":
                node.input[2] = node.input[1]

    shaders = dispatched("int4-fp16", 1, GPU, "qwen3", values_are_keys)
    assert Counter(s.source for s in shaders)["norm.comp"] == 2 * ARCHITECTURES["qwen3"].layers


def test_rows_and_cpus_keep_them() -> None:
    norms = 5  # two a layer, and the last
    assert kernels("int4-fp16", 3, GPU)["norm.comp"] == norms
    assert kernels("int4-fp16", 1, DEVICES["cpu"])["norm.comp"] == norms
