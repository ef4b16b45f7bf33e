"""If, Loop and Scan as kernels of the registry: ONNX Runtime's implementations, with values that stay in the provider's
memory.

ONNX Runtime creates such a kernel itself (`OrtEpApi.CreateLoopKernel` and similar functions) and calls back for
operations on device memory: concatenating the outputs of a loop's iterations, and transposing the slices of a Scan.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from vkep.dtypes import DTYPES
from vkep.ops.registry import onnx_history
from vkep.ort.boundary import CStruct, ffi, releases, status
from vkep.ort.graphs.convert import CONTROL_HOST_INPUTS, OrtGraphView, subgraphs
from vkep.ort.memory.allocator import array_of, copy_tensors
from vkep.ort.memory.tensors import describe
from vkep.ort.names import EP_NAME
from vkep.ort.nodes.kernels import WHOLE, KernelEntry

if TYPE_CHECKING:
    from vkep.graph.model import Node
    from vkep.ort.api import Ort

_OLDEST_SCAN = 9


@functools.cache
def control_entries() -> tuple[KernelEntry, ...]:
    """An entry for each version of If, Loop and Scan, for tensors whose elements are whole bytes."""
    found = []
    for op_type, host in CONTROL_HOST_INPUTS.items():
        for schema in onnx_history(op_type, ""):
            if op_type == "Scan" and schema.since_version < _OLDEST_SCAN:
                continue
            allowed = next(c.allowed_type_strs for c in schema.type_constraints if c.type_param_str == "V")
            kinds = tuple(name for name in WHOLE if f"tensor({DTYPES[name].onnx_name})" in allowed)
            found.append(KernelEntry(op_type, schema.since_version, {"V": kinds}, host_inputs=host))
    return tuple(found)


def is_ours_to_drive(view: OrtGraphView, node: Node) -> bool:
    """Whether a node is an If, Loop or Scan with a node of its bodies on this provider."""
    ort, api, pointer = view.ort, view.ort.api, view.pointer_of(node)
    if node.op_type not in CONTROL_HOST_INPUTS or ort.text(api.Node_GetDomain, pointer):
        return False
    nodes = [
        inner
        for _, graph in subgraphs(ort, pointer)
        for inner in ort.items(api.Graph_GetNumNodes, api.Graph_GetNodes, "OrtNode const *", graph)
    ]
    return any(ort.text(api.Node_GetEpName, inner) == EP_NAME for inner in nodes)


class ControlKernel:
    """The kernel that ONNX Runtime creates for one node, and also releases."""

    def __init__(self, ort: Ort, on_device: bool, entry: KernelEntry, info: Any) -> None:
        """``on_device``: whether the provider's values are in device memory."""
        make, kind = getattr(ort.ep_api, f"Create{entry.op_type}Kernel"), "OrtKernelImpl *"
        if entry.op_type == "If":
            self.pointer = ort.get(make, kind, info)
            return
        helper = LoopHelper(ort, on_device) if entry.op_type == "Loop" else ScanHelper(ort)
        try:
            self.pointer = ort.get(make, kind, info, helper.pointer)
        except BaseException:
            helper.release()
            raise


class LoopHelper(CStruct, struct="OrtLoopKernelHelper"):
    """The callbacks of a Loop."""

    def __init__(self, ort: Ort, on_device: bool) -> None:
        super().__init__()
        self._ort, self._on_device = ort, on_device

    @releases
    def Release(self) -> None:
        self.release()

    @status
    def ConcatOutput(self, stream: Any, values: Any, count: int, output: Any, room: int) -> None:
        pairs, used = [], 0
        for index in range(count):
            source = describe(self._ort, values[index])
            target = ffi.new("VkepTensor *", source[0])
            target.data, target.on_device = ffi.cast("char *", output) + used, self._on_device
            used += source.bytes
            pairs.append((source, target))
        if used > room:
            raise ValueError(f"Loop: the outputs of {count} iterations have {used} bytes, and there is room for {room}")
        copy_tensors(pairs)


class ScanHelper(CStruct, struct="OrtScanKernelHelper"):
    """The callbacks of a Scan over another axis than the first. The host transposes."""

    def __init__(self, ort: Ort) -> None:
        super().__init__()
        self._ort = ort

    @releases
    def Release(self) -> None:
        self.release()

    @status
    def Transpose(self, permutation: Any, count: int, source: Any, stream: Any, target: Any) -> None:
        array = array_of(describe(self._ort, source)).transpose(list(permutation[0:count]))
        moved = np.ascontiguousarray(array)
        goal = describe(self._ort, target)
        held = ffi.new("VkepTensor *", goal[0])
        held.data, held.on_device = ffi.from_buffer(moved), False
        copy_tensors([(held, goal)])
