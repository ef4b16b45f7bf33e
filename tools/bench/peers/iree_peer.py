"""IREE: the model is imported and compiled to SPIR-V by its compiler, and run by its runtime on Vulkan."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import iree.compiler.tools
import iree.runtime
import numpy as np
import onnx
from iree.compiler.tools.import_onnx import __main__ as importer

from tools.bench.peers.base import Peer, Unavailable
from vkep.models.builder import Array

_PAGE = 4096
_FLAGS = ["--iree-hal-target-device=vulkan", "--iree-opt-level=O3"]


class IreePeer(Peer):
    """Runs float32 and int64 models unchanged. The table has the error beside the time, since some results are wrong."""

    packages = ("iree-base-compiler", "iree-base-runtime")

    def open(self, model: Path, inputs: Mapping[str, Array]) -> None:
        try:
            config = iree.runtime.Config("vulkan")
        except (RuntimeError, ValueError) as error:
            raise Unavailable(f"no Vulkan device for it: {error}") from error
        with tempfile.TemporaryDirectory() as folder:
            mlir = Path(folder) / "model.mlir"
            arguments = importer.parse_arguments([str(model), "-o", str(mlir), "--opset-version", "17"])
            if importer.main(arguments):
                raise Unavailable("its importer refuses the model")
            try:
                program = iree.compiler.tools.compile_file(str(mlir), input_type="onnx", extra_args=_FLAGS)
            except iree.compiler.tools.CompilerToolError as error:
                raise Unavailable(f"it does not compile: {str(error).strip().splitlines()[-1]}") from error
        context = iree.runtime.SystemContext(config=config)
        context.add_vm_module(iree.runtime.VmModule.copy_buffer(context.instance, program))
        graph = onnx.load(model, load_external_data=False).graph
        functions = [module for name, module in context.modules.items() if name not in ("hal", "io_parameters")]
        self._function = functions[-1][graph.name]
        self._device = config.device
        self._arrays = [_aligned(inputs[value.name]) for value in graph.input if value.name in inputs]
        self._names = [value.name for value in graph.output]

    def run(self) -> dict[str, Array]:
        found = self._function(*self._arrays)
        results = found if isinstance(found, list | tuple) else [found]
        return {name: self._to_host(value) for name, value in zip(self._names, results, strict=True)}

    def _to_host(self, value: Any) -> Array:
        """As its own ``to_host``, which imports memory that numpy does not align as Vulkan wants it."""
        rt = iree.runtime
        source = value._buffer_view.get_buffer()
        staging = self._device.allocator.allocate_buffer(
            memory_type=int(rt.MemoryType.HOST_LOCAL | rt.MemoryType.DEVICE_VISIBLE),
            allowed_usage=int(rt.BufferUsage.TRANSFER_TARGET | rt.BufferUsage.MAPPING_SCOPED),
            allocation_size=source.byte_length(),
        )
        semaphore = self._device.create_semaphore(0)
        before, after = (rt.HalFence.create_at(semaphore, step) for step in (0, 1))
        self._device.queue_copy(source, staging, wait_semaphores=before, signal_semaphores=after)
        after.wait()
        return np.array(staging.map().asarray(value.shape, value.dtype))

    def placement(self) -> str:
        return "all on Vulkan"


def _aligned(array: Array) -> Array:
    """A copy that begins at a page and consists of whole pages: the runtime imports it without another copy."""
    size = -(-array.nbytes // _PAGE) * _PAGE
    room = np.zeros(size + _PAGE, np.uint8)
    start = -room.ctypes.data % _PAGE
    found: Array = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    found[...] = array
    return found
