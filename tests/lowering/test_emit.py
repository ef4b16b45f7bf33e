"""From operations to plans: a kernel is selected once, and again where its tensors are moved; a plan does not depend on
what was planned before it. No GPU is used.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gpu_shared.capabilities import FEATURE_NAMES, DeviceCapabilities
from tests.session.models import model
from vkep import dtypes
from vkep.errors import Decline, KernelBoundsError
from vkep.graph import load_model
from vkep.ir.builder import Builder
from vkep.ir.program import IslandStep, ValueSpec, declared_value
from vkep.ir.tensor import Storage, Tensor
from vkep.kernels.kernel import Kernel, KernelCall
from vkep.passes.emit import emit
from vkep.passes.pipeline import run_passes
from vkep.passes.rewrite import Goal
from vkep.placement.partition import lower
from vkep.plan.records import Plan, Port

FLOAT = dtypes.DTYPES["float32"]
CAPS = DeviceCapabilities("imagined GPU", device_type="discrete", features=FEATURE_NAMES)


def _port(index: int, shape: tuple[int, ...]) -> Tensor:
    return Tensor.contiguous(FLOAT, shape, Storage(128, port=index))


def _custom(kernel: Kernel, asked: list[Tensor]) -> Any:
    """A function for `Builder.kernel` that notes where it is to put its result."""

    def emit_one(target: Any, i: Sequence[Tensor], o: Sequence[Tensor], _: Any) -> list[KernelCall]:
        asked.append(o[0])
        if o[0].shape[0] > 4:
            raise ValueError("four rows at most")
        return [kernel.call(grid=(1,), operands={"x": i[0], "y": o[0]}, params={"n": o[0].size})]

    return emit_one


@pytest.fixture
def own(tmp_path: Path) -> Kernel:
    """A kernel of x and y."""
    (tmp_path / "own.comp").write_text("#define ARGS_BODY { uvec2 x; WRITTEN y; uint n; }")
    return Kernel(str(tmp_path / "own.comp"))


def test_a_kernel_of_ones_own_is_tried_when_claimed_and_emitted_where_its_result_lies(own: Kernel) -> None:
    asked: list[Tensor] = []
    b = Builder(CAPS)
    x, y = _port(0, (4, 8)), _port(1, (4, 8))
    out = b.empty(FLOAT, (4, 8))
    b.kernel([x], [out], _custom(own, asked))
    b.copy(out, out=y)
    ports = [Port(name, "float32", (4, 8), 128, name == "x") for name in "xy"]
    [dispatch] = emit(run_passes(b.ops, Goal([y], CAPS)), ports, CAPS).plan.dispatches
    assert [r.index for r in (*dispatch.reads, *dispatch.writes)] == [0, 1]
    assert [t.storage.port for t in asked] == [None, 1]


def test_refusals_of_a_users_kernel_decline_the_node(own: Kernel) -> None:
    b = Builder(CAPS)
    with pytest.raises(Decline, match="four rows at most"):
        b.kernel([_port(0, (4, 8))], [b.empty(FLOAT, (5, 8))], _custom(own, []))
    assert not b.ops


def test_a_kernel_that_may_leave_its_operand_is_planned_nowhere(own: Kernel) -> None:
    b = Builder(CAPS)
    x, y = _port(0, (4, 8)), _port(1, (4, 8))
    reach = lambda call: {"x": 4 * call["n"] + 4, "y": 4 * call["n"]}  # noqa: E731
    b.kernel([x], [y], _custom(dataclasses.replace(own, reach=reach), []))
    with pytest.raises(KernelBoundsError, match=r"own.comp: it may touch 132 bytes of 'x' from byte 0 on"):
        emit(
            run_passes(b.ops, Goal([y], CAPS)), [Port(name, "float32", (4, 8), 128, name == "x") for name in "xy"], CAPS
        )


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
    known: dict[str, Any] = {i.name: declared_value(i) for i in loaded.graph.inputs}
    large = dataclasses.replace(CAPS, max_buffer_size=1 << 40)
    placed = {p.node.op_type: p for p in lower(loaded.graph.nodes, known, ["y"], loaded.opsets, large).placements}
    assert [placed[op].where for op in ("MatMul", "Relu", "Concat")] == ["vulkan", "vulkan", "cpu"]
    assert "2**31" in placed["Concat"].reason


def test_operations_that_are_rolled_back_are_not_shared_with_later_nodes() -> None:
    b = Builder(CAPS)
    lengths = Tensor.contiguous(dtypes.DTYPES["int32"], (4,))
    for _ in range(2):
        before = b.attempt()
        b.expect_range("lengths", lengths, 0, 3)
        b.expect_range("lengths", lengths, 0, 3)
        assert len(b.ops) == 1
        before.undo()
        assert not b.ops
