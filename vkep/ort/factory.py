"""OrtEpFactory and the library's two entry points.

Registering the provider imports this module, and no more of vkep than that needs: what only sessions need is imported where they
are made.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import vkep
from gpu_shared.capabilities import DeviceCapabilities
from gpu_shared.external import MEMORY_KINDS, can_import_memory, can_import_semaphore
from vkep.ort.api import Ort
from vkep.ort.boundary import NULL, CStruct, OrtError, behind, entry_point, ffi, live, releases, status, value
from vkep.ort.devices import EpDevices, metadata_uuid
from vkep.ort.graphs.overrides import check_known_answers
from vkep.ort.memory import domain as memory
from vkep.ort.memory.allocator import ALLOCATORS, DataTransfer, OpenContext
from vkep.ort.memory.interop import Interop, make_interop
from vkep.ort.memory.streams import SyncStream
from vkep.ort.names import EP_NAME, users_operators
from vkep.ort.options import EpOptions, arena_options, assigns_elsewhere, session_options
from vkep.session.contexts import resolve_context
from vkep.session.options import SessionOptions

if TYPE_CHECKING:
    from gpu_shared.context import SharedGpuContext
    from vkep.arena.config import ArenaConfig
    from vkep.ort.graphs.context_data import Fit
    from vkep.ort.graphs.custom_operators import CustomDomains

logger = logging.getLogger("vkep.ort")
_NAME = ffi.new("char[]", EP_NAME.encode())
_VENDOR = ffi.new("char[]", b"vkep")
_VERSION = ffi.new("char[]", vkep.__version__.encode())
#: of a candidate in a model package (the keys in the model's own metadata end with the provider's name)
COMPATIBILITY_KEY = "ep_compatibility_info"
_INCOMPATIBLE_DRIVER, _INCOMPATIBLE_DEVICE = 1, 2  # OrtDeviceEpIncompatibilityReason


class Factory(CStruct, struct="OrtEpFactory"):
    """One registration of the library. The object stays after ONNX Runtime releases it, because a session that is still
    open calls it (`ReleaseEp`, `ReleaseAllocator`)."""

    registered = True  #: until ONNX Runtime releases it

    def __init__(self, ort: Ort) -> None:
        super().__init__()
        self.ort = ort
        self.devices = EpDevices(ort, self.pointer)
        self._interop: dict[str, Interop] = {}  # by the device's UUID

    @functools.cached_property
    def custom(self) -> CustomDomains:
        """The domains of the users' operators."""
        from vkep.ort.graphs.custom_operators import CustomDomains

        device = next(iter(self.devices.devices), DeviceCapabilities.generic(name="no device"))
        return CustomDomains(self.ort, device)

    @value(NULL)
    def GetName(self) -> Any:
        return _NAME

    @value(NULL)
    def GetVendor(self) -> Any:
        return _VENDOR

    @value(0)
    def GetVendorId(self) -> int:
        return self.devices.devices[0].vendor_id if self.devices.devices else 0

    @value(NULL)
    def GetVersion(self) -> Any:
        return _VERSION

    @status
    def GetSupportedDevices(self, devices: Any, count: int, out: Any, room: int, made: Any) -> None:
        made[0] = 0
        found = self.devices.announce([devices[i] for i in range(count)], room)
        for index, device in enumerate(found):
            out[index] = device
        made[0] = len(found)

    @status
    def CreateEp(self, devices: Any, metadata: Any, count: int, options: Any, log: Any, out: Any) -> None:
        from vkep.ort.ep import Ep
        from vkep.ort.graphs.context_nodes import ContextSettings

        out[0] = NULL
        if not count:
            raise ValueError(f"{EP_NAME} was given no device")
        entries = self.ort.take_pairs(self.ort.api.GetSessionOptionsConfigEntries, options)
        chosen = EpOptions.from_entries(entries, self._environment())
        device = self.devices.choose([metadata_uuid(self.ort, metadata[i]) for i in range(count)], chosen.device)
        chosen = self._interop_of(device).applied(chosen)
        compiled = ContextSettings.from_entries(entries)
        hides_nodes = assigns_elsewhere(entries.get("session.layer_assignment_settings", ""))
        out[0] = Ep(self.ort, self.devices, device, chosen, compiled, options, hides_nodes).pointer

    @releases
    def ReleaseEp(self, ep: Any) -> None:
        behind(ep).release()

    @status
    def ValidateCompiledModelCompatibilityInfo(self, devices: Any, count: int, info: Any, out: Any) -> None:
        text = ffi.string(info).decode("utf-8", "replace")
        out[0] = self._fit(text, [devices[index] for index in range(count)]).value

    def _fit(self, text: str, hardware: Sequence[Any]) -> Fit:
        """Compare the compatibility text of data with the best of these devices."""
        from vkep.ort.graphs.context_data import Fit, fit

        api, fits = self.ort.api, []
        for listed in hardware:
            uuid = metadata_uuid(self.ort, api.HardwareDevice_Metadata(listed))
            ids = (api.HardwareDevice_VendorId(listed), api.HardwareDevice_DeviceId(listed))
            same = (d for d in self.devices.devices if d.uuid == uuid or (d.vendor_id, d.device_id) == ids)
            fits += [fit(text, d) for d in same]
        return min((f for f in fits if f is not Fit.NOT_OURS), key=lambda f: f.value, default=Fit.NOT_OURS)

    @status
    def SelectBestModelCandidate(self, device: Any, candidates: Any, count: int, options: Any, out: Any) -> None:
        from vkep.ort.graphs.context_data import Fit

        texts = [self.ort.pairs(candidates[index]).get(COMPATIBILITY_KEY, "") for index in range(count)]
        usable = (Fit.OPTIMAL, Fit.RECOMPILE)
        found = {index: made for index, text in enumerate(texts) if (made := self._fit(text, [device])) in usable}
        if not found:
            raise ValueError(
                f"none of {count} compiled models was made for this device, its driver and this vkep: {texts}"
            )
        out[0] = min(found, key=lambda index: found[index].value)

    @status
    def GetNumCustomOpDomains(self, out: Any) -> None:
        out[0] = len(self.custom.all()) if users_operators() else 0

    @status
    def GetCustomOpDomains(self, out: Any, room: int) -> None:
        for index, domain in enumerate(self.custom.all()[:room]):
            out[index] = domain

    @status
    def CreateAllocator(self, info: Any, options: Any, out: Any) -> None:
        api = self.ort.api
        device = self.devices.by_number(self.ort.get(api.MemoryInfoGetId, "int", info))
        kind = (self.ort.get(api.MemoryInfoGetType, "int", info), api.MemoryInfoGetDeviceMemType(info))
        arena = {**arena_options(self._environment()), **self.ort.pairs(options)}
        chosen = EpOptions(arena={k: v for k, v in arena.items() if k.startswith("arena.")})
        # wrong options are refused here, not at the first allocation
        SessionOptions(arena=dict(chosen.arena)).arena_config()
        own = self.devices.memory_info(device, kind)
        out[0] = ALLOCATORS[kind](self.ort, own, self._opener(device, chosen)).pointer

    @releases
    def ReleaseAllocator(self, allocator: Any) -> None:
        behind(allocator).release()

    @status
    def CreateDataTransfer(self, out: Any) -> None:
        out[0] = DataTransfer(self.ort, self.devices.vendor_ids).pointer

    @value(False)
    def IsStreamAware(self) -> bool:
        return True

    @status
    def CreateSyncStreamForDevice(self, device: Any, options: Any, out: Any) -> None:
        number = self.ort.ep_api.MemoryDevice_GetDeviceId(device)
        opener = self._opener(self.devices.by_number(number), EpOptions())
        out[0] = SyncStream(self.ort, memory.acquire(*opener())).pointer

    # ---- an application's own Vulkan objects

    @status
    def CreateExternalResourceImporterForDevice(self, ep_device: Any, out: Any) -> None:
        out[0] = NULL
        from vkep.ort.memory.importer import Importer

        device = self._device_of(ep_device)
        domain = memory.acquire(*self._opener(device, EpOptions())())
        try:
            gpu = domain.context.device
            if any(can_import_memory(gpu, kind) for kind in MEMORY_KINDS) or can_import_semaphore(gpu):
                info, exported = self.devices.memory_info(device), self._interop_of(device).memory_type
                out[0] = Importer(self.ort, ep_device, info, domain, exported).pointer
        finally:
            if out[0] == NULL:
                domain.release()

    @status
    def InitGraphicsInterop(self, ep_device: Any, config: Any) -> None:
        device = self._device_of(ep_device)
        if device.uuid in self._interop:
            raise ValueError(f"graphics interop is initialised already for {device.name}")
        self._interop[device.uuid] = make_interop(device, config, self.ort.pairs(config.additional_options))

    @status
    def DeinitGraphicsInterop(self, ep_device: Any) -> None:
        device = self._device_of(ep_device)
        interop = self._interop.pop(device.uuid, None)
        if interop is None:
            raise ValueError(f"graphics interop is not initialised for {device.name}")
        interop.close()

    def _device_of(self, ep_device: Any) -> DeviceCapabilities:
        return self.devices.by_uuid(metadata_uuid(self.ort, self.ort.api.EpDevice_EpMetadata(ep_device)))

    def _interop_of(self, device: DeviceCapabilities) -> Interop:
        return self._interop.get(device.uuid) or Interop()

    # ---- why not

    @status
    def GetHardwareDeviceIncompatibilityDetails(self, device: Any, details: Any) -> None:
        api = self.ort.api
        ids = (api.HardwareDevice_VendorId(device), api.HardwareDevice_DeviceId(device))
        for refused, problems in self.devices.refused:
            if (refused.vendor_id, refused.device_id) == ids:
                notes = f"{refused.name}: {'; '.join(problems)}"
                self._incompatible(details, _INCOMPATIBLE_DEVICE, notes)
                return
        known = {(d.vendor_id, d.device_id) for d in self.devices.devices}
        metadata = self.ort.pairs(api.HardwareDevice_Metadata(device))
        if ids not in known and "vulkan_uuid" not in metadata:
            notes = "no Vulkan 1.3 driver lists this device; vulkaninfo shows what there is"
            self._incompatible(details, _INCOMPATIBLE_DRIVER, notes)

    def _incompatible(self, details: Any, reasons: int, notes: str) -> None:
        set_details = self.ort.ep_api.DeviceEpIncompatibilityDetails_SetDetails
        self.ort.check(set_details(details, reasons, 0, notes.encode()))

    def _environment(self) -> dict[str, str]:
        return self.ort.take_pairs(self.ort.ep_api.GetEnvConfigEntries)

    def _opener(self, device: DeviceCapabilities, chosen: EpOptions) -> OpenContext:
        def open_context() -> tuple[SharedGpuContext, ArenaConfig | None]:
            session = session_options(device, self._interop_of(device).applied(chosen))
            return resolve_context(session), session.arena_config()

        return open_context


@entry_point("vkep_CreateEpFactories")
def _create_factories(name: Any, base: Any, log: Any, factories: Any, room: int, made: Any) -> None:
    made[0] = 0
    if room < 1:
        raise OrtError("ONNX Runtime has no room for an execution provider's factory")
    ort = Ort(base)
    check_known_answers(ort)
    factories[0] = Factory(ort).pointer
    made[0] = 1


@entry_point("vkep_ReleaseEpFactory")
def _release_factory(factory: Any) -> None:
    released = behind(factory)
    released.registered = False
    released.devices.release_virtual()


def forget_registration() -> None:
    """After ONNX Runtime refused the library, which releases no factory then: another attempt may succeed."""
    for factory in live("OrtEpFactory"):
        factory.registered = False


@entry_point("vkep_RegisterCustomOps")
def _register_custom_operators(options: Any, base: Any) -> None:
    for factory in live("OrtEpFactory"):
        if factory.registered:
            factory.custom.add_to(options)
            return
    raise OrtError("the provider is not registered: call vkep.ort.register() first")


def is_registered() -> bool:
    """Whether ONNX Runtime holds the provider, with or without devices."""
    return any(factory.registered for factory in live("OrtEpFactory"))
