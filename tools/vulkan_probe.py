"""The devices of the machine's Vulkan loader. Needs only the standard library.

`tools/setup.sh` asks it before and after installing packages; a person can run it to see why no device is found:

    python3 tools/vulkan_probe.py            # a few readable lines, exit code 1 when no usable device is found
    python3 tools/vulkan_probe.py --json
    python3 tools/vulkan_probe.py --check gpu   # only an exit code: loader, device, gpu, validation or current-driver

Struct layouts: Vulkan 1.3 specification, VkInstanceCreateInfo, VkPhysicalDeviceProperties and VkLayerProperties.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
from dataclasses import asdict, dataclass, field

NEEDED_API = (1, 3)  # SPIR-V 1.6
CURRENT_LAVAPIPE_API = (1, 4)  # lavapipe offers 1.4 from Mesa 25 on; older ones work, several times slower
DEVICE_TYPES = {0: "other", 1: "integrated GPU", 2: "discrete GPU", 3: "virtual GPU", 4: "CPU"}
VALIDATION_LAYER = "VK_LAYER_KHRONOS_validation"
LIBRARIES = {"win32": "vulkan-1.dll", "darwin": "libvulkan.1.dylib"}


class _ApplicationInfo(ctypes.Structure):
    _fields_ = [
        ("s_type", ctypes.c_uint32),
        ("next", ctypes.c_void_p),
        ("application_name", ctypes.c_char_p),
        ("application_version", ctypes.c_uint32),
        ("engine_name", ctypes.c_char_p),
        ("engine_version", ctypes.c_uint32),
        ("api_version", ctypes.c_uint32),
    ]


class _InstanceCreateInfo(ctypes.Structure):
    _fields_ = [
        ("s_type", ctypes.c_uint32),
        ("next", ctypes.c_void_p),
        ("flags", ctypes.c_uint32),
        ("application_info", ctypes.POINTER(_ApplicationInfo)),
        ("layer_count", ctypes.c_uint32),
        ("layer_names", ctypes.c_void_p),
        ("extension_count", ctypes.c_uint32),
        ("extension_names", ctypes.c_void_p),
    ]


class _LayerProperties(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char * 256),
        ("spec_version", ctypes.c_uint32),
        ("implementation_version", ctypes.c_uint32),
        ("description", ctypes.c_char * 256),
    ]


class _DeviceProperties(ctypes.Structure):
    _fields_ = [
        ("api_version", ctypes.c_uint32),
        ("driver_version", ctypes.c_uint32),
        ("vendor_id", ctypes.c_uint32),
        ("device_id", ctypes.c_uint32),
        ("device_type", ctypes.c_uint32),
        ("name", ctypes.c_char * 256),
        ("rest", ctypes.c_uint8 * 1024),  # pipeline cache UUID, limits and sparse properties: 548 bytes, not read
    ]


@dataclass
class Device:
    """One physical device; versions as (major, minor, patch), `driver` by Vulkan's usual packing."""

    name: str
    kind: str
    api: tuple[int, int, int]
    driver: tuple[int, int, int]

    @property
    def usable(self) -> bool:
        return self.api[:2] >= NEEDED_API

    @property
    def is_gpu(self) -> bool:
        return self.usable and self.kind.endswith("GPU")

    @property
    def is_old_lavapipe(self) -> bool:
        return self.name.startswith("llvmpipe") and self.api[:2] < CURRENT_LAVAPIPE_API


@dataclass
class Probe:
    """The result of a probe; `error` is the reason where there is no device."""

    loader: bool = False
    validation: bool = False
    devices: list[Device] = field(default_factory=list)
    error: str | None = None

    def check(self, what: str) -> bool:
        """Answer one of the questions of `--check`."""
        usable = [device for device in self.devices if device.usable]
        return {
            "loader": self.loader,
            "validation": self.validation,
            "device": bool(usable),
            "gpu": any(device.is_gpu for device in usable),
            "current-driver": any(not device.is_old_lavapipe for device in usable),
        }[what]


def _version(packed: int) -> tuple[int, int, int]:
    return (packed >> 22) & 0x7F, (packed >> 12) & 0x3FF, packed & 0xFFF


def probe() -> Probe:
    """Load the Vulkan loader and list layers and devices. Never raises: errors are in `Probe.error`."""
    found = Probe()
    library = next((name for prefix, name in LIBRARIES.items() if sys.platform.startswith(prefix)), "libvulkan.so.1")
    try:
        vulkan = ctypes.CDLL(library)
    except OSError as failure:
        found.error = f"the Vulkan loader cannot be loaded: {failure}"
        return found
    found.loader = True

    count = ctypes.c_uint32()
    vulkan.vkEnumerateInstanceLayerProperties(ctypes.byref(count), None)
    layers = (_LayerProperties * count.value)()
    vulkan.vkEnumerateInstanceLayerProperties(ctypes.byref(count), layers)
    found.validation = any(layer.name.decode(errors="replace") == VALIDATION_LAYER for layer in layers)

    application = _ApplicationInfo(0, None, b"vulkan_probe", 0, None, 0, (1 << 22) | (3 << 12))
    info = _InstanceCreateInfo(1, None, 0, ctypes.pointer(application), 0, None, 0, None)
    instance = ctypes.c_void_p()
    result = vulkan.vkCreateInstance(ctypes.byref(info), None, ctypes.byref(instance))
    if result:
        meaning = {-9: "VK_ERROR_INCOMPATIBLE_DRIVER: no driver that works was found"}.get(result, f"VkResult {result}")
        found.error = f"vkCreateInstance failed: {meaning}"
        return found
    try:
        vulkan.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), None)
        handles = (ctypes.c_void_p * count.value)()
        result = vulkan.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), handles)
        if result < 0:
            found.error = f"vkEnumeratePhysicalDevices failed: VkResult {result}"
            return found
        for handle in handles[: count.value]:
            raw = _DeviceProperties()
            vulkan.vkGetPhysicalDeviceProperties(ctypes.c_void_p(handle), ctypes.byref(raw))
            kind = DEVICE_TYPES.get(raw.device_type, "other")
            name = raw.name.decode(errors="replace")
            found.devices.append(Device(name, kind, _version(raw.api_version), _version(raw.driver_version)))
    finally:
        vulkan.vkDestroyInstance(instance, None)
    if not any(device.usable for device in found.devices):
        found.error = f"no device offers Vulkan {NEEDED_API[0]}.{NEEDED_API[1]} (found {len(found.devices)} devices)"
    return found


def main(arguments: list[str] | None = None) -> int:
    """Print the probe, or answer one question by the exit code."""
    parser = argparse.ArgumentParser(description="Show what the machine's Vulkan loader sees.")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--check", choices=["loader", "device", "gpu", "validation", "current-driver"])
    options = parser.parse_args(arguments)
    found = probe()
    if options.check:
        return 0 if found.check(options.check) else 1
    if options.json:
        print(json.dumps(asdict(found), indent=2))
    else:
        print(f"loader: {'yes' if found.loader else 'no'}, validation layer: {'yes' if found.validation else 'no'}")
        for device in found.devices:
            api, driver = (".".join(map(str, version)) for version in (device.api, device.driver))
            print(f"device: {device.name} ({device.kind}), Vulkan {api}, driver {driver}")
        if found.error:
            print(found.error, file=sys.stderr)
    return 0 if found.check("device") else 1


if __name__ == "__main__":
    sys.exit(main())
