"""Plans that depend on the content of a value that only a run gives. No GPU is used."""

from __future__ import annotations

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from tests.lowering.test_partition import caps  # noqa: F401  # a fixture
from tests.session.test_decode import KV_HEADS, LAYERS, SIZE, WIDTH, decoder
from vkep.dtypes import DTYPES
from vkep.graph import load_model
from vkep.graph.weights import ArrayWeight
from vkep.ir.infer import Known
from vkep.ir.program import DeferredStep, IslandStep, Program, ValueSpec
from vkep.placement.partition import lower

ROOM = 64


def _lower(caps: DeviceCapabilities, source: str, may_postpone: bool, total: int | None = None) -> Program:  # noqa: F811
    model = load_model(decoder(source))
    cache = ValueSpec(DTYPES["float32"], (1, KV_HEADS, ROOM, SIZE))
    known: dict[str, Known] = dict(model.graph.weights)
    known |= {f"p{kind}{layer}": cache for kind in "kv" for layer in range(LAYERS)}
    known["x"] = ValueSpec(DTYPES["float32"], (1, 1, WIDTH))
    known["lengths"] = ValueSpec(DTYPES["int32"], (1,))
    known["total"] = ValueSpec(DTYPES["int32" if source == "input" else "int64"], (1,))
    if total is not None:
        known["total"] = ArrayWeight("total", np.array([total], np.int32))
    outputs = [o.name for o in model.graph.outputs]
    return lower(model.graph.nodes, known, outputs, model.opsets, caps, may_postpone=may_postpone)


def test_a_length_that_is_an_input_postpones_the_program(caps: DeviceCapabilities) -> None:  # noqa: F811
    program = _lower(caps, "input", may_postpone=True)
    [step] = program.steps
    assert isinstance(step, DeferredStep) and step.values == ("total",)
    assert len(step.nodes) == len(program.placements) == 2 * LAYERS
    assert {p.reason for p in program.placements} == {"total_sequence_length is computed at run time"}
    assert {"w0", "cos"} <= set(step.constants) and {"x", "total", "pk1"} <= set(step.inputs)


def test_without_leave_only_what_follows_waits(caps: DeviceCapabilities) -> None:  # noqa: F811
    first, last = _lower(caps, "input", may_postpone=False).steps
    assert isinstance(first, IslandStep) and [n.op_type for n in first.nodes] == ["MatMul"]
    assert isinstance(last, DeferredStep) and last.values == ("total",)


def test_readers_of_a_result_wait_for_it(caps: DeviceCapabilities) -> None:  # noqa: F811
    first, last = _lower(caps, "node", may_postpone=True).steps
    assert isinstance(first, IslandStep) and {n.op_type for n in first.nodes} == {"Cast", "MatMul"}
    assert isinstance(last, DeferredStep) and last.values == ("total_32",)


def test_with_the_content_all_is_one_plan(caps: DeviceCapabilities) -> None:  # noqa: F811
    [step] = _lower(caps, "input", may_postpone=True, total=ROOM).steps
    assert isinstance(step, IslandStep) and len(step.nodes) == 2 * LAYERS
