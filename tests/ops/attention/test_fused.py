"""Which attention goes to the kernel that writes no scores. Plans only: no GPU is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from gpu_shared.capabilities import DeviceCapabilities
from tests.devices import GPU
from vkep.dtypes import DTYPES
from vkep.graph import load_model
from vkep.ir.infer import Known
from vkep.ir.program import IslandStep, ValueSpec
from vkep.placement.partition import lower
from vkep.plan.records import Plan

CPU = DeviceCapabilities.for_tests()
HEADS = (2, 8, 128, 64)
QKV = dict.fromkeys("qkv", ("float16", HEADS))


def _plan(
    inputs: Mapping[str, tuple[str, tuple[int, ...]] | None],
    op: str = "Attention",
    outputs: tuple[str, ...] = ("y",),
    caps: DeviceCapabilities = GPU,
    domain: str = "",
    constants: dict[str, np.ndarray[Any, Any]] | None = None,
    **attributes: Any,
) -> Plan:
    """The plan of one node with inputs of these types and shapes."""
    given = {name: spec for name, spec in inputs.items() if spec is not None}
    names = [name if spec is not None or name in (constants or {}) else "" for name, spec in inputs.items()]

    def info(name: str, spec: tuple[str, Any]) -> onnx.ValueInfoProto:
        kind = helper.np_dtype_to_tensor_dtype(DTYPES[spec[0]].numpy)
        return helper.make_tensor_value_info(name, kind, spec[1])

    node = helper.make_node(op, names, outputs, domain=domain, **attributes)
    graph = helper.make_graph(
        [node],
        "g",
        [info(*item) for item in given.items()],
        [info(name, (given["q"][0], None)) for name in outputs if name],
        initializer=[onnx.numpy_helper.from_array(array, name) for name, array in (constants or {}).items()],
    )
    opsets = [helper.make_opsetid("", onnx.defs.onnx_opset_version()), helper.make_opsetid("com.microsoft", 1)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=13)
    read = load_model(onnx.ModelProto.FromString(proto.SerializeToString()))
    known: dict[str, Known] = {name: ValueSpec(DTYPES[dtype], shape) for name, (dtype, shape) in given.items()}
    known.update(read.graph.weights)
    [step] = lower(read.graph.nodes, known, [name for name in outputs if name], read.opsets, caps).steps
    assert isinstance(step, IslandStep), step
    return step.plan


def _sources(plan: Plan) -> list[str]:
    return [plan.pipelines[dispatch.pipeline].shader.source for dispatch in plan.dispatches]


def _spec(plan: Plan) -> dict[str, int]:
    [key] = [key for key in plan.pipelines if key.shader.source.startswith("attention")]
    return dict(key.spec)


def test_it_is_one_dispatch_without_memory() -> None:
    plan = _plan(QKV)
    assert _sources(plan) == ["attention_coop.comp"]
    assert plan.activation_bytes == 0
    assert plan.dispatches[0].flops == 4 * 2 * 8 * 128 * 128 * 64


def test_a_cpu_driver_keeps_its_products() -> None:
    assert not any(source.startswith("attention") for source in _sources(_plan(QKV, caps=CPU)))


def test_heads_side_by_side_are_read_and_written_in_place() -> None:
    flat = dict.fromkeys("qkv", ("float16", (2, 128, 512)))
    assert _sources(_plan(flat, q_num_heads=8, kv_num_heads=8)) == ["attention_coop.comp"]


def test_bounds_by_position_need_no_mask() -> None:
    bounds: tuple[dict[str, Any], ...] = (
        {"is_causal": 1},
        {"is_causal": 1, "left_window_size": 20},
        {"right_window_size": 7},
    )
    for attributes in bounds:
        assert _sources(_plan(QKV, **attributes)) == ["attention_coop.comp"]


@pytest.mark.parametrize("shape", [(128, 128), (2, 1, 1, 128), (2, 8, 128, 128), (1, 8, 128, 1)])
def test_a_bias_is_read_where_it_lies(shape: tuple[int, ...]) -> None:
    plan = _plan({**QKV, "mask": ("float16", shape)})
    assert _sources(plan) == ["attention_coop.comp"]
    assert _spec(plan)["BIAS"] == (1 if shape[-1] > 1 else 2)


def test_conditions_that_heads_share_are_written_as_a_bias() -> None:
    plan = _plan({**QKV, "mask": ("bool", (2, 1, 128, 128))}, is_causal=1)
    assert len(plan.dispatches) == 2 and _sources(plan)[1] == "attention_coop.comp"
    assert plan.activation_bytes == 2 * 2 * 128 * 128


@pytest.mark.parametrize(
    "changes",
    [
        {"inputs": {**QKV, "mask": ("bool", (2, 8, 128, 128))}},  # as much to write as the scores
        {"inputs": QKV, "outputs": ("y", "", "", "scores")},
        {"inputs": {**QKV, "q": ("float16", (2, 8, 8, 64))}},
    ],
    ids=["a condition of each head", "scores asked for", "few queries"],
)
def test_the_rest_has_scores_in_memory(changes: dict[str, Any]) -> None:
    assert not any(source.startswith("attention") for source in _sources(_plan(**changes)))


def test_a_decoders_step_shares_its_keys_among_workgroups() -> None:
    inputs = {name: ("float16", (1, 4, 1 if name == "q" else 2000, 64)) for name in "qkv"}
    plan = _plan(inputs)
    assert _sources(plan) == ["pointwise.comp", "attention_stream.comp"]  # the first one clears what counts arrivals
    assert not any(source.startswith("attention") for source in _sources(_plan(inputs, caps=CPU)))


def test_a_token_turns_and_joins_the_cache_in_one_dispatch() -> None:
    flat = {"q": ("float16", (1, 1, 2048)), "k": ("float16", (1, 1, 512)), "v": ("float16", (1, 1, 512))}
    past = dict.fromkeys(("pk", "pv"), ("float16", (1, 8, 1024, 64)))
    tables = dict.fromkeys(("cos", "sin"), ("float16", (2048, 32)))
    plan = _plan(
        {**flat, **past, "len": ("int32", (1,)), "total": None, **tables},
        "GroupQueryAttention",
        constants={"total": np.array(96, np.int32)},
        num_heads=32,
        kv_num_heads=8,
        do_rotary=1,
        domain="com.microsoft",
        outputs=("y", "nk", "nv"),
    )
    kernels = [source for source in _sources(plan) if source != "pointwise.comp"]  # the check of the lengths, and zeros
    assert kernels == ["cache_update.comp", "attention_stream.comp"]
    assert len(plan.dispatches) == 4 and sum(dispatch.barrier for dispatch in plan.dispatches) == 1


def test_positions_that_a_run_decides_are_read_by_the_kernel() -> None:
    flat = {"q": ("float16", (2, 32, 512)), "k": ("float16", (2, 32, 128)), "v": ("float16", (2, 32, 128))}
    past = dict.fromkeys(("pk", "pv"), ("float16", (2, 2, 64, 64)))
    inputs = {**flat, **past, "len": ("int32", (2,)), "total": None}
    attributes: dict[str, Any] = {
        "num_heads": 8,
        "kv_num_heads": 2,
        "domain": "com.microsoft",
        "outputs": ("y", "nk", "nv"),
    }
    total = {"total": np.array(96, np.int32)}
    plan = _plan(inputs, "GroupQueryAttention", constants=total, **attributes)
    assert _spec(plan)["ORIGIN"] == 1 and _spec(plan)["BIAS"] == 0 and _spec(plan)["GROUP"] == 4
    sunk = _plan(inputs, "GroupQueryAttention", constants=total, smooth_softmax=1, **attributes)
    assert "attention_coop.comp" not in _sources(sunk)
