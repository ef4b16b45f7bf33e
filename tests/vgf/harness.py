"""What the tests of VGF, TOSA and mixed models share: the extra's parts, and running a file on a context."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

DATA = Path(__file__).parent / "data"
Array = np.ndarray[Any, Any]


def need_vgf() -> None:
    """Skip where the extra is not installed."""
    for package, project in (
        ("vgfpy", "ai-ml-sdk-vgf-library"),
        ("model_converter", "ai-ml-sdk-model-converter"),
        ("emulation_layer", "ai-ml-emulation-layer-for-vulkan"),
    ):
        pytest.importorskip(package, reason=f"needs {project} (the extra 'vgf')")


def as_held(port: Any, array: Array) -> Array:
    """An array as the graph's tensor holds it (int64 in words, unsigned integers as bits)."""
    dtype, shape = port.border
    return np.ascontiguousarray(array).reshape(-1).view(dtype).reshape(shape)


def as_given(port: Any, array: Array) -> Array:
    """The other way round."""
    return np.ascontiguousarray(array).reshape(-1).view(port.dtype.numpy).reshape(port.shape)


class Bench:
    """A context that runs data graphs, with both delegates' stays on it."""

    def __init__(self, context: Any) -> None:
        from vkep.device.datagraph.delegate import VgfDelegate
        from vkep.device.delegate import VulkanDelegate
        from vkep.shaders.library import ShaderLibrary

        self.context = context
        self.memory = VulkanDelegate(context, ShaderLibrary())
        self.delegate = VgfDelegate(self.memory)

    def run(self, vgf: Any, arrays: Sequence[Array], **options: Any) -> list[Array]:
        from vkep.device.datagraph.runner import VgfRunner

        runner = VgfRunner(self.delegate, vgf, **options)
        try:
            return runner.run(arrays)
        finally:
            runner.close()

    def tosa(self, graph: Any, feeds: dict[str, Array]) -> list[Array]:
        """Run a `TosaGraph` with inputs by name."""
        from vkep.vgf import decode, mlir_to_vgf

        made = self.run(decode(mlir_to_vgf(graph.mlir)), [as_held(port, feeds[port.name]) for port in graph.inputs])
        return [as_given(port, array) for port, array in zip(graph.outputs, made, strict=True)]

    def close(self) -> None:
        self.delegate.close()
        self.memory.close()
