"""Waits before memory or objects are freed that the GPU may use."""

from __future__ import annotations

import time
from collections.abc import Callable

from gpu_shared.errors import DeviceLostError, GpuError, OutOfDeviceMemoryError, OutOfHostMemoryError

#: seconds before each attempt in `until_done`
_PAUSES = (0.0, 0.0, 0.001, 0.01, 0.1, 1.0)


def until_done(wait: Callable[[], object]) -> None:
    """Call ``wait`` until it succeeds: a wait that failed for lack of memory has waited for nothing. A lost device has
    finished. Raises the last `GpuError` where it keeps failing: the objects in use must stay then."""
    failed: GpuError
    for pause in _PAUSES:
        if pause:  # to sleep for no time lets other threads run first
            time.sleep(pause)
        try:
            wait()
        except DeviceLostError:
            return
        except (OutOfHostMemoryError, OutOfDeviceMemoryError) as error:
            failed = error
        else:
            return
    raise failed
