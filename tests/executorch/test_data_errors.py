"""Data that an operator does not allow, in a program."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from tests.executorch.cases import DATA, SPECIAL
from tests.vgf.harness import need_vgf
from vkep.device.faults import FaultWord, RunCheck
from vkep.errors import InvalidInputError
from vkep.executorch import Program
from vkep.executorch.delegates import VulkanRunner

EMBEDDING = DATA / "embedding"


@pytest.mark.parametrize("sync_mode", ["timeline", "queue_wait_idle"])
@pytest.mark.parametrize("name", ["portable", "vulkan", "vgf_first", "vulkan_first"])
def test_an_index_out_of_range_is_a_bad_input(
    load: Callable[..., Program], graph_context: Any, name: str, sync_mode: str
) -> None:
    """Whether the delegate whose kernel finds it makes the results, or others compute them from what it made: a Vulkan
    delegate, a data graph, or one after the other. A failed run changes no later one."""
    if name.startswith("v") and name != "vulkan":
        need_vgf()
    arrays = np.load(EMBEDDING / "cases.npz")
    good = arrays["case0_input0"]
    program = load(EMBEDDING / f"{name}.pte", context=graph_context, sync_mode=sync_mode)
    method = program.load_method("forward")
    for wrong in (10**6, -(10**6)):
        bad = good.copy()
        bad.reshape(-1)[-1] = wrong
        for _ in range(2):
            with pytest.raises(InvalidInputError, match="embedding"):
                method.execute([bad])
        np.testing.assert_allclose(method.execute([good])[0], arrays["case0_expected0"], rtol=1e-5, atol=1e-5)


def test_each_of_several_threads_has_the_error_of_its_own_run(load: Callable[..., Program], graph_context: Any) -> None:
    need_vgf()
    arrays = np.load(EMBEDDING / "cases.npz")
    good = arrays["case0_input0"]
    bad = np.full_like(good, 10**6)
    methods = [
        load(EMBEDDING / "vgf_first.pte", context=graph_context).load_method("forward"),
        load(EMBEDDING / "vulkan_first.pte", context=graph_context).load_method("forward"),
    ]

    def one(step: int) -> bool:
        fails = step % 3 == 1
        try:
            result = methods[step % 2].execute([bad if fails else good])[0]
        except InvalidInputError:
            return fails
        np.testing.assert_allclose(result, arrays["case0_expected0"], rtol=1e-5, atol=1e-5)
        return not fails

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(one, range(24)))


def test_unchecked_on_request(load: Callable[..., Program]) -> None:
    good = np.load(EMBEDDING / "cases.npz")["case0_input0"]
    load(EMBEDDING / "vulkan.pte", check_data=False).load_method("forward").execute([np.full_like(good, 10**6)])


def test_a_failed_run_leaves_the_state_as_it_was(load: Callable[..., Program], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where no other result carries the error: the state's tensor alone has the run's check."""
    method = load(SPECIAL / "counter_vulkan.pte").load_method("forward")
    one = np.ones(3, np.float32)
    (runner,) = method._runners
    assert isinstance(runner, VulkanRunner)
    np.testing.assert_array_equal(method.execute([one])[0], [2, 2, 2])

    def fails(values: dict[str, Any], *arguments: Any) -> None:
        run(values, *arguments)
        word = MagicMock(spec=FaultWord)
        check = RunCheck(word, 0)
        check.reason = "an index is outside"
        values["state_0_out"].checks.append(check)

    run = runner._graph.run
    with monkeypatch.context() as patched:
        patched.setattr(runner._graph, "run", fails)
        for _ in range(2):
            with pytest.raises(InvalidInputError, match="an index is outside"):
                method.execute([one])
    np.testing.assert_array_equal(method.execute([one])[0], [4, 4, 4])
