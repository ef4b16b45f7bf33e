"""The machine that the figures were measured on."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from tools import vulkan_probe


def cpu_model() -> str:
    """The processor's name, as far as the system reports it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(("model name", "Model")):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def usable_cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cold_environment(folder: str) -> dict[str, str]:
    """Variables that point vkep's caches and the drivers' (Mesa's, NVIDIA's) at an empty folder."""
    names = ("XDG_CACHE_HOME", "MESA_SHADER_CACHE_DIR", "__GL_SHADER_DISK_CACHE_PATH", "VKEP_CACHE_DIR")
    return dict.fromkeys(names, folder)


def machine_info() -> dict[str, Any]:
    """Processor, cores, operating system, Python, and the Vulkan devices with their driver versions."""
    found = vulkan_probe.probe()
    return {
        "cpu": cpu_model(),
        "cores": usable_cores(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "vulkan_devices": [
            f"{device.name} ({device.kind}), Vulkan {'.'.join(map(str, device.api))}, "
            f"driver {'.'.join(map(str, device.driver))}"
            for device in found.devices
        ],
        "vulkan_error": found.error,
    }
