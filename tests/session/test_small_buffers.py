"""Devices whose buffers hold little: a plan's memory lies in several, and what one buffer cannot hold is declined by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest

import gpu_shared
from gpu_shared import DeviceInfo, SharedGpuContext
from tests.session.models import model
from vkep import InferenceSession

LIMIT = 1 << 20  #: bytes in one buffer
ROWS = 65536  #: of which float32 take 256 KiB


@pytest.fixture(scope="module")
def small(vulkan: DeviceInfo) -> Iterator[SharedGpuContext]:
    """The machine's device, as if its buffers held a megabyte."""
    with gpu_shared.SharedGpuContext.create({"gpu_shared_context_token": "small buffers"}, device=vulkan) as context:
        context.device.capabilities = dataclasses.replace(context.capabilities, max_buffer_size=LIMIT)
        yield context


def test_the_buffers_of_a_plan_lie_in_several(small: SharedGpuContext) -> None:
    """Eight sums of 256 KiB, which are all needed again once their total is known."""
    each = range(8)
    body = ["zero = Constant <value_int: int = 0> ()"]
    body += [f"t{k} = CumSum <reverse: int = {k % 2}, exclusive: int = {k // 4}> (x{k % 4}, zero)" for k in each]
    body += [f"all = Sum({', '.join(f't{k}' for k in each)})"]
    body += [f"d{k} = Sub(t{k}, all) r{k} = ReduceMax(d{k})" for k in each]
    body += [f"y = Concat <axis: int = 0> ({', '.join(f'r{k}' for k in each)})"]
    feeds = ", ".join(f"float[n] x{k}" for k in range(4))
    text = f"g ({feeds}) => (float[m] y) {{ {' '.join(body)} }}"
    rng = np.random.default_rng(3)
    with InferenceSession(model(text), context=small) as session:
        for rows in (ROWS, ROWS // 2, ROWS - 7):
            values = [rng.integers(-9, 10, rows).astype(np.float32) for _ in range(4)]
            [got] = session.run(None, {f"x{k}": value for k, value in enumerate(values)})
            sums = [
                np.cumsum(values[k % 4][:: 1 - 2 * (k % 2)]) - k // 4 * values[k % 4][:: 1 - 2 * (k % 2)] for k in each
            ]
            sums = [total[:: 1 - 2 * (k % 2)] for k, total in enumerate(sums)]
            np.testing.assert_array_equal(got, [(one - np.sum(sums, axis=0)).max() for one in sums])
            assert session.report().all_on_vulkan
        assert session.report().islands[0].activation_bytes > LIMIT


def test_a_tensor_beyond_one_buffer_is_declined_by_name(small: SharedGpuContext) -> None:
    text = "g (float[n] x) => (float[n] y) { h = CumSum(x, zero) y = Neg(h) }".replace(
        "{ ", "{ zero = Constant <value_int: int = 0> () "
    )
    values = np.ones(4 * ROWS + 1, np.float32)
    with InferenceSession(model(text), context=small) as session:
        [got] = session.run(None, {"x": values})
        np.testing.assert_array_equal(got, -values.cumsum())
        assert not session.report().all_on_vulkan
        said = str(session.report())
        assert f"'x' needs {4 * values.size} bytes" in said and f"holds at most {LIMIT} (maxBufferSize)" in said


def test_a_sort_whose_temporary_memory_exceeds_a_buffer_is_declined_by_name(small: SharedGpuContext) -> None:
    """300,000 bytes, whose keys and places take 8 bytes each."""
    body = "k = Constant <value_ints: ints = [1200]> () v, i = TopK(x, k)"
    text = f"g (uint8[100,3000] x) => (uint8[100,k] v, int64[100,k] i) {{ {body} }}"
    x = np.random.default_rng(4).integers(0, 256, (100, 3000), np.uint8)
    with InferenceSession(model(text), context=small) as session:
        values, places = session.run(None, {"x": x})
        np.testing.assert_array_equal(values, np.sort(x)[:, :-1201:-1])
        np.testing.assert_array_equal(np.take_along_axis(x, places, 1), values)
        [declined] = [n for n in session.report().nodes if n.where == "cpu"]
        assert declined.op_type == "TopK" and "temporary buffers of 2400000 bytes" in declined.reason
