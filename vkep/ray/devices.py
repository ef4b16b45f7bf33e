"""The Vulkan device of the GPU that Ray assigned to an actor."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence

from gpu_shared.capabilities import DeviceInfo
from gpu_shared.errors import DeviceNotFoundError


def assigned_device() -> str | None:
    """The UUID of the Vulkan device that is the GPU assigned to this Ray worker; None where it has none (the session
    then uses `vkep.SessionOptions.device`).

    Ray hides the other GPUs from CUDA in the worker, so CUDA's first device is the assigned one: Vulkan has the same
    UUID, whatever the order of either. Raises `DeviceNotFoundError` where Vulkan does not have it, or where more than
    one was assigned.
    """
    ray = sys.modules.get("ray")  # installed with Ray
    if ray is None or not ray.is_initialized():
        return None
    ids = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
    if not ids:
        return None
    from gpu_shared.instance import list_devices

    return device_of(ids, _cuda_uuids, list_devices())


def in_actor() -> bool:
    """Whether this process is an actor of Ray's."""
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized() and ray.get_runtime_context().get_actor_id() is not None


def device_of(ids: Sequence[str], cuda: Callable[[], Sequence[str]], devices: Sequence[DeviceInfo]) -> str:
    """`assigned_device` for the ids that Ray assigned (an index of the vendor's runtime, or ``GPU-`` and a UUID);
    ``cuda`` returns the UUIDs of CUDA's visible devices, or raises without CUDA."""
    there = "; ".join(f"{d.index}: {d.name} ({d.capabilities.uuid})" for d in devices) or "none"
    if len(set(ids)) > 1:
        raise DeviceNotFoundError(
            "finding the GPU that Ray assigned",
            hint=f"this worker has {len(ids)} GPUs, {list(ids)}: ask for one (num_gpus=1) for each actor, and for more actors",
        )
    named = re.fullmatch(r"GPU-([0-9a-fA-F-]{32,36})", ids[0])
    if named is not None:
        wanted = named[1].replace("-", "").lower()
    else:
        from vkep.cuda import CudaError

        try:
            visible = list(cuda())
        except CudaError:
            return _by_order(ids[0], devices, there)
        if len(visible) != 1:
            raise DeviceNotFoundError(
                "finding the GPU that Ray assigned",
                hint=f"CUDA sees {len(visible)} devices where Ray assigned {ids[0]!r}: CUDA_VISIBLE_DEVICES must be left as "
                "Ray sets it (RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES unset); or name the device: device=...",
            )
        wanted = visible[0]
    for device in devices:
        if device.capabilities.uuid == wanted and not device.problems:
            return wanted
    raise DeviceNotFoundError(
        "finding the GPU that Ray assigned",
        hint=f"Ray assigned {ids[0]!r} (UUID {wanted}), which is no usable device of Vulkan here; there are: {there}",
    )


def _by_order(given: str, devices: Sequence[DeviceInfo], there: str) -> str:
    """Without CUDA (AMD, Intel): the GPUs that Vulkan can use, in its own order."""
    usable = [d for d in devices if not d.problems and d.capabilities.device_type != "cpu"]
    if given.isdecimal() and int(given) < len(usable):
        return usable[int(given)].capabilities.uuid
    raise DeviceNotFoundError(
        "finding the GPU that Ray assigned",
        hint=f"Ray assigned {given!r}, and Vulkan has {len(usable)} GPUs that can be used: name the device (device=...); "
        f"there are: {there}",
    )


def _cuda_uuids() -> Sequence[str]:
    from vkep.cuda import visible_uuids

    return visible_uuids()
