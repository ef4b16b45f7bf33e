"""ncnn with its Vulkan backend; the model is converted by pnnx."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import ncnn
import numpy as np
import onnx

from tools.bench.peers.base import Peer, Unavailable, count_words
from vkep.models.builder import Array


def pnnx_program() -> Path:
    """The converter's executable inside its wheel (its Python side would import torch).

    Raises:
        Unavailable: if pnnx is not installed.
    """
    spec = importlib.util.find_spec("pnnx")
    if spec is None or not spec.submodule_search_locations:
        raise Unavailable("pnnx, which converts models for ncnn, is not installed (pip install --no-deps pnnx)")
    name = "pnnx.exe" if sys.platform == "win32" else "pnnx"
    return Path(spec.submodule_search_locations[0]) / name


class NcnnPeer(Peer):
    """float32 throughout, since ncnn's float16 mode changes results by percents. ncnn has no batch axis, so a batch of
    one is removed from inputs of three and more axes."""

    packages = ("ncnn", "pnnx")

    def open(self, model: Path, inputs: Mapping[str, Array]) -> None:
        if ncnn.get_gpu_count() == 0:
            raise Unavailable("ncnn finds no Vulkan device")
        for name, value in inputs.items():
            if value.dtype != np.float32:
                raise Unavailable(f"input {name} is {value.dtype}: ncnn has no integer Gather")
        self._folder = tempfile.TemporaryDirectory()
        copy = Path(self._folder.name) / "model.onnx"
        loaded = onnx.load(model)
        onnx.save(loaded, copy)  # with its weights inside
        converted = subprocess.run(
            [str(pnnx_program()), str(copy), "fp16=0"], cwd=self._folder.name, capture_output=True, text=True
        )
        param, weights = copy.with_name("model.ncnn.param"), copy.with_name("model.ncnn.bin")
        if converted.returncode or not param.exists():
            raise Unavailable(f"pnnx cannot convert it: {(converted.stderr or converted.stdout).strip()[-200:]}")
        self._net = ncnn.Net()
        self._net.opt.use_vulkan_compute = True
        for option in ("use_fp16_packed", "use_fp16_storage", "use_fp16_arithmetic"):
            setattr(self._net.opt, option, False)
        # The return code is the only sign of an unsupported layer.
        if self._net.load_param(str(param)) or self._net.load_model(str(weights)):
            raise Unavailable("ncnn cannot load the converted model (a layer is not supported)")
        self._inputs = [
            np.ascontiguousarray(value[0] if value.ndim >= 3 and value.shape[0] == 1 else value)
            for value in inputs.values()
        ]
        self._names = [output.name for output in loaded.graph.output]
        if len(self._net.output_names()) != len(self._names):
            raise Unavailable("the converted model has another number of outputs")

    def run(self) -> dict[str, Array]:
        extractor = self._net.create_extractor()
        for index, value in enumerate(self._inputs):
            extractor.input(f"in{index}", ncnn.Mat(value))
        results = {}
        for index, name in enumerate(self._names):
            code, mat = extractor.extract(f"out{index}")
            if code:
                raise RuntimeError(f"ncnn could not compute {name}: code {code}")
            results[name] = np.array(mat)
        return results

    def placement(self) -> str:
        layers = [layer for layer in self._net.layers() if layer.type != "Input"]
        cpu = Counter(layer.type for layer in layers if not layer.support_vulkan)
        if not cpu:
            return f"all {len(layers)} layers on Vulkan"
        return f"{len(layers) - cpu.total()} layers on Vulkan, on the CPU: {count_words(cpu)}"

    def close(self) -> None:
        self._net.clear()
        self._folder.cleanup()
