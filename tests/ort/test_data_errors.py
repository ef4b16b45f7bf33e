"""Data that break an operator's specification are a failed run of ONNX Runtime's, as on its CPU provider."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnxruntime
import pytest

from tests.ort.conftest import OpenSession, graph

OnGpu = Callable[[np.ndarray[Any, Any]], Any]
DIVIDE = graph("g (int32[n] x, int32[n] d) => (int32[n] y) { [split] q = Div(x, d) y = Neg(q) }")
X, GOOD, BAD = np.arange(4, dtype=np.int32) * 6, np.array([1, 2, 3, 6], np.int32), np.array([1, 2, 0, 6], np.int32)
Y = -(X // GOOD)
REFUSED = r"Div 'split': an integer is divided by zero"  # io binding drops the status' code


@pytest.mark.parametrize("options", [{}, {"io": "host"}, {"kernels": "registry"}], ids=str)
def test_a_bad_run_fails_and_the_next_is_right(session: OpenSession, options: dict[str, str]) -> None:
    made = session(DIVIDE, **options)
    for _ in range(3):
        np.testing.assert_array_equal(made.run(None, {"x": X, "d": GOOD})[0], Y)
        with pytest.raises(Exception, match=r"INVALID_ARGUMENT.*an integer is divided by zero"):
            made.run(None, {"x": X, "d": BAD})


def test_switched_off(session: OpenSession) -> None:
    made = session(DIVIDE, check_data=0)
    np.testing.assert_array_equal(made.run(None, {"x": X, "d": BAD})[0], np.where(BAD == 0, 0, Y))


@pytest.mark.parametrize("sync", ["0", "1"])
def test_outputs_that_stay_on_the_device(session: OpenSession, on_gpu: OnGpu, sync: str) -> None:
    made = session(DIVIDE)
    source, divisors, target = on_gpu(X), on_gpu(GOOD), on_gpu(np.zeros_like(X))
    binding = made.io_binding()
    for name, given in (("x", source), ("d", divisors)):
        binding.bind_ortvalue_input(name, given)
    binding.bind_ortvalue_output("y", target)
    options = onnxruntime.RunOptions()
    options.add_run_config_entry("disable_synchronize_execution_providers", sync)
    for given in (GOOD, BAD, GOOD, BAD, BAD, GOOD):
        divisors.update_inplace(given)
        if given is GOOD:
            made.run_with_iobinding(binding, options)
            np.testing.assert_array_equal(target.numpy(), Y)
        else:
            with pytest.raises(Exception, match=REFUSED):
                made.run_with_iobinding(binding, options)


@pytest.mark.parametrize("parallel", [False, True])
def test_only_the_bad_runs_of_many_threads_fail(session: OpenSession, parallel: bool) -> None:
    made = session(DIVIDE, concurrency=3, parallel=parallel)
    made.run(None, {"x": X, "d": GOOD})

    def one(step: int) -> bool:
        bad = step % 3 == 1
        try:
            result = made.run(None, {"x": X, "d": BAD if bad else GOOD})[0]
        except onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument:
            return bad
        np.testing.assert_array_equal(result, Y)
        return not bad

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(one, range(60)))


@pytest.mark.usefixtures("staged")
def test_device_memory_that_the_host_does_not_see(session: OpenSession) -> None:
    test_a_bad_run_fails_and_the_next_is_right(session, {})
