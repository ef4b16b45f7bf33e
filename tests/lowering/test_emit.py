"""From operations to plans: a kernel is selected once, and again where its tensors are moved; a plan does not depend on
what was planned before it. No GPU is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import vkep.ops  # noqa: F401  # declares the operators
from gpu_shared.capabilities import FEATURE_NAMES, DeviceCapabilities
from tests.session.models import model
from vkep import dtypes
from vkep.graph import load_model
from vkep.ir.builder import Builder
from vkep.ir.program import IslandStep, ValueSpec
from vkep.ir.tensor import Storage, Tensor
from vkep.kernels import select
from vkep.kernels.kernel import KernelCall
from vkep.kernels.softmax import SoftmaxProblem
from vkep.passes.emit import emit
from vkep.passes.fuse import optimize
from vkep.placement.partition import lower
from vkep.plan.records import Plan, Port

FLOAT = dtypes.DTYPES["float32"]
CAPS = DeviceCapabilities("imagined GPU", device_type="discrete", features=FEATURE_NAMES)


def _port(index: int, shape: tuple[int, ...]) -> Tensor:
    return Tensor.contiguous(FLOAT, shape, Storage(128, port=index))


def _selections(caps: DeviceCapabilities, copied: bool) -> list[tuple[Tensor, Tensor]]:
    """What a kernel's selection was asked for, from lowering to the plan."""
    asked: list[tuple[Tensor, Tensor]] = []
    b = Builder(caps)
    x, y = _port(0, (4, 8)), _port(1, (4, 8))

    def selected(target: Any, i: Sequence[Tensor], o: Sequence[Tensor], _: Any) -> list[KernelCall]:
        asked.append((i[0], o[0]))
        return select.emit(SoftmaxProblem(4, 8, 1, "float32"), target, i, o)

    out = b.empty(FLOAT, (4, 8)) if copied else y
    b.kernel([x], [out], selected)
    if copied:
        b.copy(out, out=y)
    ports = [Port(name, "float32", (4, 8), 128, name == "x") for name in "xy"]
    [dispatch] = emit(optimize(b.ops, [y]), ports, caps).plan.dispatches
    assert [r.index for r in (*dispatch.reads, *dispatch.writes)] == [0, 1]
    return asked


def test_a_kernel_is_selected_once() -> None:
    assert len(_selections(CAPS, copied=False)) == 1


def test_a_kernel_whose_result_was_moved_is_selected_again() -> None:
    (_, tried), (_, moved) = _selections(CAPS, copied=True)
    assert (tried.storage.port, moved.storage.port) == (None, 1)


@pytest.mark.parametrize("device_type", ["cpu", "discrete"])
def test_a_plan_is_the_same_whatever_was_planned_before(device_type: str) -> None:
    w, m = (", ".join(str(i / count) for i in range(count)) for count in (4 * 4 * 3 * 3, 8 * 4))
    text = f"""
        g (float[1, 4, height, 8] x) => (float[n, 4] y)
        <float[4, 4, 3, 3] w = {{{w}}}, float[8, 4] m = {{{m}}}, int64[2] rows = {{-1, 4}}> {{
            c = Conv<pads = [1, 1, 1, 1]>(x, w)
            r = Relu(c)
            s = Softmax(r)
            p = MatMul(s, m)
            z = Reshape(p, rows)
            y = Tanh(z)
        }}
    """
    caps = DeviceCapabilities("imagined", device_type=device_type, subgroup_size=8, features=FEATURE_NAMES)
    kept = load_model(model(text))

    def planned(height: int, loaded: Any) -> Plan:
        known = {**loaded.graph.weights, "x": ValueSpec(FLOAT, (1, 4, height, 8))}
        program = lower(loaded.graph.nodes, known, ["y"], loaded.opsets, caps)
        [step] = program.steps
        assert isinstance(step, IslandStep)
        return step.plan

    plans = [planned(height, kept) for height in (8, 16, 8, 24, 16)]
    assert plans[0] == plans[2] and plans[1] == plans[4]
    assert len({repr(plan) for plan in plans}) == 3
    assert plans == [planned(height, load_model(model(text))) for height in (8, 16, 8, 24, 16)]


def test_a_result_of_more_elements_than_kernels_count_is_left_to_the_cpu() -> None:
    """Also where its parts are small enough, whose kernels would write where they lie among the others."""
    text = """
        g (float16[65536, 8] a, float16[8, 20000] b) => (float16[65536, 40000] y) {
            p = MatMul(a, b)
            q = Relu(p)
            y = Concat<axis = 1>(p, q)
        }
    """
    loaded = load_model(model(text))
    known = {i.name: ValueSpec(dtypes.DTYPES["float16"], tuple(i.shape or ())) for i in loaded.graph.inputs}  # type: ignore[arg-type]
    placed = {p.node.op_type: p for p in lower(loaded.graph.nodes, known, ["y"], loaded.opsets, CAPS).placements}
    assert [placed[op].where for op in ("MatMul", "Relu", "Concat")] == ["vulkan", "vulkan", "cpu"]
    assert "2**31" in placed["Concat"].reason
