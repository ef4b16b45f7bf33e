"""Files of several segments: graphs and compute shaders in one, constants, intermediates; and what is refused."""

from __future__ import annotations

import io
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.vgf.harness import Bench, need_vgf
from vkep.device.datagraph.runner import VgfRunner
from vkep.vgf import InvalidVgfError, Vgf, decode, mlir_to_vgf

TENSOR, BUFFER, F32 = 1000460000, 7, 100
NEGATE = """
func.func @main(%x: tensor<64xf32>) -> tensor<64xf32> {
  %y = tosa.abs %x : (tensor<64xf32>) -> tensor<64xf32>
  return %y : tensor<64xf32>
}
"""
SCALE = """#version 460
layout(local_size_x = 32) in;
layout(std430, set = 0, binding = 0) readonly buffer X { float x[]; };
layout(std430, set = 0, binding = 1) readonly buffer K { float k[]; };
layout(std430, set = 0, binding = 2) writeonly buffer Y { float y[]; };
void main() { uint i = gl_GlobalInvocationID.x; if (i < 64) y[i] = x[i] * k[i % 4] - 1.0; }
"""


@pytest.fixture(scope="module")
def shader(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    runner = pytest.importorskip("scenario_runner")
    folder = tmp_path_factory.mktemp("shader")
    (folder / "scale.comp").write_text(SCALE)
    glslc = Path(runner.__file__).parent / "binaries" / "bin" / "glslc"
    subprocess.run(
        [glslc, "--input", folder / "scale.comp", "--output", folder / "scale.spv"], check=True, capture_output=True
    )
    return (folder / "scale.spv").read_bytes()


@pytest.fixture(scope="module")
def graph() -> Vgf:
    need_vgf()
    return decode(mlir_to_vgf(NEGATE))


def words(code: bytes) -> list[int]:
    return np.frombuffer(code, np.uint32).tolist()


def file(
    shader: bytes | str,
    graph: Vgf,
    *,
    push: int = 0,
    image: bool = False,
    wrong_kind: bool = False,
    sparse: int = -1,
    language: str = "Glsl",
) -> bytes:
    """abs, then the shader (times a constant, less one), then abs again.

    ``push`` are bytes of push constants, a text is the shader's source.
    """
    import vgfpy

    e: Any = vgfpy.CreateEncoder(359)
    code = graph.modules[0]
    assert code.spirv is not None
    absolute = e.AddModule(vgfpy.ModuleType.Graph, "abs", code.entry_point, words(code.spirv))
    kind = vgfpy.ModuleType.Graph if wrong_kind else vgfpy.ModuleType.Compute
    if isinstance(shader, str):
        scale = e.AddModule(kind, "scale", "main", getattr(vgfpy.ShaderType, language), shader)
    else:
        scale = e.AddModule(kind, "scale", "main", words(shader))
    x = e.AddInputResource(TENSOR, F32, [64], [])
    middle = e.AddIntermediateResource(3 if image else BUFFER, F32, [64], [])
    scaled = e.AddIntermediateResource(BUFFER, F32, [64], [])
    y = e.AddOutputResource(TENSOR, F32, [64], [])
    k = e.AddConstantResource(F32, [4], [])
    e.AddConstant(k, np.array([1, 2, 3, 4], np.float32).tobytes(), sparse)
    pushes = [e.AddPushConstRange(0x20, 0, push)] if push else []

    def segment(module: Any, name: str, bound: list[tuple[int, Any]], shape: list[int]) -> None:
        slots = [e.AddBindingSlot(binding, resource) for binding, resource in bound]
        ranges = pushes if shape[0] else []
        e.AddSegmentInfo(
            module, name, [e.AddDescriptorSetInfo(slots, 0)], slots[:-1], slots[-1:], [], dispatchShape=shape,
            pushConstRanges=ranges,
        )  # fmt: skip

    segment(absolute, "first", [(0, x), (1, middle)], [0, 0, 0])
    segment(scale, "second", [(0, middle), (1, k), (2, scaled)], [2, 1, 1])
    segment(absolute, "third", [(0, scaled), (1, y)], [0, 0, 0])
    e.AddModelSequenceInputsOutputs([e.AddBindingSlot(0, x)], ["x"], [e.AddBindingSlot(1, y)], ["y"])
    e.Finish()
    out = io.BytesIO()
    assert e.WriteTo(out)
    return out.getvalue()


def test_graphs_and_shaders_run_in_one_file(bench: Bench, shader: bytes, graph: Vgf) -> None:
    vgf = decode(file(shader, graph))
    assert [s.kind for s in vgf.segments] == ["graph", "compute", "graph"]
    # a graph binds tensors: an intermediate that a shader reads as a buffer is a tensor to the graph beside it
    x = np.random.default_rng(0).uniform(-1, 1, 64).astype(np.float32)
    (y,) = bench.run(vgf, [x])
    want = np.abs(np.abs(x) * np.tile([1, 2, 3, 4], 16).astype(np.float32) - 1)
    np.testing.assert_allclose(y, want, rtol=1e-6, atol=1e-6)


SHIFTED = SCALE.replace("void main", "layout(push_constant) uniform P { float by; int times; };\nvoid main").replace(
    "- 1.0", "- by * times"
)


def test_shaders_in_source_form_and_push_constants(bench: Bench, graph: Vgf) -> None:
    """GLSL is compiled; a file says where push constants lie, who runs it gives their values."""
    vgf = decode(file(SHIFTED, graph, push=8))
    assert vgf.modules[1].language == "GLSL" and vgf.modules[1].source == SHIFTED
    x = np.random.default_rng(1).uniform(-1, 1, 64).astype(np.float32)
    scaled = np.abs(x) * np.tile([1, 2, 3, 4], 16).astype(np.float32)
    for by, times in ((0.5, 3), (2.0, -1)):
        values = np.float32(by).tobytes() + np.int32(times).tobytes()
        (y,) = bench.run(vgf, [x], push_constants={"second": values})
        np.testing.assert_allclose(y, np.abs(scaled - by * times), rtol=1e-6, atol=1e-6)


def test_push_constants_that_are_missing_or_do_not_fit(bench: Bench, shader: bytes, graph: Vgf) -> None:
    vgf = decode(file(shader, graph, push=8))
    with pytest.raises(InvalidVgfError, match=r"segment 'second' has push constants, 8 bytes .*give their values"):
        VgfRunner(bench.delegate, vgf)
    with pytest.raises(ValueError, match="4 bytes of push constants for segment 'second', which takes 8"):
        VgfRunner(bench.delegate, vgf, push_constants={"second": b"1234"})
    with pytest.raises(ValueError, match="for 'third'; segments that take some: \\['second'\\]"):
        VgfRunner(bench.delegate, vgf, push_constants={"third": b"1234", "second": b"12345678"})


def test_a_constant_said_to_be_sparse_is_dense_data(bench: Bench, shader: bytes, graph: Vgf) -> None:
    vgf = decode(file(shader, graph, sparse=0))
    assert vgf.constants[0].sparse_dimension == 0
    x = np.random.default_rng(2).uniform(-1, 1, 64).astype(np.float32)
    np.testing.assert_array_equal(bench.run(vgf, [x]), bench.run(decode(file(shader, graph)), [x]))
    with pytest.raises(InvalidVgfError, match="constant 0 is sparse along axis 3"):
        decode(file(shader, graph, sparse=3))


def test_unsupported_modules_are_named(bench: Bench, shader: bytes, graph: Vgf) -> None:
    with pytest.raises(InvalidVgfError, match="module 'scale' is HLSL source, which vkep does not compile"):
        VgfRunner(bench.delegate, decode(file("[numthreads(1,1,1)] void main() {}", graph, language="Hlsl")))
    with pytest.raises(InvalidVgfError, match=r"module 'scale' in GLSL cannot be compiled: .*scale\.comp"):
        VgfRunner(bench.delegate, decode(file("#version 460\nvoid main() { nonsense }\n", graph)))
    with pytest.raises(InvalidVgfError, match="VkDescriptorType 3; vkep runs tensors and buffers"):
        VgfRunner(bench.delegate, decode(file(shader, graph, image=True)))


def test_a_segment_whose_module_is_of_another_kind(shader: bytes, graph: Vgf) -> None:
    try:
        vgf = decode(file(shader, graph, wrong_kind=True))
    except InvalidVgfError:
        return
    assert {s.kind for s in vgf.segments} == {"graph"}  # the encoder derives a segment's kind from its module


FOLDED = """
func.func @main(%a: tensor<4x8xf32>, %b: tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>) {
  %s1 = "tosa.const_shape"() <{values = dense<[32]> : tensor<1xindex>}> : () -> !tosa.shape<1>
  %s2 = "tosa.const_shape"() <{values = dense<[4, 8]> : tensor<2xindex>}> : () -> !tosa.shape<2>
  %x = "tosa.reshape"(%b, %s1) : (tensor<4x8xf32>, !tosa.shape<1>) -> tensor<32xf32>
  %y = "tosa.reshape"(%x, %s2) : (tensor<32xf32>, !tosa.shape<2>) -> tensor<4x8xf32>
  %z = "tosa.add"(%a, %y) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %f = "tosa.reshape"(%z, %s1) : (tensor<4x8xf32>, !tosa.shape<1>) -> tensor<32xf32>
  %g = "tosa.reshape"(%f, %s2) : (tensor<32xf32>, !tosa.shape<2>) -> tensor<4x8xf32>
  return %y, %z, %g : tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>
}
"""


def test_outputs_that_folding_made_an_input_or_each_other(bench: Bench) -> None:
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal((4, 8)).astype(np.float32) for _ in range(2))
    passed, first, second = bench.run(decode(mlir_to_vgf(FOLDED)), [a, b])
    np.testing.assert_array_equal(passed, b)
    np.testing.assert_allclose(first, a + b, rtol=1e-6)
    np.testing.assert_array_equal(first, second)


def test_a_flatbuffer_is_converted_as_its_text_is(graph: Vgf) -> None:
    from vkep.vgf.convert import mlir_to_flatbuffer

    again = decode(mlir_to_vgf(mlir_to_flatbuffer(NEGATE)))
    assert again.modules[0].spirv is not None and graph.modules[0].spirv is not None
    assert [r.shape for r in again.resources] == [r.shape for r in graph.resources]
