"""One OrtEpDevice for each Vulkan device, matched to the hardware devices that ONNX Runtime lists."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpu_shared.capabilities import DeviceCapabilities
from gpu_shared.errors import DriverNotFoundError
from gpu_shared.instance import list_devices, select_device
from vkep.ort.boundary import NULL, ffi
from vkep.ort.memory.allocator import CPU, DEFAULT_MEMORY, DEVICE_ALLOCATOR, GPU, HOST_ACCESSIBLE, READ_ONLY_ALLOCATOR
from vkep.ort.names import EP_NAME
from vkep.ort.options import default_uuid

if TYPE_CHECKING:
    from vkep.ort.api import Ort

logger = logging.getLogger("vkep.ort")

#: metadata of an OrtEpDevice that identifies a session's device
UUID_KEY = "vulkan_uuid"
_ALIGNMENT = 0  # the alignment in the device's name only: OrtDevice.make() uses it; the arena aligns to 256 in any case


class EpDevices:
    """The Vulkan devices, their memory infos, and the hardware devices created for those that ONNX Runtime does not
    list."""

    def __init__(self, ort: Ort, factory: Any) -> None:
        self._ort, self._factory = ort, factory
        reason = "the Vulkan drivers list none"
        try:
            infos = list_devices()
        except DriverNotFoundError as error:
            infos, reason = [], str(error)
        if not infos:
            logger.warning("%s has no device: %s", EP_NAME, reason)
        self.devices: list[DeviceCapabilities] = [i.capabilities for i in infos if not i.problems]
        self.refused: list[tuple[DeviceCapabilities, Sequence[str]]] = [
            (i.capabilities, i.problems) for i in infos if i.problems
        ]
        if not self.devices:
            for refused, problems in self.refused:
                logger.warning("%s does not take %s: %s", EP_NAME, refused.name, "; ".join(problems))
        self._memory: dict[str, dict[tuple[int, int], Any]] = {}  # by UUID, kind of allocator and kind of memory
        self._virtual: list[Any] = []
        self.host_memory = ort.get(
            ort.api.CreateMemoryInfo_V2, "OrtMemoryInfo *", b"Cpu", CPU, 0, 0, DEFAULT_MEMORY, 0, 0
        )
        for number, device in enumerate(self.devices):
            kinds = [(DEVICE_ALLOCATOR, DEFAULT_MEMORY), (READ_ONLY_ALLOCATOR, DEFAULT_MEMORY)]
            kinds.append((DEVICE_ALLOCATOR, HOST_ACCESSIBLE))
            self._memory[device.uuid] = {kind: self._memory_info(device, number, *kind) for kind in kinds}

    def announce(self, hardware: Sequence[Any], room: int) -> list[Any]:
        """Create the OrtEpDevices (ONNX Runtime owns them), at most ``room``. Two Vulkan devices of one model match
        two listed hardware devices of that model; the remaining ones, and every CPU driver, get a virtual hardware
        device."""
        ort, api = self._ort, self._ort.api
        free = [h for h in hardware if api.HardwareDevice_Type(h) == GPU]
        made = []
        for device in self.devices[:room]:
            listed = None
            if device.device_type != "cpu":
                ids = (device.vendor_id, device.device_id)
                same = (h for h in free if (api.HardwareDevice_VendorId(h), api.HardwareDevice_DeviceId(h)) == ids)
                listed = next(same, None)
            if listed is None:
                listed = self._virtual_hardware(device)
            else:
                free.remove(listed)
            metadata = {
                UUID_KEY: device.uuid,
                "vulkan_device_name": device.name,
                "vulkan_device_type": device.device_type,
                "vulkan_driver": f"{device.driver_name} {device.driver_info}".strip(),
            }
            with ort.temporary_pairs(metadata) as pairs:
                ep_device = ort.get(ort.ep_api.CreateEpDevice, "OrtEpDevice *", self._factory, listed, pairs, NULL)
            for info in self._memory[device.uuid].values():
                ort.check(ort.ep_api.EpDevice_AddAllocatorInfo(ep_device, info))
            made.append(ep_device)
        return made

    def by_uuid(self, uuid: str) -> DeviceCapabilities:
        """The device with a UUID. Raises `ValueError` where it does not exist."""
        for device in self.devices:
            if device.uuid == uuid:
                return device
        raise ValueError(f"no Vulkan device has the UUID {uuid!r}; there are {[d.uuid for d in self.devices]}")

    def choose(self, uuids: Sequence[str], wanted: str | None = None) -> DeviceCapabilities:
        """Choose the device of a session from those that ONNX Runtime assigned: the one that ``wanted`` names, as
        `vkep.SessionOptions.device`; otherwise, of several (a session that names only the provider is assigned all),
        the one that plain vkep sessions use, or the first.

        Raises `DeviceNotFoundError`, and ``ValueError`` where the named device was not assigned to the session.
        """
        if wanted is not None:
            named = select_device(list_devices(), int(wanted) if wanted.isdecimal() else wanted).capabilities
            if named.uuid not in uuids:
                given = [self.by_uuid(u).name for u in uuids]
                raise ValueError(f"option 'device' is {wanted!r}, {named.name}; the session was given {given}")
            return named
        if len(uuids) == 1:
            return self.by_uuid(uuids[0])
        default = default_uuid()
        chosen = self.by_uuid(default if default in uuids else uuids[0])
        names = [self.by_uuid(u).name for u in uuids]
        logger.info("a session runs on one Vulkan device; of %s it takes %s", names, chosen.name)
        return chosen

    def by_number(self, number: int) -> DeviceCapabilities:
        """The device with a memory info's device id. Raises ``ValueError``."""
        if not 0 <= number < len(self.devices):
            raise ValueError(f"no Vulkan device has the number {number}; there are {len(self.devices)}")
        return self.devices[number]

    def memory_info(
        self, device: DeviceCapabilities, kind: tuple[int, int] = (DEVICE_ALLOCATOR, DEFAULT_MEMORY)
    ) -> Any:
        """The OrtMemoryInfo of a device's memory, by kind of allocator and kind of memory; it lives as long as this
        object."""
        return self._memory[device.uuid][kind]

    @property
    def vendor_ids(self) -> frozenset[int]:
        """PCI vendor ids of the devices."""
        return frozenset(d.vendor_id for d in self.devices)

    def _memory_info(self, device: DeviceCapabilities, number: int, kind: int, memory: int) -> Any:
        return self._ort.get(
            self._ort.api.CreateMemoryInfo_V2,
            "OrtMemoryInfo *",
            b"Vulkan" if memory == DEFAULT_MEMORY else b"VulkanPinned",
            GPU,
            device.vendor_id,
            number,
            memory,
            _ALIGNMENT,
            kind,
        )

    def _virtual_hardware(self, device: DeviceCapabilities) -> Any:
        # the UUID's first bytes distinguish two virtual devices of one model
        number = int(device.uuid[:8], 16) ^ device.device_id
        with self._ort.temporary_pairs({"is_virtual": "1", UUID_KEY: device.uuid}) as pairs:
            made = self._ort.get(
                self._ort.ep_api.CreateHardwareDevice,
                "OrtHardwareDevice *",
                GPU,
                device.vendor_id,
                number & 0xFFFFFFFF,
                device.name.encode(),
                pairs,
            )
        self._virtual.append(made)
        return made

    def release_virtual(self) -> None:
        """Release the virtual devices, after ONNX Runtime has released theirs."""
        for device in self._virtual:
            self._ort.ep_api.ReleaseHardwareDevice(device)
        self._virtual.clear()


def metadata_uuid(ort: Ort, pairs: Any) -> str:
    """The UUID of the device in an OrtEpDevice's metadata."""
    value = ort.api.GetKeyValue(pairs, UUID_KEY.encode())
    return "" if value == NULL else ffi.string(value).decode()
