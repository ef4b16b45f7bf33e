"""OrtEp: what one session asks of the provider."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from gpu_shared.capabilities import DeviceCapabilities
from vkep.lowering.program import Program
from vkep.ort import memory
from vkep.ort.allocator import DEFAULT_MEMORY, READ_ONLY_ALLOCATOR, ArenaAllocator, ReadOnlyAllocator
from vkep.ort.boundary import NULL, CStruct, behind, ffi, status, value
from vkep.ort.claims import Claims, claim
from vkep.ort.devices import EpDevices
from vkep.ort.fused import FusedNode
from vkep.ort.graph import OrtGraphView
from vkep.ort.kernels import KernelRegistry
from vkep.ort.options import EP_NAME, EpOptions
from vkep.ort.runtime import Runtime
from vkep.ort.streams import SyncStream

if TYPE_CHECKING:
    from vkep.ort.api import Ort

logger = logging.getLogger("vkep.ort")
_NAME = ffi.new("char[]", EP_NAME.encode())


class Ep(CStruct, struct="OrtEp"):
    """One session's provider. It may outlive the factory that made it."""

    def __init__(self, ort: Ort, devices: EpDevices, device: DeviceCapabilities, options: EpOptions) -> None:
        self.ort, self._devices, self.options = ort, devices, options
        self._claims: list[Claims] = []
        self._failure: Exception | None = None
        self.runtime = Runtime(ort, device, options)
        try:
            self._kernels = KernelRegistry(ort)
        except BaseException:
            self.runtime.close()
            raise
        super().__init__()  # last: from here on ONNX Runtime holds it

    @value(NULL)
    def GetName(self) -> Any:
        return _NAME

    # ---- partitioning

    @status
    def GetCapability(self, graph: Any, info: Any) -> None:
        try:
            self._claim(graph, info)
        except Exception as error:
            self._failure = error  # ONNX Runtime logs the status and goes on without the provider
            raise

    def _claim(self, graph: Any, info: Any) -> None:
        view = OrtGraphView(self.ort, graph)
        options = self.options
        claims = claim(
            view,
            self.runtime.delegate.capabilities,
            min_partition_size=options.min_partition_size,
            fallback=options.fallback,
        )
        fusion = ffi.new("OrtNodeFusionOptions *")
        fusion.ort_version_supported = self.pointer.ort_version_supported
        fusion.drop_constant_initializers = True
        for nodes in claims.islands:
            pointers = ffi.new("OrtNode const *[]", [view.pointer_of(n) for n in nodes])
            self.ort.check(
                self.ort.ep_api.EpGraphSupportInfo_AddNodesToFuse(info, pointers, len(nodes), fusion)
            )
        self._claims.append(claims)

    @status
    def Compile(self, graphs: Any, fused: Any, count: int, infos: Any, context_nodes: Any) -> None:
        made: list[FusedNode] = []
        try:
            for index in range(count):
                made.append(self._compile(graphs[index], fused[index]))
        except BaseException:
            for node in made:
                node.release()
            raise
        for index, node in enumerate(made):
            infos[index] = node.pointer

    def _compile(self, graph: Any, fused: Any) -> FusedNode:
        ort, api = self.ort, self.ort.api
        view = OrtGraphView(ort, graph)
        kind = "OrtValueInfo const *"
        name = lambda info: "" if info == NULL else ort.text(api.GetValueInfoName, info)  # noqa: E731
        inputs = [name(v) for v in ort.items(api.Node_GetNumInputs, api.Node_GetInputs, kind, fused)]
        outputs = [name(v) for v in ort.items(api.Node_GetNumOutputs, api.Node_GetOutputs, kind, fused)]
        program = self._planned(view, [o for o in outputs if o])
        title = ort.text(api.Node_GetName, fused)
        return FusedNode(
            self.runtime, view.graph, view.opsets, view.ir_version, inputs, outputs, program, name=title
        )

    def _planned(self, view: OrtGraphView, outputs: list[str]) -> Program | None:
        """The plan that `GetCapability` made for this very island."""
        for claims in reversed(self._claims):
            step = claims.step_for(view.graph.nodes, outputs)
            if step is not None:
                return Program((step,), {}, ())
        return None

    @value(None)
    def ReleaseNodeComputeInfos(self, infos: Any, count: int) -> None:
        for index in range(count):
            if infos[index] != NULL:
                behind(infos[index]).release()

    @status
    def OnSessionInitializationEnd(self) -> None:
        if self._failure is not None:
            raise self._failure
        self._claims.clear()  # and with them the host's copies of packed weights

    # ---- memory and order

    @status
    def CreateAllocator(self, info: Any, out: Any) -> None:
        kind = self.ort.get(self.ort.api.MemoryInfoGetType, "int", info)
        read_only = kind == READ_ONLY_ALLOCATOR
        maker = ReadOnlyAllocator if read_only else ArenaAllocator
        own = self._devices.memory_info(self.runtime.device, read_only=read_only)
        context = self.runtime.context
        out[0] = maker(self.ort, own, lambda: memory.acquire(context)).pointer

    @status
    def CreateSyncStreamForDevice(self, device: Any, out: Any) -> None:
        if self.ort.ep_api.MemoryDevice_GetMemoryType(device) != DEFAULT_MEMORY:
            out[0] = NULL
            return
        out[0] = SyncStream(self.ort, memory.acquire(self.runtime.context)).pointer

    @status
    def GetDefaultMemoryDevice(self, out: Any) -> None:
        devices = self._devices
        info = devices.memory_info(self.runtime.device) if self.options.io == "device" else devices.host_memory
        out[0] = self.ort.ep_api.MemoryInfo_GetMemoryDevice(info)

    @status
    def GetKernelRegistry(self, out: Any) -> None:
        out[0] = self._kernels.pointer

    @status
    def IsConcurrentRunSupported(self, out: Any) -> None:
        out[0] = True  # (false would have ONNX Runtime hold a mutex while a callback waits for Python's lock)

    @status
    def Sync(self) -> None:
        self.runtime.domain.wait()

    @status
    def OnRunEnd(self, options: Any, sync_stream: bool) -> None:
        if sync_stream:
            self.runtime.domain.wait()

    def release(self) -> None:
        super().release()
        self._claims.clear()
        self._kernels.close()
        self.runtime.close()
