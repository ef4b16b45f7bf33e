"""Who runs where: islands, CPU groups and deferred parts of a graph, on devices of several abilities. No GPU is used."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from onnx import TensorProto, helper

from gpu_shared.capabilities import FEATURE_NAMES, DeviceCapabilities
from tests.session.models import model
from tools.fuzz.networks.graph import Network
from tools.fuzz.networks.strategy import networks
from vkep.graph import load_model
from vkep.ir.program import ControlStep, CpuStep, DeferredStep, IslandStep, Program, declared_value
from vkep.placement.partition import lower
from vkep.plan.records import Range


@pytest.fixture(scope="module")
def caps() -> DeviceCapabilities:
    """A device that can do all that kernels ask for, made up: planning needs no driver."""
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(DeviceCapabilities):
        kind = str(field.type)
        if field.name == "features":
            fields[field.name] = frozenset(FEATURE_NAMES)
        elif field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING:
            continue
        elif kind.startswith("str"):
            fields[field.name] = "discrete" if field.name == "device_type" else field.name
        elif kind.startswith("bool"):
            fields[field.name] = True
        elif kind.startswith("int"):
            fields[field.name] = 32 if "subgroup" in field.name else 1 << 20
        elif kind.startswith("float"):
            fields[field.name] = 1.0
        elif "int, int, int" in kind:
            fields[field.name] = (1024, 1024, 1024) if "size" in field.name else (1 << 20, 65535, 65535)
        elif kind.startswith("frozenset"):
            fields[field.name] = frozenset()
        else:
            fields[field.name] = ()
    return DeviceCapabilities(**fields)


def overlap(a: Range, b: Range) -> bool:
    """Whether two ranges share a byte."""
    return a.space is b.space and a.index == b.index and max(a.start, b.start) < min(a.end, b.end)


def _lower(proto: onnx.ModelProto, caps: DeviceCapabilities) -> Program:
    loaded = load_model(proto)
    known: dict[str, Any] = {**loaded.graph.weights, **{v.name: declared_value(v) for v in loaded.graph.inputs}}
    outputs = [o.name for o in loaded.graph.outputs]
    return lower(loaded.graph.nodes, known, outputs, loaded.opsets, caps)


def _shape(program: Program) -> list[tuple[str, list[str]]]:
    found = []
    for step in program.steps:
        assert not isinstance(step, ControlStep)
        found.append((type(step).__name__.removesuffix("Step").lower(), [n.op_type for n in step.nodes]))
    return found


# ---- plans are plain data


@settings(max_examples=6, suppress_health_check=list(HealthCheck))
@given(network=networks())
def test_planning_is_deterministic_and_plans_are_plain_data(caps: DeviceCapabilities, network: Network) -> None:
    first, second = _lower(network.model, caps), _lower(network.model, caps)
    assert [type(s) for s in first.steps] == [type(s) for s in second.steps]
    for one, two in zip(first.steps, second.steps, strict=True):
        assert isinstance(one, IslandStep) and isinstance(two, IslandStep)
        assert one.plan == two.plan and repr(one.plan) == repr(two.plan)
        assert one.weights.keys() == two.weights.keys() == {c.key for c in one.plan.constants}
        assert pickle.loads(pickle.dumps(one.plan)) == one.plan == copy.deepcopy(one.plan)
        assert hash(one.plan.pipelines) == hash(two.plan.pipelines)


@settings(max_examples=20, suppress_health_check=list(HealthCheck))
@given(network=networks("mixed"))
def test_every_plan_is_sound(caps: DeviceCapabilities, network: Network) -> None:
    """Addresses stay in their buffers, what is read was written before, and barriers lie where hazards are."""
    [step] = _lower(network.model, caps).steps
    assert isinstance(step, IslandStep)
    plan = step.plan
    sizes = {
        "constant": [c.nbytes for c in plan.constants],
        "port": [p.nbytes for p in plan.ports],
        "activation": [plan.activation_bytes],
    }
    written: list[Any] = []
    since: list[Any] = []
    for dispatch in plan.dispatches:
        assert 0 <= dispatch.pipeline < len(plan.pipelines) and min(dispatch.grid) >= 1 and dispatch.label
        assert len(dispatch.arguments) == plan.pipelines[dispatch.pipeline].argument_bytes
        for r in (*dispatch.reads, *dispatch.writes):
            assert 0 <= r.start <= r.end <= sizes[r.space.value][r.index]
        for patch in dispatch.relocations:
            assert patch.offset % 8 == 0 and patch.offset + 8 <= len(dispatch.arguments)
        for r in dispatch.reads:
            if r.space.value == "activation":
                assert any(overlap(w, r) for w in written), f"{dispatch.label} reads what was not written"
        for r in dispatch.writes:
            assert r.space.value != "constant" and not (r.space.value == "port" and plan.ports[r.index].is_input)
        if dispatch.barrier:
            since = []
        for before in since:
            touched = [*dispatch.reads, *dispatch.writes]
            assert not any(overlap(a, b) for a in before.writes for b in touched)
            assert not any(overlap(a, b) for a in before.reads for b in dispatch.writes)
        since.append(dispatch)
        written += dispatch.writes
    for index, port in enumerate(plan.ports):
        covered = sum(r.end - r.start for r in written if r.space.value == "port" and r.index == index)
        assert port.is_input or covered >= port.nbytes, f"output {port.name} is not written whole"


# ---- islands


def test_one_island_where_nothing_is_declined(caps: DeviceCapabilities) -> None:
    program = _lower(model("g (float[4] x) => (float[4] y) { a = Exp(x) b = Neg(a) y = Add(a, b) }"), caps)
    assert _shape(program) == [("island", ["Exp", "Neg", "Add"])]
    assert {p.where for p in program.placements} == {"vulkan"}


def test_islands_are_convex(caps: DeviceCapabilities) -> None:
    """A value never leaves an island to come back into it by way of the CPU."""
    text = """g (float[2,3,3] x) => (float[2] y, float[2,3,3] z) {
        a = Exp(x) d = Det(a) e = Neg(d) f = Reshape(e, s) g = Mul(a, f) y = Det(g) z = Sin(a) }"""
    proto = model(text)
    proto.graph.initializer.append(helper.make_tensor("s", TensorProto.INT64, [3], [2, 1, 1]))
    program = _lower(proto, caps)
    assert _shape(program) == [
        ("island", ["Exp", "Sin"]),
        ("cpu", ["Det"]),
        ("island", ["Neg", "Reshape", "Mul"]),
        ("cpu", ["Det"]),
    ]
    made: set[str] = {"x"}
    for step in program.steps:
        assert isinstance(step, (IslandStep, CpuStep))
        needed = {p.name for p in step.plan.inputs} if isinstance(step, IslandStep) else set(step.inputs)
        assert needed <= made, "a step only needs what earlier ones make"
        made |= {p.name for p in step.plan.outputs} if isinstance(step, IslandStep) else set(step.outputs)
    assert {"y", "z"} <= made


def test_independent_declined_nodes_share_a_stage(caps: DeviceCapabilities) -> None:
    text = """g (float[2,3,3] x, float[2,3,3] z) => (float[2] y) {
        a = Exp(x) d = Det(a) b = Exp(z) e = Det(b) y = Add(d, e) }"""
    assert _shape(_lower(model(text), caps)) == [
        ("island", ["Exp", "Exp"]),
        ("cpu", ["Det", "Det"]),
        ("island", ["Add"]),
    ]


def test_values_without_readers_are_not_computed(caps: DeviceCapabilities) -> None:
    program = _lower(model("g (float[4] x) => (float[4] y) { y = Exp(x) a = Neg(x) b = Sin(a) }"), caps)
    [step] = program.steps
    assert isinstance(step, IslandStep) and len(step.plan.dispatches) == 1


def test_shape_arithmetic_is_folded(caps: DeviceCapabilities) -> None:
    text = """g (float[2,3,4] x) => (float[6,4] y) {
        s = Shape(x) n = Gather<axis=0>(s, last) m = Constant<value = int64[1] {-1}>() l = Unsqueeze(n, zero)
        t = Concat<axis=0>(m, l) y = Reshape(x, t) }"""
    proto = model(text)
    proto.graph.initializer.extend(
        [
            helper.make_tensor("last", TensorProto.INT64, [], [2]),
            helper.make_tensor("zero", TensorProto.INT64, [1], [0]),
        ]
    )
    program = _lower(proto, caps)
    where = {p.node.op_type: p.where for p in program.placements}
    assert where == {
        "Shape": "folded",
        "Gather": "folded",
        "Unsqueeze": "folded",
        "Concat": "folded",
        "Reshape": "vulkan",
    }


def test_random_nodes_are_not_folded(caps: DeviceCapabilities) -> None:
    program = _lower(model("g (float[2] x) => (float[2] y) { r = RandomNormal<shape=[2]>() y = Add(x, r) }"), caps)
    assert "folded" not in {p.where for p in program.placements}


def test_deferred_nodes_come_last_with_what_they_need(caps: DeviceCapabilities) -> None:
    text = """g (float[4] x, int64[2] s) => (float[2,2] y, float[4] z) {
        z = Exp(x) t = Add(s, s) a = Reshape(z, t) y = Neg(a) }"""
    program = _lower(model(text), caps)
    assert _shape(program) == [("island", ["Exp", "Add"]), ("deferred", ["Reshape", "Neg"])]
    deferred = program.steps[-1]
    assert isinstance(deferred, DeferredStep)
    assert deferred.inputs == ("z", "t") and deferred.values == ("t",) and deferred.outputs == ("y",)
    reasons = {p.node.op_type: p.reason for p in program.placements if p.where == "deferred"}
    assert reasons == {"Reshape": "shape is computed at run time", "Neg": "waits for the shape of 'a'"}


def test_cpu_groups_hold_their_constants(caps: DeviceCapabilities) -> None:
    proto = model('g (float[2,3,3] x) => (float[2] y) { e = Einsum<equation="bij,jk->bik">(x, w) y = Det(e) }')
    proto.graph.initializer.append(helper.make_tensor("w", TensorProto.FLOAT, [3, 3], np.eye(3).reshape(-1)))
    steps = [s for s in _lower(proto, caps).steps if isinstance(s, CpuStep)]
    assert all("w" not in s.inputs for s in steps)
    assert steps[-1].outputs == ("y",) and len(steps[-1].reasons) == len(steps[-1].nodes)


# ---- abilities of a device


@pytest.mark.parametrize(
    ("missing", "text"),
    [
        ("float16", "g (float16[4] x) => (float16[4] y) { y = Exp(x) }"),
        ("storage_16bit", "g (float16[4] x) => (float16[4] y) { y = Exp(x) }"),
        ("float16", "g (float[4] x) => (float[4] y) { h = Cast<to=10>(x) y = Cast<to=1>(h) }"),
        ("int64", "g (int64[4] x) => (int64[4] y) { y = Add(x, x) }"),
        ("int64", "g (float[4,4] x) => (int64[1,4] y) { y = ArgMax(x) }"),
        ("int8", "g (float[4] x) => (bool[4] y) { y = IsNaN(x) }"),
        ("storage_8bit", "g (float[4] x, float[4] z) => (bool[4] y) { y = Less(x, z) }"),
    ],
)
def test_a_device_that_lacks_a_type_has_the_same_plan(caps: DeviceCapabilities, missing: str, text: str) -> None:
    """Its shaders compute with words instead (`vkep.shaders.words`)."""
    proto = model(text)
    program = _lower(proto, caps)
    assert {p.where for p in program.placements} == {"vulkan"}
    poorer = dataclasses.replace(caps, features=caps.features - {missing})
    assert _lower(proto, poorer).steps == program.steps


def test_a_device_without_float16_runs_float32(caps: DeviceCapabilities) -> None:
    poorer = dataclasses.replace(caps, features=caps.features - {"float16", "storage_16bit", "int16"})
    program = _lower(
        model("g (float[4,8] x, float[8,4] w) => (float[4,4] y) { a = MatMul(x, w) y = Softmax(a) }"), poorer
    )
    assert {p.where for p in program.placements} == {"vulkan"}
