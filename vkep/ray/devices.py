"""The Vulkan device of the GPU that Ray assigned to an actor."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from gpu_shared.capabilities import DeviceInfo
from gpu_shared.errors import DeviceNotFoundError


def assigned_device() -> str | None:
    """The UUID of the Vulkan device that is the GPU assigned to this Ray worker; None where it has none (the session
    then uses `vkep.SessionOptions.device`). Replicas of a service to which Ray assigned no GPU take turns on those of
    their node.

    Ray assigns a UUID, or an index and hides the other GPUs from CUDA in the worker: CUDA's only device is the assigned
    one. Vulkan has the same UUID, whatever the order of either. Raises `DeviceNotFoundError` where Vulkan does not have
    it, or where more than one was assigned.
    """
    ray = sys.modules.get("ray")  # installed with Ray
    if ray is None or not ray.is_initialized():
        return None
    ids = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
    rank = None if ids else _rank_on_node()
    if not ids and rank is None:
        return None
    from gpu_shared.instance import list_devices

    if rank is not None:
        return device_of_rank(rank, list_devices())
    return device_of(ids, list_devices(), Nvidia(os.environ.get("CUDA_VISIBLE_DEVICES")))


def _rank_on_node() -> int | None:
    """The number of this replica among its deployment's on this node, from 0; None where this process is no replica."""
    serve = sys.modules.get("ray.serve")
    if serve is None:
        return None
    try:
        return int(serve.get_replica_context().rank.local_rank)
    except serve.exceptions.RayServeException:  # another process
        return None


def device_of_rank(rank: int, devices: Sequence[DeviceInfo]) -> str | None:
    """The UUID of the device of a replica by its number on the node: the devices of the default one's kind take turns. None
    where there is one alone, or the environment names the device. Raises `DeviceNotFoundError` where none is usable."""
    from gpu_shared.instance import DEVICE_VARIABLE, select_device

    if os.environ.get(DEVICE_VARIABLE, "").strip():
        return None
    kind = select_device(devices).capabilities.device_type
    alike = [d.capabilities.uuid for d in devices if not d.problems and d.capabilities.device_type == kind]
    return alike[rank % len(alike)] if len(alike) > 1 else None


def in_actor() -> bool:
    """Whether this process is an actor of Ray's."""
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized() and ray.get_runtime_context().get_actor_id() is not None


class UnknownOrder(Exception):
    """There is no CUDA driver, or no NVIDIA tool, whose order of devices an index could be of."""


@dataclass(frozen=True)
class Nvidia:
    """The UUIDs of a machine's GPUs from NVIDIA's driver, in the form of `vkep.DeviceCapabilities.uuid`."""

    visible: str | None  #: ``CUDA_VISIBLE_DEVICES`` of this process, None where it is not set

    def cuda(self) -> Sequence[str]:
        """The devices that CUDA sees in this process, in CUDA's order. Raises `UnknownOrder`."""
        from vkep.cuda import CudaError, visible_uuids

        try:
            return visible_uuids()
        except CudaError as error:
            raise UnknownOrder(str(error)) from None

    def all(self) -> Sequence[str]:
        """The machine's devices in the driver's order, which ``CUDA_VISIBLE_DEVICES`` does not change. Raises `UnknownOrder`."""
        command = ["nvidia-smi", "-L"]
        try:
            listed = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
        except (OSError, subprocess.SubprocessError) as error:
            raise UnknownOrder(f"{' '.join(command)}: {error}") from None
        return [
            _digits(found) for found in re.findall(r"^GPU \d+: .*\(UUID: GPU-([0-9a-fA-F-]+)\)", listed, re.MULTILINE)
        ]


def device_of(ids: Sequence[str], devices: Sequence[DeviceInfo], nvidia: Nvidia) -> str:
    """`assigned_device` of the ids that Ray gives: ``GPU-`` and a UUID (or how it begins), or an index.

    An index is one of CUDA's devices, else of the machine's as NVIDIA's driver counts them, else (AMD, Intel) of the GPUs that
    Vulkan can use.
    """
    there = "; ".join(f"{d.index}: {d.name} ({d.capabilities.uuid})" for d in devices) or "none"
    if len(set(ids)) > 1:
        raise _not_found(
            f"this worker has {len(ids)} GPUs, {list(ids)}: ask for one (num_gpus=1) for each actor, and for more actors"
        )
    given = ids[0]
    if given.startswith("MIG-"):
        raise _not_found(f"Ray assigned {given!r}, a part of a GPU (MIG), which Vulkan does not have")
    usable = {d.capabilities.uuid: d for d in devices if not d.problems}
    if given.startswith("GPU-"):
        wanted = _digits(given.removeprefix("GPU-"))
        found = [uuid for uuid in usable if uuid.startswith(wanted)]
    elif given.isdecimal():
        try:
            wanted = _by_index(given, nvidia)
        except UnknownOrder:
            gpus = [uuid for uuid, d in usable.items() if d.capabilities.device_type != "cpu"]
            wanted = f"GPU {given} of {len(gpus)} that can be used"
            found = gpus[int(given) : int(given) + 1]
        else:
            found = [uuid for uuid in usable if uuid == wanted]
    else:
        wanted, found = "none", []
    if len(found) != 1:
        raise _not_found(
            f"Ray assigned {given!r} ({wanted}), which is no usable device of Vulkan here; there are: {there}; "
            "or name the device: device=..."
        )
    return found[0]


def _by_index(given: str, nvidia: Nvidia) -> str:
    """The UUID of an index. Raises `UnknownOrder`, `DeviceNotFoundError`."""
    listed = [entry.strip() for entry in nvidia.visible.split(",")] if nvidia.visible else None
    try:
        order = nvidia.cuda()
        if len(order) == 1:  # Ray hides the others
            return order[0]
        # Ray was configured not to set the variable: its indices are those of the variable, or CUDA's where it is not
        # set
        index = int(given) if listed is None else listed.index(given) if given in listed else len(order)
    except UnknownOrder:
        order, index = nvidia.all(), int(given)
    if index >= len(order):
        raise _not_found(
            f"Ray assigned {given!r}, CUDA_VISIBLE_DEVICES is {nvidia.visible!r}, and NVIDIA's driver has {len(order)} devices: "
            "leave the variable as Ray sets it; or name the device: device=..."
        )
    return order[index]


def _digits(uuid: str) -> str:
    return uuid.replace("-", "").lower()


def _not_found(hint: str) -> DeviceNotFoundError:
    return DeviceNotFoundError("finding the GPU that Ray assigned", hint=hint)
