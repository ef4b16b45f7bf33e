"""Finding the emulation layers without the user's environment."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpu_shared
from gpu_shared import SharedGpuContext, layers, vk
from gpu_shared.descriptors import DescriptorSetLayout
from gpu_shared.errors import GpuError
from gpu_shared.pipeline import ComputePipeline, PipelineLayout, ShaderModule
from tests.vgf.harness import Bench, need_vgf
from vkep.device.datagraph.context import create_graph_context, graph_support
from vkep.plan.records import ShaderVariant
from vkep.shaders import ShaderLibrary
from vkep.vgf import decode, mlir_to_vgf


def test_manifests_name_their_libraries_by_absolute_path(tmp_path: Path) -> None:
    need_vgf()
    found = layers.emulation_layers(tmp_path)
    assert found.names == ("VK_LAYER_ML_Graph_Emulation", "VK_LAYER_ML_Tensor_Emulation")
    for name in found.names:
        manifest = json.loads((found.folder / f"{name}.json").read_text())
        library = Path(manifest["layer"]["library_path"])
        assert manifest["layer"]["name"] == name and library.is_absolute() and library.is_file()
    times = [p.stat().st_mtime_ns for p in sorted(tmp_path.iterdir())]
    layers.emulation_layers(tmp_path)
    assert [p.stat().st_mtime_ns for p in sorted(tmp_path.iterdir())] == times


def test_manifests_that_others_left_in_the_cache_folder_are_not_read(
    vulkan: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_vgf()
    monkeypatch.setenv("VKEP_CACHE_DIR", str(tmp_path))
    (tmp_path / "layers").mkdir(0o777)
    (tmp_path / "layers" / "AAA.json").write_text("{}")
    support = graph_support(vulkan)
    if support.source != "emulation layers":
        pytest.skip("the data graphs are the driver's own here")
    (folder,) = support.arguments["layer_paths"]
    assert {path.stem for path in folder.iterdir()} == set(layers.EMULATION_LAYERS)
    assert tmp_path not in folder.parents and folder.parent.stat().st_mode & 0o777 == 0o700


def test_the_environment_is_put_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("VK_ADD_LAYER_PATH", raising=False)
    with layers.layer_search([tmp_path]):
        assert os.environ["VK_ADD_LAYER_PATH"] == str(tmp_path)
    assert "VK_ADD_LAYER_PATH" not in os.environ
    monkeypatch.setenv("VK_ADD_LAYER_PATH", "theirs")
    with layers.layer_search([tmp_path]):
        assert os.environ["VK_ADD_LAYER_PATH"] == f"{tmp_path}{os.pathsep}theirs"
    assert os.environ["VK_ADD_LAYER_PATH"] == "theirs"


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(layers.LayersMissing, match="pip install ai-ml-emulation-layer-for-vulkan"):
        layers.emulation_layers(tmp_path)


# ---- what the validation layers say of the emulation layers


@pytest.fixture
def watched(vulkan: Any) -> Iterator[SharedGpuContext]:
    """A context with data graphs and, whatever VKEP_VALIDATION says, validation."""
    need_vgf()
    try:
        context = create_graph_context({"gpu_shared_context_token": "watched"}, device=vulkan, validation=True)
    except GpuError as error:
        pytest.skip(f"no validation layers: {error}")
    if not set(layers.EMULATION_LAYERS) & set(context.instance.layers):
        context.close()
        pytest.skip("the data graphs are the driver's own here")
    known = len(gpu_shared.validation_log)
    with context:
        yield context
    del gpu_shared.validation_log[known:]  # provoked here: the whole suite's log stays clean


def test_only_the_layers_own_error_is_excused(watched: SharedGpuContext) -> None:
    bench = Bench(watched)
    kind = "tensor<1x4xf32>"
    body = f"%y = tosa.tanh %x : ({kind}) -> {kind}\n return %y : {kind}"
    source = f"func.func @main(%x: {kind}) -> {kind} {{\n {body}\n}}"
    x = np.linspace(-1, 1, 4, dtype=np.float32).reshape(1, 4)
    (y,) = bench.run(decode(mlir_to_vgf(source)), [x])
    np.testing.assert_allclose(y, np.tanh(x), rtol=1e-5)
    bench.close()
    assert watched.validation_messages == []
    assert {m.message_id for m in watched.instance.excused} <= layers.LAYERS_OWN_ERRORS


def test_the_same_error_of_vkeps_own_shader_is_reported(watched: SharedGpuContext, tmp_path: Path) -> None:
    source = tmp_path / "pushes.comp"
    source.write_text(
        "#version 460\nlayout(local_size_x = 1) in;\nlayout(push_constant) uniform P { uint n; } p;\n"
        "layout(set = 0, binding = 0) buffer B { uint b[]; };\nvoid main() { b[0] = p.n; }\n"
    )
    code = ShaderLibrary().spirv(ShaderVariant(str(source))).words
    device = watched.device
    excused = len(watched.instance.excused)
    with (
        DescriptorSetLayout(device, {0: 7}) as sets,
        PipelineLayout(device, 0, [sets]) as layout,
        ShaderModule(device, code, label="ours") as module,
        ComputePipeline(device, layout, module, label="ours"),
    ):
        pass
    said = [m.message_id for m in watched.validation_messages]
    assert said == ["VUID-VkComputePipelineCreateInfo-layout-00703"]
    assert len(watched.instance.excused) == excused


def test_without_emulation_layers_nothing_is_excused() -> None:
    from gpu_shared import instance

    messages: list[Any] = []
    excused: list[Any] = []
    ffi = vk.ffi
    name = ffi.new("char[]", b"VUID-VkComputePipelineCreateInfo-layout-00703")
    text = ffi.new("char[]", b"out of range")
    data = ffi.new("VkDebugUtilsMessengerCallbackDataEXT *")
    data.pMessageIdName, data.pMessage = name, text
    known = len(gpu_shared.validation_log)
    instance._message_callback(messages)(0x1000, 0x2, data, ffi.NULL)
    instance._message_callback(messages, excused)(0x1000, 0x2, data, ffi.NULL)
    del gpu_shared.validation_log[known:]
    assert (len(messages), len(excused)) == (1, 1)
