"""The database of tilings that `vkep tune` measured, one file for each model of device and driver in the cache folder."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path

from gpu_shared.capabilities import DeviceCapabilities
from vkep.cache import read_sealed, write_sealed
from vkep.device.per_device import model_file
from vkep.kernels.tuning import Choice

logger = logging.getLogger("vkep.device")

#: maximum bytes of a file that is read
_LARGEST = 64 << 20


def tuning_path(caps: DeviceCapabilities) -> Path:
    """The file for devices like this one."""
    return model_file(caps, "tuning", ".sealed")


def load_choices(caps: DeviceCapabilities) -> dict[str, Choice]:
    """Load the choices for devices like this one, by problem; empty where there are none. A file that cannot be read is
    logged and counts as empty."""
    path = tuning_path(caps)
    data = read_sealed(path, _LARGEST)
    if data is None:
        return {}
    try:
        stored = json.loads(bytes(data))
        return {str(key): tuple(int(size) for size in choice) for key, choice in stored["choices"].items()}
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        logger.warning("the tuned tilings in %s are not used: %s: %s", path, type(error).__name__, str(error))
        return {}


def save_choices(caps: DeviceCapabilities, choices: Mapping[str, Choice | None]) -> Path:
    """Add choices to the file; None removes one. Raises `OSError`."""
    path = tuning_path(caps)
    merged = {**load_choices(caps), **choices}
    kept = {key: list(choice) for key, choice in sorted(merged.items()) if choice is not None}
    content = {"device": caps.name, "driver": f"{caps.driver_name} {caps.driver_info}".strip(), "choices": kept}
    write_sealed(path, (json.dumps(content, indent=1) + "\n").encode())
    return path
