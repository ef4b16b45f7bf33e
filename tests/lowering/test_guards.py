"""Plans that depend on answers about a value rather than on its content. No GPU is used."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from gpu_shared.capabilities import DeviceCapabilities
from tests.lowering.test_partition import caps  # noqa: F401  # a fixture
from tests.session.test_decode import KV_HEADS, LAYERS, SIZE, WIDTH, decoder
from vkep.dtypes import DTYPES
from vkep.graph import load_model
from vkep.ir.builder import Builder, NeedsValue
from vkep.ir.guards import Answers, Needs, RoundedCapacity
from vkep.ir.infer import Known
from vkep.ir.program import DeferredStep, IslandStep, Program, ValueSpec
from vkep.ir.tensor import Storage, Tensor
from vkep.placement.partition import lower

ROOM = 64


@dataclass(frozen=True)
class Parity:
    """A guard of a test's own."""

    def __call__(self, content: np.ndarray) -> int:
        return int(content.sum()) % 2


def _lower(caps: DeviceCapabilities, source: str, may_postpone: bool, answers: Answers = ()) -> Program:  # noqa: F811
    model = load_model(decoder(source))
    cache = ValueSpec(DTYPES["float32"], (1, KV_HEADS, ROOM, SIZE))
    known: dict[str, Known] = dict(model.graph.weights)
    known |= {f"p{kind}{layer}": cache for kind in "kv" for layer in range(LAYERS)}
    known["x"] = ValueSpec(DTYPES["float32"], (1, 1, WIDTH))
    known["lengths"] = ValueSpec(DTYPES["int32"], (1,))
    known["total"] = ValueSpec(DTYPES["int32" if source == "input" else "int64"], (1,), answers)
    outputs = [o.name for o in model.graph.outputs]
    return lower(model.graph.nodes, known, outputs, model.opsets, caps, may_postpone=may_postpone)


def test_a_guard_of_an_input_postpones_the_program(caps: DeviceCapabilities) -> None:  # noqa: F811
    program = _lower(caps, "input", may_postpone=True)
    [step] = program.steps
    assert isinstance(step, DeferredStep)
    assert step.values == {"total": (RoundedCapacity(ROOM),)}
    assert len(step.nodes) == len(program.placements) == 2 * LAYERS
    assert {p.reason for p in program.placements} == {"total_sequence_length is computed at run time"}
    assert {"w0", "cos"} <= set(step.constants) and {"x", "total", "pk1"} <= set(step.inputs)


def test_without_leave_only_what_follows_waits(caps: DeviceCapabilities) -> None:  # noqa: F811
    first, last = _lower(caps, "input", may_postpone=False).steps
    assert isinstance(first, IslandStep) and [n.op_type for n in first.nodes] == ["MatMul"]
    assert isinstance(last, DeferredStep) and last.values == {"total": (RoundedCapacity(ROOM),)}


def test_a_guard_of_a_result_waits_for_it(caps: DeviceCapabilities) -> None:  # noqa: F811
    first, last = _lower(caps, "node", may_postpone=True).steps
    assert isinstance(first, IslandStep) and {n.op_type for n in first.nodes} == {"Cast", "MatMul"}
    assert isinstance(last, DeferredStep) and last.values == {"total_32": (RoundedCapacity(ROOM),)}


def test_with_the_answer_all_is_one_plan(caps: DeviceCapabilities) -> None:  # noqa: F811
    [step] = _lower(caps, "input", may_postpone=True, answers=((RoundedCapacity(ROOM), ROOM),)).steps
    assert isinstance(step, IslandStep) and len(step.nodes) == 2 * LAYERS
    assert "total" in {port.name for port in step.plan.inputs}


def test_what_a_builder_answers(caps: DeviceCapabilities) -> None:  # noqa: F811
    b = Builder(caps)
    known = b.constant(np.array([3, 4]))
    assert b.answer(known, "x", Parity()) == 1
    given = Tensor.contiguous(DTYPES["int64"], (2,), Storage(16, port=0, answers=((Parity(), 0),)))
    assert b.answer(given, "x", Parity()) == 0
    with pytest.raises(NeedsValue, match="x is computed at run time") as raised:
        b.answer(given, "x", RoundedCapacity(4))
    assert raised.value.guard == RoundedCapacity(4)
    with pytest.raises(ValueError, match="of a whole input"):
        b.answer(given.slice(0, 1, 1), "x", Parity())


def test_room_rounds_up_to_powers_of_two() -> None:
    ask = RoundedCapacity(1000)
    asked = (0, 1, 256, 257, 512, 513, 999, 1000, 1001)
    assert [ask(np.array(n)) for n in asked] == [256, 256, 256, 512, 512, 1000, 1000, 1000, 1001]
    assert RoundedCapacity(64)(np.array([[3]], np.int64)) == 64


def test_needs_of_content_outweigh_guards() -> None:
    needs = Needs()
    needs.add(["a", "b"], RoundedCapacity(4))
    needs.add(["a"], RoundedCapacity(8))
    needs.add(["a"], RoundedCapacity(4))
    assert needs.of("a", ()) == (RoundedCapacity(4), RoundedCapacity(8))
    assert needs.of("b", ((RoundedCapacity(2), 2),)) == (RoundedCapacity(2), RoundedCapacity(4))
    assert needs.of("c", ()) is None
    needs.add(["b"], None)
    needs.add(["b"], RoundedCapacity(9))
    assert needs.of("b", ()) == ()
