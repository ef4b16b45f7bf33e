"""OrtEp: the interface between one session and the provider."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from gpu_shared.capabilities import DeviceCapabilities
from vkep.errors import UnsupportedModelError
from vkep.ir.program import IslandStep, Program
from vkep.ort.boundary import NULL, CStruct, behind, ffi, lib, released, status, value
from vkep.ort.devices import EpDevices
from vkep.ort.graphs.claims import Claims, claim, takes, warn_of_partitions
from vkep.ort.graphs.context_data import compatibility
from vkep.ort.graphs.context_nodes import ContextSettings
from vkep.ort.graphs.convert import OrtGraphView
from vkep.ort.graphs.overrides import Overrides, are_being_read
from vkep.ort.graphs.subgraph import OrtSubgraph
from vkep.ort.memory import domain as memory
from vkep.ort.memory.allocator import ALLOCATORS
from vkep.ort.memory.streams import SyncStream
from vkep.ort.names import EP_NAME
from vkep.ort.nodes.control_flow import ControlKernel, control_entries, is_ours_to_drive
from vkep.ort.nodes.fused import FusedNode
from vkep.ort.nodes.kernels import KernelEntry, KernelRegistry
from vkep.ort.nodes.operators import OperatorKernel, has_kernel, offer_kernels, operator_entries
from vkep.ort.options import EpOptions
from vkep.ort.profiler import Profiler
from vkep.ort.runtime import Runtime
from vkep.placement.channels_last import CHANNELS_LAST

if TYPE_CHECKING:
    from vkep.ort.api import Ort

logger = logging.getLogger("vkep.ort")
_NCHW, _NHWC = 0, 1  # OrtEpDataLayout
_TOTAL_BYTES = 1  # OrtResourceCountKind
_NAME = ffi.new("char[]", EP_NAME.encode())


class Ep(CStruct, struct="OrtEp"):
    """One session's provider. It may outlive the factory that created it. Its streams are created in C (`VkepEp`).
    Raises ``ValueError`` for options that exclude each other."""

    room = "VkepEp"

    def __init__(
        self,
        ort: Ort,
        devices: EpDevices,
        device: DeviceCapabilities,
        options: EpOptions,
        context: ContextSettings,
        session: Any,
        hides_nodes: bool = False,
    ) -> None:
        """``hides_nodes``: the session's options assign nodes to other devices; graphs do not have them."""
        self.ort, self._devices, self.options = ort, devices, options
        self._context, self._hides_nodes = context, hides_nodes
        if hides_nodes:
            logger.warning(
                "session.layer_assignment_settings assigns nodes to other devices, and ONNX Runtime cannot fuse nodes of a "
                "graph without them: the others run one by one (kernels=registry), or on other providers"
            )
            self.options = options = replace(options, kernels="registry")
        if context.enabled and options.kernels == "registry":
            raise ValueError(
                "ep.context_enable compiles fused nodes, and option 'kernels' is 'registry': set one of the two"
            )
        self._claims: list[Claims] = []
        self._newest: dict[
            int, Claims
        ] = {}  # by the node whose body the graph is; ONNX Runtime asks again after it changed one
        self._taken: dict[bytes, bool] = {}  # see `_takes`
        self._failure: BaseException | None = None
        self._refusal: UnsupportedModelError | None = None
        self._model_inputs: set[str] = set()
        self._in_body = False  # whether the graph that was asked for last is a body
        self.runtime = Runtime(ort, device, options, graphs=not context.enabled)
        try:
            single = (*control_entries(), *(operator_entries() if options.kernels == "registry" else ()))
            self._overrides = Overrides(ort, session)
            self._kernels = KernelRegistry(ort, single, self._kernel, self.runtime.checks)
        except BaseException:
            self.runtime.close()
            raise
        self._stream = SyncStream(ort, memory.acquire(self.runtime.context))
        super().__init__()  # last: from here on ONNX Runtime holds it
        self._memory.stream, self._memory.handle = self._stream.pointer, self._stream.GetHandle()
        self._memory.api, self._memory.ep_api = ort.api, ort.ep_api
        self.pointer.CreateSyncStreamForDevice = ffi.addressof(lib, "vkep_ep_stream")
        self.runtime.checks.ask_for_starts = partial(setattr, self.pointer, "OnRunStart", self.pointer.OnRunStart)
        self.pointer.OnRunStart = NULL  # does nothing: saves each run a callback

    @value(NULL)
    def GetName(self) -> Any:
        return _NAME

    def _kernel(self, entry: KernelEntry, info: Any) -> Any:
        if entry in control_entries():
            return ControlKernel(self.ort, self.options.io == "device", entry, info)
        return OperatorKernel(self.ort, self.runtime, self._overrides, entry, info)

    # ---- partitioning

    @status
    def GetCapability(self, graph: Any, info: Any) -> None:
        try:
            self._claim(graph, info)
        except BaseException as error:  # includes KeyboardInterrupt
            self._failure = error  # ONNX Runtime logs the status and continues without the provider
            raise

    def _claim(self, graph: Any, info: Any) -> None:
        if are_being_read():
            return
        view = OrtGraphView(self.ort, graph, self._overrides, takes=self._takes)
        if not view.in_body:
            self._model_inputs = set(view.formal_inputs)
        if view.is_expanded_later or view.is_run_by_its_node:
            return
        options = self.options
        claims = claim(
            view,
            self.runtime.delegate.capabilities,
            self.runtime.policy,
            min_partition_size=options.min_partition_size,
            fallback=options.fallback,
            has_kernel=lambda node: is_ours_to_drive(view, node) and has_kernel(self.ort, view, info, node),
        )
        fusion = ffi.new("OrtNodeFusionOptions *")
        fusion.ort_version_supported = self.pointer.ort_version_supported
        fusion.drop_constant_initializers = True
        islands = claims.islands
        lost = claims.lost_weights(view) if self._context.enabled and not view.in_body else []
        if lost:
            self._refusal = UnsupportedModelError(
                f"ep.context_enable: bodies of If, Loop or Scan read the weights {lost}, which no other node that stays in "
                "the compiled model reads: ONNX Runtime would write it without them. Put them into the bodies (as Constant "
                "nodes), or do not compile the model"
            )
            islands = (
                tuple(view.graph.nodes[:1]),
            )  # `Compile` raises; ONNX Runtime would only log an error of this call
        if options.kernels == "registry":
            islands = offer_kernels(self.ort, view, info, islands)
        if self._hides_nodes:
            islands = ()  # ONNX Runtime would end the session
        for nodes in islands:
            pointers = ffi.new("OrtNode const *[]", [view.pointer_of(n) for n in nodes])
            self.ort.check(self.ort.ep_api.EpGraphSupportInfo_AddNodesToFuse(info, pointers, len(nodes), fusion))
        for node in claims.control_nodes:
            self.ort.check(self.ort.ep_api.EpGraphSupportInfo_AddSingleNode(info, view.pointer_of(node)))
        self._claims.append(claims)
        self._newest[view.parent], self._in_body = claims, view.in_body

    def _takes(self, body: OrtGraphView) -> bool:
        """Whether a body may run as a part of its node. ONNX Runtime asks for the inner graphs first, and again for each outer
        one: the answer must be the same."""
        if self.options.kernels == "registry":
            return False
        key = body.identity
        if key not in self._taken:
            self._taken[key] = takes(body, self.runtime.delegate.capabilities, self.runtime.policy)
        return self._taken[key]

    @status
    def GetPreferredDataLayout(self, out: Any) -> None:
        out[0] = _NHWC if self.options.prefer_nhwc else _NCHW

    @status
    def ShouldConvertDataLayoutForOp(self, domain: Any, op_type: Any, layout: int, out: Any) -> None:
        name = ffi.string(op_type).decode()
        standard = domain == NULL or ffi.string(domain) in (b"", b"ai.onnx")
        out[0] = int(layout == _NHWC and standard and name in CHANNELS_LAST)

    @status
    def Compile(self, graphs: Any, fused: Any, count: int, infos: Any, context_nodes: Any) -> None:
        if self._refusal is not None:
            raise self._refusal
        made: list[FusedNode] = []
        # ONNX Runtime compiles a graph's nodes before it asks for the claims of another one
        known = {node.outputs: node for nodes in self._claims[-1].islands for node in nodes}
        try:
            for index in range(count):
                island = OrtSubgraph(self.ort, graphs[index], fused[index], self._overrides, known)
                program = self._program(island)
                if self._context.enabled:
                    context_nodes[index] = island.context_node(self._context, program, self.runtime.device)
                made.append(island.node(self.runtime, program, self._model_inputs, self._in_body))
        except BaseException:
            for node in made:
                node.release()
            raise
        for index, node in enumerate(made):
            infos[index] = node.pointer

    def _program(self, island: OrtSubgraph) -> Program | None:
        """The plan of an island that already has one: loaded, or made by `GetCapability`."""
        loaded = island.loaded(self.runtime.device)
        if loaded is not None:
            return Program((loaded,), {}, ()) if isinstance(loaded, IslandStep) else None
        for claims in reversed(self._claims):
            planned = claims.program_for(island.view.graph.nodes, island.made)
            if planned is not None:
                return planned
        return island.lowered(self.runtime.delegate.capabilities) if self._context.enabled else None

    @value(NULL)
    def GetCompiledModelCompatibilityInfo(self, graph: Any) -> Any:
        self._info = ffi.new("char[]", compatibility(self.runtime.device).encode())
        return self._info

    @value(None)
    def ReleaseNodeComputeInfos(self, infos: Any, count: int) -> None:
        released(self._release_nodes, [behind(info) for info in infos[0:count] if info != NULL])

    def _release_nodes(self, nodes: list[FusedNode]) -> None:
        for node in nodes:
            node.release()

    @status
    def OnSessionInitializationEnd(self) -> None:
        if self._failure is not None:
            raise self._failure
        warn_of_partitions(self._newest.values())
        self._overrides.close()
        self._newest.clear()
        self._taken.clear()
        self._claims.clear()  # and with them the host's copies of packed weights

    # ---- memory and order

    @status
    def CreateAllocator(self, info: Any, out: Any) -> None:
        api = self.ort.api
        kind = (self.ort.get(api.MemoryInfoGetType, "int", info), api.MemoryInfoGetDeviceMemType(info))
        own = self._devices.memory_info(self.runtime.device, kind)
        context = self.runtime.context
        out[0] = ALLOCATORS[kind](self.ort, own, lambda: (context, None)).pointer

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
        out[0] = True  # (false would make ONNX Runtime hold a mutex while a callback waits for the GIL)

    @status
    def Sync(self) -> None:
        self.runtime.domain.wait()

    @status
    def OnRunStart(self, options: Any) -> None:
        self.runtime.checks.start()

    @status
    def OnRunEnd(self, options: Any, sync_stream: bool) -> None:
        if sync_stream:
            self.runtime.domain.wait()
        self.runtime.checks.end()

    # ---- looking inside

    @status
    def CreateProfiler(self, out: Any) -> None:
        out[0] = Profiler(self.ort, self.runtime.profilers).pointer

    @status
    def GetAvailableResource(self, out: Any) -> None:
        heaps = [h for h in self.runtime.context.memory_budget() if h.device_local]
        free = max((h.budget - max(h.used, 0) for h in heaps), default=0)
        out.kind, out.reserved = _TOTAL_BYTES, 0
        out.words[0] = max(free, 0)

    @status
    def SetDynamicOptions(self, keys: Any, values: Any, count: int) -> None:
        texts = {ffi.string(keys[i]).decode(): ffi.string(values[i]).decode() for i in range(count)}
        self.options = self.runtime.options = self.options.changed(texts)

    def release(self) -> None:
        super().release()
        self._claims.clear()
        self._newest.clear()
        self._overrides.close()
        self._kernels.close()
        self._stream.release()
        self.runtime.close()
