"""Paths of cache files that belong to one device and one driver."""

from __future__ import annotations

import hashlib
from pathlib import Path

from gpu_shared.capabilities import DeviceCapabilities
from vkep.cache import cache_folder


def device_file(caps: DeviceCapabilities, folder: str, suffix: str) -> Path:
    """The path below vkep's cache folder for this device (by UUID) with this version of its driver."""
    return _file(folder, (caps.uuid, caps.driver_name, caps.driver_info, caps.driver_version), suffix)


def model_file(caps: DeviceCapabilities, folder: str, suffix: str) -> Path:
    """As `device_file`, for all devices of the same model: vendor, device number, driver and subgroup size."""
    text = (caps.vendor_id, caps.device_id, caps.driver_name, caps.driver_info, caps.driver_version, caps.subgroup_size)
    return _file(folder, text, suffix)


def _file(folder: str, identity: tuple[object, ...], suffix: str) -> Path:
    digest = hashlib.blake2b(":".join(map(str, identity)).encode(), digest_size=12).hexdigest()
    return cache_folder(folder) / f"{digest}{suffix}"
