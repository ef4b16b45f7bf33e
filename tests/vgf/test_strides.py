"""Tensors of a file that have gaps between their rows, and what of a file vkep says beforehand that it does not run."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

from tests.vgf.harness import Bench, need_vgf
from vkep.device.datagraph.runner import VgfRunner
from vkep.device.tensor import DeviceTensor
from vkep.dtypes import DTYPES
from vkep.executorch.delegate_payloads import VgfBlob
from vkep.vgf import InvalidVgfError, Vgf, decode, mlir_to_vgf
from vkep.vgf.layout import from_memory, memory_shape, strides_of, to_memory, unsupported

TENSOR, IMAGE, F32 = 1000460000, 3, 100
ROWS = [4, 3, 5]
DENSE = [60, 20, 4]
REVERSED = """
func.func @main(%x: tensor<4x3x5xf32>) -> tensor<4x3x5xf32> {
  %y = tosa.reverse %x {axis = 2 : i32} : (tensor<4x3x5xf32>) -> tensor<4x3x5xf32>
  %z = tosa.abs %y : (tensor<4x3x5xf32>) -> tensor<4x3x5xf32>
  return %z : tensor<4x3x5xf32>
}
"""


@pytest.fixture(scope="module")
def graph() -> Vgf:
    need_vgf()
    return decode(mlir_to_vgf(REVERSED))


def file(graph: Vgf, given: list[int], made: list[int], between: list[int], kind: int = TENSOR, push: int = 0) -> bytes:
    """The graph twice; strides of its input, of what lies between, and of its output."""
    import vgfpy

    e: Any = vgfpy.CreateEncoder(359)
    code = graph.modules[0]
    assert code.spirv is not None
    words = np.frombuffer(code.spirv, np.uint32).tolist()
    module = e.AddModule(vgfpy.ModuleType.Graph, "reversed", code.entry_point, words)
    x = e.AddInputResource(TENSOR, F32, ROWS, given)
    middle = e.AddIntermediateResource(kind, F32, ROWS, between)
    y = e.AddOutputResource(TENSOR, F32, ROWS, made)
    pushes = [e.AddPushConstRange(0x20, 0, push)] if push else []
    for name, source, target in (("first", x, middle), ("second", middle, y)):
        slots = [e.AddBindingSlot(0, source), e.AddBindingSlot(1, target)]
        info = e.AddDescriptorSetInfo(slots, 0)
        e.AddSegmentInfo(
            module, name, [info], slots[:1], slots[1:], [], dispatchShape=[0, 0, 0], pushConstRanges=pushes
        )
    e.AddModelSequenceInputsOutputs([e.AddBindingSlot(0, x)], ["x"], [e.AddBindingSlot(1, y)], ["y"])
    e.Finish()
    out = io.BytesIO()
    assert e.WriteTo(out)
    return out.getvalue()


@pytest.mark.parametrize(
    ("given", "made", "between"),
    [
        ([96, 32, 4], [], []),
        ([], [128, 24, 4], []),
        ([], [], [104, 28, 4]),
        ([80, 20, 4], [60, 20, 4], [72, 24, 4]),
    ],
)
def test_gaps_between_rows(bench: Bench, graph: Vgf, given: list[int], made: list[int], between: list[int]) -> None:
    vgf = decode(file(graph, given, made, between))
    assert unsupported(vgf) == []
    x = np.random.default_rng(0).standard_normal(ROWS).astype(np.float32)
    for array in (x, -2 * x):
        (y,) = bench.run(vgf, [array])
        np.testing.assert_array_equal(y, np.abs(array))


def test_gaps_are_the_callers_in_memory_of_its_own(bench: Bench, graph: Vgf) -> None:
    """What lies in an output's gaps stays as it was."""
    vgf = decode(file(graph, [96, 32, 4], [128, 24, 4], []))
    source, target = (vgf.resources[s.resource] for s in (*vgf.inputs, *vgf.outputs))
    x = np.random.default_rng(1).standard_normal(ROWS).astype(np.float32)
    runner = VgfRunner(bench.delegate, vgf)
    given = DeviceTensor.from_numpy(bench.memory, to_memory(source, x))
    made = DeviceTensor(bench.memory, DTYPES["float32"], memory_shape(target))
    short = DeviceTensor(bench.memory, DTYPES["float32"], (60,))
    try:
        made.write(np.full(memory_shape(target), 7, np.float32))
        runner.submit([given], [made])
        memory = made.numpy()
        np.testing.assert_array_equal(from_memory(target, memory), np.abs(x))
        assert np.count_nonzero(memory == 7) == memory.size - x.size
        with pytest.raises(ValueError, match=r"240 bytes; the file has float32 .*512 bytes"):
            runner.submit([given], [short])
    finally:
        runner.close()
        for tensor in (given, made, short):
            tensor.close()


@pytest.mark.parametrize("strides", [[60, 20, 8], [60, 16, 4], [62, 20, 4], [40, 20, 4], [20, 4]])
def test_strides_that_no_tensor_has(bench: Bench, graph: Vgf, strides: list[int]) -> None:
    vgf = decode(file(graph, strides, [], []))
    with pytest.raises(InvalidVgfError, match=r"'x' has strides .* expected one for each dimension, 4 bytes the last"):
        VgfRunner(bench.delegate, vgf)
    assert len(unsupported(vgf)) == 1


def test_a_program_has_no_gaps_for_its_delegates(graph: Vgf) -> None:
    """ExecuTorch's tensors are dense, and it is said before any device is asked."""
    lines = VgfBlob(decode(file(graph, [96, 32, 4], [], []))).missing({})
    assert lines == ["'x' has gaps between its elements, the program's tensor none"]
    assert VgfBlob(decode(file(graph, [], [], [72, 24, 4]))).missing({}) == []


def test_a_device_that_packs_its_tensors(bench: Bench, graph: Vgf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vkep.device.datagraph.runner.takes_gaps", lambda device: False)
    with pytest.raises(InvalidVgfError, match=r"'x' has strides .* the device takes tensors without gaps"):
        VgfRunner(bench.delegate, decode(file(graph, [96, 32, 4], [], [])))
    assert bench.run(decode(file(graph, DENSE, DENSE, DENSE)), [np.ones(ROWS, np.float32)])[0].shape == tuple(ROWS)


def test_unsupported_parts_are_named_without_a_device(graph: Vgf) -> None:
    lines = unsupported(decode(file(graph, [], [], [], kind=IMAGE, push=8)))
    assert [line.split(":")[0] for line in lines] == [
        "segment 'first' binding 1 is bound as VkDescriptorType 3; vkep runs tensors and buffers",
        "segment 'first' takes push constants, whose values no file holds",
        "segment 'second' binding 0 is bound as VkDescriptorType 3; vkep runs tensors and buffers",
        "segment 'second' takes push constants, whose values no file holds",
    ]
    assert not any(strides_of(resource) for resource in graph.resources)
