"""Files on a device: results, replay, memory, errors."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpu_shared
from gpu_shared.errors import ContextIncompatibleError, GpuError
from tests.vgf.harness import DATA, Bench, need_vgf
from vkep.device.datagraph.context import why_no_graphs
from vkep.device.datagraph.delegate import VgfDelegate
from vkep.device.datagraph.runner import RECORDINGS, VgfRunner
from vkep.device.delegate import VulkanDelegate
from vkep.device.tensor import DeviceTensor
from vkep.dtypes import DTYPES
from vkep.shaders.library import ShaderLibrary
from vkep.vgf import InvalidVgfError, Vgf, decode, mlir_to_vgf

F32 = DTYPES["float32"]
TAN = """
func.func @main(%x: tensor<1x4x4x3xf32>) -> tensor<1x4x4x3xf32> {
  %s = tosa.sin %x : (tensor<1x4x4x3xf32>) -> tensor<1x4x4x3xf32>
  %c = tosa.cos %x : (tensor<1x4x4x3xf32>) -> tensor<1x4x4x3xf32>
  %r = tosa.reciprocal %c : (tensor<1x4x4x3xf32>) -> tensor<1x4x4x3xf32>
  %z = "tosa.const"() <{values = dense<0> : tensor<1xi8>}> : () -> tensor<1xi8>
  %y = tosa.mul %s, %r, %z : (tensor<1x4x4x3xf32>, tensor<1x4x4x3xf32>, tensor<1xi8>) -> tensor<1x4x4x3xf32>
  return %y : tensor<1x4x4x3xf32>
}
"""
SHAPE = (1, 4, 4, 3)


@pytest.fixture(scope="module")
def tan() -> Vgf:
    need_vgf()
    return decode(mlir_to_vgf(TAN))


def some(seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).uniform(-1, 1, SHAPE).astype(np.float32)


def test_a_tosa_function_equals_numpy(bench: Bench, tan: Vgf) -> None:
    x = some(0)
    (y,) = bench.run(tan, [x])
    np.testing.assert_allclose(y, np.tan(x), rtol=2e-6, atol=1e-6)


def test_a_recording_is_replayed_with_new_content(bench: Bench, tan: Vgf) -> None:
    runner = VgfRunner(bench.delegate, tan)
    x, y = DeviceTensor(bench.memory, F32, SHAPE), DeviceTensor(bench.memory, F32, SHAPE)
    for seed in range(4):
        x.write(some(seed))
        runner.submit([x], [y])
        np.testing.assert_allclose(y.numpy(), np.tan(some(seed)), rtol=2e-6, atol=1e-6)
    assert len(runner._recordings) == 1
    runner.close()
    x.close()
    y.close()


def test_results_pass_from_graph_to_graph_without_the_host(bench: Bench, tan: Vgf) -> None:
    runner = VgfRunner(bench.delegate, tan)
    tensors = [DeviceTensor.from_numpy(bench.memory, some(1) / 4)]
    tensors += [DeviceTensor(bench.memory, F32, SHAPE) for _ in range(3)]
    for source, target in itertools.pairwise(tensors):
        runner.submit([source], [target])
    np.testing.assert_allclose(tensors[-1].numpy(), np.tan(np.tan(np.tan(some(1) / 4))), rtol=1e-5, atol=1e-6)
    runner.close()
    for tensor in tensors:
        tensor.close()


def test_recordings_are_bounded_and_forgotten(bench: Bench, tan: Vgf) -> None:
    runner = VgfRunner(bench.delegate, tan)
    pairs = [
        (DeviceTensor.from_numpy(bench.memory, some(i)), DeviceTensor(bench.memory, F32, SHAPE))
        for i in range(RECORDINGS + 3)
    ]
    for x, y in pairs:
        runner.submit([x], [y])
    assert len(runner._recordings) == RECORDINGS
    for i, (_, y) in enumerate(pairs):
        np.testing.assert_allclose(y.numpy(), np.tan(some(i)), rtol=2e-6, atol=1e-6)
    runner.forget([t for pair in pairs for t in pair])
    assert not runner._recordings
    runner.close()
    for x, y in pairs:
        x.close()
        y.close()


def test_threads_share_a_runner(bench: Bench, tan: Vgf) -> None:
    runner = VgfRunner(bench.delegate, tan)
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for k in range(5):
                (y,) = runner.run([some(seed * 10 + k)])
                np.testing.assert_allclose(y, np.tan(some(seed * 10 + k)), rtol=2e-6, atol=1e-6)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    runner.close()
    assert errors == []


@pytest.mark.usefixtures("collected")
def test_nothing_is_left(graph_context: Any, tan: Vgf) -> None:
    before = gpu_shared.live_counts()
    bench = Bench(graph_context)
    bench.run(tan, [some(3)])
    assert gpu_shared.live_counts().get("data_graph_pipeline", 0) == before.get("data_graph_pipeline", 0)
    bench.close()
    graph_context.wait_idle()
    after = gpu_shared.live_counts()
    for kind in ("tensor", "data_graph_session", "descriptor_pool", "descriptor_set_layout", "command_pool"):
        assert after.get(kind, 0) == before.get(kind, 0), kind


@pytest.mark.parametrize("name", ["executorch_pool", "executorch_trig", "executorch_cnn"])
def test_executorch_files_run(bench: Bench, name: str) -> None:
    vgf = decode((DATA / f"{name}.vgf").read_bytes())
    if name == "executorch_cnn":
        arrays = np.load(DATA / "executorch_cnn.npz")
        (y,) = bench.run(vgf, [arrays["x"]])
        np.testing.assert_allclose(y, arrays["y"], rtol=1e-5, atol=1e-6)
    elif name == "executorch_pool":  # transpose(-1, -2), then a 2x2 average pool
        x = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)
        (y,) = bench.run(vgf, [x])
        want = x.transpose(0, 1, 3, 2).reshape(1, 3, 4, 2, 4, 2).mean((3, 5))
        np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6)
    else:  # sin(x) / cos(x), transposed
        x = np.random.default_rng(0).uniform(-0.8, 0.8, (1, 3, 4, 4)).astype(np.float32)
        (y,) = bench.run(vgf, [x])
        np.testing.assert_allclose(y, np.tan(x).transpose(0, 1, 3, 2), rtol=1e-5, atol=1e-6)


def test_wrong_tensors_are_refused(bench: Bench, tan: Vgf) -> None:
    runner = VgfRunner(bench.delegate, tan)
    x, small = DeviceTensor.from_numpy(bench.memory, some(0)), DeviceTensor(bench.memory, F32, (2, 2))
    with pytest.raises(ValueError, match=r"16 bytes; the file has float32 \(1, 4, 4, 3\), 192 bytes"):
        runner.submit([x], [small])
    with pytest.raises(ValueError, match="an input's memory is also an output's"):
        runner.submit([x], [x])
    with pytest.raises(ValueError, match="1 inputs and 0 outputs"):
        runner.submit([x], [])
    with pytest.raises(ValueError, match="do not lie densely"):
        runner.submit([x.leading(x.shape)], [small])
    with pytest.raises(ValueError, match=r"got float64 \(1, 4, 4, 3\), the file has float32"):
        runner.run([some(0).astype(np.float64)])
    runner.close()
    x.close()
    small.close()


def test_a_context_without_the_extensions_says_so(shared_context: Any) -> None:
    if "VK_ARM_data_graph" in shared_context.enabled_extensions:
        pytest.skip("this driver's own contexts run data graphs")
    assert "VK_ARM_data_graph" in why_no_graphs(shared_context)
    memory = VulkanDelegate(shared_context, ShaderLibrary())
    with pytest.raises(ContextIncompatibleError, match="VK_ARM_data_graph"):
        VgfDelegate(memory)
    memory.close()


@pytest.mark.usefixtures("collected")
def test_a_driver_that_refuses_a_graph_leaves_nothing(bench: Bench, tan: Vgf, monkeypatch: Any) -> None:
    before = gpu_shared.live_counts()
    fn = bench.context.device.fn
    monkeypatch.setattr(fn, "vkCreateDataGraphPipelinesARM", lambda *a: -3)
    with pytest.raises(GpuError, match="vkCreateDataGraphPipelinesARM"):
        VgfRunner(bench.delegate, tan)
    assert gpu_shared.live_counts() == before


def test_placeholders_of_a_file_must_be_given(bench: Bench, tan: Vgf) -> None:
    from dataclasses import replace

    bare = replace(tan, modules=tuple(replace(m, spirv=None) for m in tan.modules))
    with pytest.raises(InvalidVgfError, match="is a placeholder: give its SPIR-V by name"):
        VgfRunner(bench.delegate, bare)
    code = tan.modules[0].spirv
    assert code is not None
    (y,) = bench.run(bare, [some(5)], code={tan.modules[0].name: code})
    np.testing.assert_allclose(y, np.tan(some(5)), rtol=2e-6, atol=1e-6)


def test_data_is_here() -> None:
    assert sorted(p.name for p in Path(DATA).glob("*.vgf")) == [
        "executorch_cnn.vgf",
        "executorch_pool.vgf",
        "executorch_trig.vgf",
    ]
