"""The memory layout of a resource, and the features of a file that vkep does not support."""

from __future__ import annotations

from typing import Any

import numpy as np

from vkep.vgf.records import ITEMSIZE, STORAGE_BUFFER, TENSOR, UNIFORM_BUFFER, InvalidVgfError, Resource, Vgf

Array = np.ndarray[Any, Any]
_BOUND = (TENSOR, STORAGE_BUFFER, UNIFORM_BUFFER)


def dense(resource: Resource) -> tuple[int, ...]:
    """The shape in Vulkan: a scalar has one dimension."""
    return resource.shape or (1,)


def dense_strides(resource: Resource) -> tuple[int, ...]:
    """Bytes from one element to the next along each dimension, without gaps."""
    strides, step = [], resource.nbytes
    for size in resource.shape:
        step //= max(size, 1)
        strides.append(step)
    return tuple(strides)


def strides_of(resource: Resource) -> tuple[int, ...]:
    """The strides in bytes where there are gaps between rows, else none. Raises `InvalidVgfError` for strides that
    VkTensorDescriptionARM's valid usage forbids: elements must be adjacent, and rows must not overlap.
    """
    strides, shape = resource.stride, resource.shape
    if not strides or strides == dense_strides(resource):
        return ()
    item = ITEMSIZE[resource.dtype]
    inner = [item, *(s * n for s, n in zip(reversed(strides), reversed(shape), strict=False))]
    if (
        len(strides) != len(shape)
        or strides[-1] != item
        or any(s % item or s < least for s, least in zip(reversed(strides), inner, strict=False))
    ):
        raise InvalidVgfError(
            f"strides {list(strides)} for {resource.dtype} {list(shape)}; expected one for each dimension, {item} bytes "
            f"the last, and each a multiple of it and at least the dimension inside it: dense are {list(dense_strides(resource))}"
        )
    return strides


def has_gaps(resource: Resource) -> bool:
    """Whether it is a tensor with explicit strides that vkep can bind."""
    try:
        return resource.descriptor_type in (None, TENSOR) and bool(strides_of(resource))
    except InvalidVgfError:
        return False


def memory_bytes(resource: Resource) -> int:
    """Bytes from the first element to the end of the last, including gaps."""
    strides = strides_of(resource)
    return resource.shape[0] * strides[0] if strides else resource.nbytes


def memory_shape(resource: Resource) -> tuple[int, ...]:
    """The shape of a dense tensor over the resource's memory: with gaps, one dimension."""
    return (memory_bytes(resource) // ITEMSIZE[resource.dtype],) if strides_of(resource) else dense(resource)


def to_memory(resource: Resource, array: Array) -> Array:
    """The bytes of a resource (uint8, with the gaps that its strides leave, which are zeros) with the content of
    ``array``, which has its shape and element type."""
    if not strides_of(resource):
        return np.asarray(array, order="C").reshape(dense(resource))
    memory = np.zeros(memory_shape(resource), array.dtype)
    _view(resource, memory)[...] = array
    return memory


def from_memory(resource: Resource, memory: Array) -> Array:
    """The inverse of `to_memory`: an array of the resource's shape and element type from its bytes."""
    return np.array(_view(resource, memory), order="C") if strides_of(resource) else memory


def _view(resource: Resource, memory: Array) -> Array:
    return np.lib.stride_tricks.as_strided(memory, resource.shape, strides_of(resource))


def check_resource(where: str, resource: Resource, gaps: bool = True) -> None:
    """Raise `InvalidVgfError` for a resource that vkep does not bind. ``gaps``: the device supports tensors that are
    not packed."""
    if resource.descriptor_type not in (None, *_BOUND):
        raise InvalidVgfError(
            f"{where} is bound as VkDescriptorType {resource.descriptor_type}; vkep runs tensors and buffers"
        )
    if any(size < 1 for size in resource.shape):
        raise InvalidVgfError(f"{where} has the shape {list(resource.shape)}; sizes are at least 1")
    try:
        strides = strides_of(resource)
    except InvalidVgfError as error:
        raise InvalidVgfError(f"{where} has {error}") from error
    if strides and (resource.category == "constant" or not gaps):
        who = "vkep takes constants" if resource.category == "constant" else "the device takes tensors"
        raise InvalidVgfError(
            f"{where} has strides {list(strides)} for shape {list(resource.shape)}; {who} without gaps"
        )


def unsupported(vgf: Vgf) -> list[str]:
    """A line for each feature that vkep does not run on any device, or that needs data from the caller."""
    lines: dict[str, None] = {}
    for segment in vgf.segments:
        where = f"segment {segment.name!r}"
        for slot in (slot for slots in segment.sets.values() for slot in slots):
            try:
                check_resource(f"{where} binding {slot.binding}", vgf.resources[slot.resource])
            except InvalidVgfError as error:
                lines[str(error)] = None
        module = vgf.modules[segment.module]
        if module.spirv is None and (module.language != "GLSL" or module.source is None):
            what = f"{module.language} source" if module.source is not None else "a placeholder"
            lines[f"{where}: module {module.name!r} is {what}"] = None
        if segment.push_constants:
            lines[f"{where} takes push constants, whose values no file holds"] = None
    return list(lines)
