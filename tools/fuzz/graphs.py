"""Runs VGF files with their inputs and outputs between guard pages, for `tools.fuzz.files`."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tools.fuzz.guard import GuardedMemory

if TYPE_CHECKING:
    from vkep.vgf import Vgf

#: limit in bytes of an input or output of a file that is run
_MOST_BYTES = 1 << 24
#: alignment that the emulation layers want of a tensor's memory
_ALIGNMENT = 64


class Graphs:
    """A context for data graphs."""

    def __init__(self, files: Sequence[bytes]) -> None:
        """``files`` run once, so that what the context keeps is there."""
        from vkep.device.datagraph.context import create_graph_context
        from vkep.device.datagraph.delegate import VgfDelegate
        from vkep.device.delegate import VulkanDelegate
        from vkep.shaders.library import ShaderLibrary
        from vkep.vgf import decode

        self._held = contextlib.ExitStack()
        context = self._held.enter_context(create_graph_context({"gpu_shared_context_token": "files:vgf"}))
        memory = VulkanDelegate(context, ShaderLibrary())
        self._held.callback(memory.close)
        self._delegate = VgfDelegate(memory)
        self._held.callback(self._delegate.close)
        for data in files:
            self.run(decode(data))

    def run(self, file: Vgf) -> None:
        """Run a file once, unless its tensors are large. Raises ``AssertionError`` where bytes beside an input or output are
        written, and as `VgfRunner`."""
        from gpu_shared.external import HOST_ALLOCATION, MemorySource
        from vkep.device.datagraph.runner import VgfRunner
        from vkep.device.external import ExternalMemory
        from vkep.vgf.layout import memory_bytes, memory_shape

        with contextlib.ExitStack() as stack:
            runner = VgfRunner(self._delegate, file)
            stack.callback(runner.close)
            memories, tensors = [], []
            for slot in (*file.inputs, *file.outputs):
                resource = file.resources[slot.resource]
                if memory_bytes(resource) > _MOST_BYTES:
                    return
                memory = GuardedMemory(memory_bytes(resource), _ALIGNMENT)
                stack.callback(memory.close)
                source = MemorySource(HOST_ALLOCATION, *memory.span)
                imported = stack.enter_context(ExternalMemory(self._delegate.memory, source, keep=memory))
                offset = memory.address - memory.span[0]
                tensors.append(imported.tensor(memory_shape(resource), resource.dtype, offset=offset))
                stack.callback(tensors[-1].close)
                memories.append(memory)
            count = len(file.inputs)
            for tensor in tensors[:count]:
                tensor.write(np.ones(tensor.shape, tensor.dtype.numpy))
            self._delegate.lease.wait(runner.submit(tensors[:count], tensors[count:]))
            runner.forget(tensors)
            if not all(memory.is_intact for memory in memories):
                raise AssertionError("written beside an input or an output")

    def close(self) -> None:
        """Close the context."""
        self._held.close()
