"""Delegate calls with nothing between them are one submit; what must not be joined is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.executorch.cases import DATA, GIVEN, given
from tests.vgf.harness import need_vgf
from vkep.executorch import Program

Load = Callable[..., Program]
Submits = Callable[[Any, list[Any]], int]


@pytest.fixture
def submits() -> Submits:
    """How many submits a run of a loaded method is, those that bring inputs included."""

    def count(method: Any, inputs: list[Any]) -> int:
        method.execute(inputs)  # the first makes what later ones keep
        timeline = method._resources[0].vulkan.context.timeline
        before = timeline.submitted
        method.execute(inputs)
        return int(timeline.submitted - before)

    return count


def same_as_kept(method: Any, folder: Path) -> list[Any]:
    """Run a program's first case against its results; gives its inputs."""
    arrays = np.load(folder / "cases.npz")
    inputs = [arrays[name] for name in arrays.files if name.startswith("case0_input")]
    for _ in range(2):
        for k, output in enumerate(method.execute(inputs)):
            np.testing.assert_allclose(output, arrays[f"case0_expected{k}"], atol=1e-4, rtol=1e-4)
    return inputs


def test_a_mixed_program_is_one_submit(load: Load, graph_context: Any, submits: Submits) -> None:
    need_vgf()
    x = given("unified_vgf_and_vk").inputs
    joined = load("unified_vgf_and_vk", context=graph_context).load_method("forward")
    each = load("unified_vgf_and_vk", context=graph_context, sync_mode="queue_wait_idle").load_method("forward")
    assert submits(each, x) - submits(joined, x) == 2, "three delegates, one submit"
    np.testing.assert_array_equal(joined.execute(x)[0], each.execute(x)[0])
    for scale in (1.0, -0.5):
        moved = [x[0] * np.float32(scale)]
        np.testing.assert_array_equal(joined.execute(moved)[0], each.execute(moved)[0])


@pytest.mark.slow  # its data graphs
def test_five_delegates(load: Load, graph_context: Any, submits: Submits) -> None:
    need_vgf()
    method = load(DATA / "sdpa" / "vulkan_first.pte", context=graph_context).load_method("forward")
    inputs = same_as_kept(method, DATA / "sdpa")
    each = load(DATA / "sdpa" / "vulkan_first.pte", context=graph_context, sync_mode="queue_wait_idle")
    assert submits(each.load_method("forward"), inputs) - submits(method, inputs) == 4


def test_tensors_that_pass_through_an_arena_are_waited_for(load: Load, graph_context: Any) -> None:
    """A tensor with its channels last goes from a data graph to Vulkan by way of the host: the two are no chain."""
    need_vgf()
    method = load(DATA / "channels_last" / "vulkan_first.pte", context=graph_context).load_method("forward")
    same_as_kept(method, DATA / "channels_last")
    assert [[call.step.delegate for call in chain.calls] for chain in method.parts.chains] == [[1, 2]]


def test_a_kernel_between_delegates_keeps_them_apart(load: Load) -> None:
    method = load("vk").load_method("forward")
    assert not method.parts.chains
    call = given("vk")
    np.testing.assert_allclose(method.execute(call.inputs)[0], call.outputs[0], atol=1e-4)


def test_a_run_that_fails_while_it_is_made_ready_leaves_the_next_as_it_was(
    load: Load, graph_context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_vgf()
    method = load(GIVEN / "unified_vgf_and_vk.pte", context=graph_context).load_method("forward")
    (chain,) = method.parts.chains
    call = given("unified_vgf_and_vk")
    with monkeypatch.context() as patch:

        def refuse(*arguments: Any) -> Any:
            raise RuntimeError("no more")

        patch.setattr(chain.calls[2].runner, "stage", refuse)
        with pytest.raises(RuntimeError, match="no more"):
            method.execute(call.inputs)
    for _ in range(3):
        np.testing.assert_allclose(method.execute(call.inputs)[0], call.outputs[0], atol=1e-4)
