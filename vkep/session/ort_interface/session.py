"""The part of `InferenceSession` for programs written for ONNX Runtime: providers, assigned nodes, profiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vkep.session.ort_interface.options import CPU, PROVIDER_OPTIONS, VULKAN, provider_overrides

if TYPE_CHECKING:
    from vkep.session.options import SessionOptions
    from vkep.session.ort_interface.devices import OrtEpAssignedSubgraph, OrtEpDevice, OrtMemoryInfo
    from vkep.session.ort_interface.value import OrtValue
    from vkep.session.reports.profiling import SessionProfile
    from vkep.session.session_state import SessionState


class OrtSession:
    """Methods of ``onnxruntime.InferenceSession`` that neither run the model nor describe its values."""

    options: SessionOptions
    _parts: SessionState

    def get_session_options(self) -> SessionOptions:
        """The options of this session."""
        return self.options

    def get_providers(self) -> list[str]:
        """The execution providers of this session, under ONNX Runtime's names."""
        return [VULKAN] if self.options.fallback == "error" else [VULKAN, CPU]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """The options in effect, by provider, as texts."""
        device = self._parts.delegate.capabilities
        mine = {"device": str(device.index), "device_name": device.name}
        for name, value in vars(self.options).items():
            if name in PROVIDER_OPTIONS and name not in mine and value is not None:
                mine[name] = str(int(value)) if isinstance(value, bool) else str(value)
        mine |= {f"arena.{k.removeprefix('arena.')}": str(v) for k, v in self.options.arena.items()}
        return {VULKAN: mine, CPU: {}} if CPU in self.get_providers() else {VULKAN: mine}

    def set_providers(
        self,
        providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Check providers as the constructor does: it warns of others than vkep's. The session stays open with its options.

        Raises ``NotImplementedError`` where the options differ from the session's, ``TypeError``, ``ValueError``.
        """
        wanted = provider_overrides(providers, provider_options)
        caps = self._parts.delegate.capabilities
        if wanted.get("device") in (caps.index, caps.uuid, caps.name):
            del wanted["device"]
        other = {name: value for name, value in wanted.items() if getattr(self.options, name) != value}
        if other:
            raise NotImplementedError(
                f"set_providers with {other}: the options of an open session do not change; open another"
            )

    def enable_fallback(self) -> None:
        """Does nothing: a failed run raises its error, and is not repeated on the CPU. (``fallback`` decides about nodes that
        Vulkan declines.)"""

    def disable_fallback(self) -> None:
        """Does nothing, as `enable_fallback`."""

    def get_input_epdevices(self) -> list[OrtEpDevice]:
        """The session's device, for each input."""
        from vkep.session.ort_interface.devices import ep_device

        return [ep_device(self._parts.delegate.capabilities)] * len(self._parts.inputs)

    def get_input_memory_infos(self) -> list[OrtMemoryInfo]:
        """The host's memory, for each input: `run` takes arrays. (Device tensors may be bound instead.)"""
        return [_on_host()] * len(self._parts.inputs)

    def get_output_memory_infos(self) -> list[OrtMemoryInfo]:
        """The host's memory, for each output."""
        return [_on_host()] * len(self._parts.outputs)

    def get_provider_graph_assignment_info(self) -> list[OrtEpAssignedSubgraph]:
        """The nodes of each provider, by the report of the signature that was planned last: folded ones count as Vulkan's."""
        from vkep.session.ort_interface.devices import OrtEpAssignedNode, OrtEpAssignedSubgraph
        from vkep.session.reports.reporting import report_of

        self._parts.check_open()
        nodes: dict[str, list[OrtEpAssignedNode]] = {}
        for node in report_of(self._parts).nodes:
            where = CPU if node.where == "cpu" else VULKAN
            nodes.setdefault(where, []).append(OrtEpAssignedNode(node.name, node.op_type, node.domain))
        return [OrtEpAssignedSubgraph(name, tuple(nodes[name])) for name in (VULKAN, CPU) if name in nodes]

    def create_ortvalue_from_shape_and_type(
        self, shape: Sequence[int], element_type: Any, device_type: str, device_id: int = 0, vendor_id: int = -1
    ) -> OrtValue:
        """As `OrtValue.ortvalue_from_shape_and_type`. Raises as it."""
        from vkep.session.ort_interface.value import OrtValue

        return OrtValue.ortvalue_from_shape_and_type(shape, element_type, device_type, device_id, vendor_id)

    def release_captured_graph(self, graph_annotation_id: int = 0) -> None:
        """Does nothing: a session keeps its recorded command buffers with its plans."""

    def end_profiling(self) -> str:
        """Write the events that ``enable_profiling`` has collected, as a list of trace events that Perfetto opens, and
        return the file's name: ``<profile_file_prefix>_<date>_<time>.json``. While a profile is collected each run is
        followed by a second one that times its dispatches. Raises ``ValueError`` where ``enable_profiling`` was not
        set, ``OSError``.
        """
        return self._profile().end()

    def get_profiling_start_time_ns(self) -> int:
        """`time.perf_counter_ns` when the profile began; 0 without ``enable_profiling``, as in ONNX Runtime."""
        profile = self._parts.profile
        return 0 if profile is None else profile.start_ns

    def _profile(self) -> SessionProfile:
        if self._parts.profile is None:
            raise ValueError("this session has no profile: open it with enable_profiling=True")
        return self._parts.profile


def _on_host() -> OrtMemoryInfo:
    from vkep.session.ort_interface.devices import OrtAllocatorType, OrtMemoryInfo, OrtMemType

    return OrtMemoryInfo("Cpu", OrtAllocatorType.ORT_DEVICE_ALLOCATOR, 0, OrtMemType.DEFAULT)
