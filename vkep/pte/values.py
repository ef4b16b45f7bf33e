"""The values of a method: tensors with their place in the memory plan, scalars, lists."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from vkep.errors import InvalidPteError, UnsupportedProgramError
from vkep.pte import schema
from vkep.pte.container import PtdFile, PteFile
from vkep.pte.schema import TensorShapeDynamism

MAX_RANK = 16
_MAX_BYTES = 1 << 48


@dataclass(frozen=True)
class Place:
    """Bytes of an arena. ``arena`` is the number of a planned arena, or -1 - *index* for a value with separate
    storage."""

    arena: int
    offset: int
    nbytes: int

    @property
    def end(self) -> int:
        """The first byte after it."""
        return self.offset + self.nbytes


@dataclass(frozen=True)
class TensorValue:
    """A tensor. ``sizes`` are upper bounds where it is dynamic. Exactly one of ``constant`` and ``place`` is set."""

    index: int
    dtype: np.dtype
    sizes: tuple[int, ...]
    dim_order: tuple[int, ...]
    dynamism: TensorShapeDynamism
    place: Place | None = None
    constant: memoryview | None = field(default=None, repr=False)
    initial: memoryview | None = field(default=None, repr=False)  #: the initial content of a mutable tensor

    @property
    def is_static(self) -> bool:
        """Whether its shape never changes."""
        return self.dynamism is TensorShapeDynamism.STATIC

    @property
    def is_planned(self) -> bool:
        """Whether it has a place in an arena."""
        return self.place is not None and self.place.arena >= 0

    @property
    def is_contiguous(self) -> bool:
        """Whether elements are in row-major order (dimensions of size 1 may have any position)."""
        order = [d for d in self.dim_order if self.sizes[d] != 1]
        return order == sorted(order)

    @property
    def stored_sizes(self) -> tuple[int, ...]:
        """The sizes from the outermost to the innermost dimension of the storage."""
        return self.sizes if self.is_contiguous else tuple(self.sizes[d] for d in self.dim_order)

    def to_stored(self, array: np.ndarray) -> np.ndarray:
        """A view of an array of this tensor's rank, with its dimensions in storage order."""
        return array if self.is_contiguous else array.transpose(self.dim_order)

    def from_stored(self, array: np.ndarray) -> np.ndarray:
        """The inverse of `to_stored`."""
        return array if self.is_contiguous else array.transpose(np.argsort(self.dim_order))

    @property
    def nbytes(self) -> int:
        """Bytes at its largest shape."""
        return math.prod(self.sizes) * self.dtype.itemsize

    def __str__(self) -> str:
        dynamic = "" if self.is_static else " at most" if self.dynamism == TensorShapeDynamism.DYNAMIC_BOUND else " any"
        return f"{self.dtype}{dynamic} {list(self.sizes)}"


@dataclass(frozen=True)
class ListValue:
    """A list of other values (indices of values, -1: None)."""

    items: tuple[int, ...]
    tensors: bool  #: a list of tensors, else of integers


#: the types of a method's values; scalars and lists of floats or bools are Python's own
Value = TensorValue | ListValue | tuple[float, ...] | int | float | bool | str | None


def decode_values(file: PteFile, plan: schema.ExecutionPlan, data: Mapping[str, PtdFile]) -> list[Value]:
    """The values of a method; ``data`` has the external tensors' files by key.

    Raises `InvalidPteError` for data outside the file or the arenas, `UnsupportedProgramError` for tensors of types
    that vkep does not support, or external ones that no data file has.
    """
    values: list[Value] = []
    where = f"{file.name}: method {plan.name!r}"
    missing: list[str] = []
    for index, entry in enumerate(plan.values):
        value = entry.val
        if isinstance(value, schema.Tensor):
            values.append(_tensor(file, plan, index, value, data, f"{where}, value {index}", missing))
        elif isinstance(value, schema.IntList | schema.TensorList | schema.OptionalTensorList):
            least = -1 if isinstance(value, schema.OptionalTensorList) else 0
            numbers = _indices(value.value, plan, f"{where}, list {index}", least)
            values.append(ListValue(numbers, tensors=not isinstance(value, schema.IntList)))
        else:
            values.append(None if value is None or isinstance(value, schema.Null) else value.value)
    if missing:
        lines = "\n  ".join(missing)
        raise UnsupportedProgramError(f"{where} lacks data or types:\n  {lines}", missing)
    for index, item in enumerate(values):
        if isinstance(item, ListValue):
            kinds = TensorValue if item.tensors else (int, float)
            for number in item.items:
                held = values[number] if number >= 0 else None
                if number >= 0 and not isinstance(held, kinds) and not (item.tensors and held is None):
                    raise InvalidPteError(f"{where}, list {index} has value {number}, a {type(held).__name__}")
    return values


def _indices(items: tuple[int, ...], plan: schema.ExecutionPlan, where: str, least: int = 0) -> tuple[int, ...]:
    for number in items:
        if not least <= number < len(plan.values):
            raise InvalidPteError(f"{where} has value {number}; the method has {len(plan.values)}")
    return items


def _tensor(
    file: PteFile,
    plan: schema.ExecutionPlan,
    index: int,
    tensor: schema.Tensor,
    data: Mapping[str, PtdFile],
    where: str,
    missing: list[str],
) -> TensorValue | None:
    dtype = schema.NUMPY.get(tensor.scalar_type)
    if dtype is None:
        missing.append(
            f"{where}: a tensor of {tensor.scalar_type.name}; known: {', '.join(t.name for t in schema.NUMPY)}"
        )
        return None
    sizes, order = tensor.sizes, tensor.dim_order or tuple(range(len(tensor.sizes)))
    if len(sizes) > MAX_RANK or any(s < 0 for s in sizes):
        raise InvalidPteError(f"{where}: sizes {sizes}, expected at most {MAX_RANK}, none negative")
    if sorted(order) != list(range(len(sizes))):
        raise InvalidPteError(f"{where}: its order of dimensions is {order} for {len(sizes)} dimensions")
    nbytes = math.prod(sizes) * dtype.itemsize
    if nbytes > _MAX_BYTES or tensor.storage_offset != 0:
        raise InvalidPteError(f"{where}: {nbytes} bytes at storage offset {tensor.storage_offset}")
    made = TensorValue(index, dtype, sizes, order, tensor.shape_dynamism)
    extra, allocation = tensor.extra_tensor_info, tensor.allocation_info
    if extra is not None and extra.device_type is not schema.DeviceType.CPU:
        missing.append(
            f"{where}: it is to lie on {extra.device_type.name}; vkep places tensors itself only for its delegates"
        )
        return None
    view: memoryview | None = None
    if extra is not None and extra.location is schema.TensorDataLocation.EXTERNAL:
        view = _external(extra.fully_qualified_name, made, data, where, missing)
    elif tensor.data_buffer_idx > 0:
        if allocation is None:
            view = file.constant(tensor.data_buffer_idx, nbytes)
        else:
            segment = extra.mutable_data_segments_idx if extra is not None else 0
            view = file.initial(segment, tensor.data_buffer_idx, nbytes)
    if allocation is None and view is not None:
        return _with(made, constant=view)
    if allocation is None:
        return _with(made, place=Place(-1 - index, 0, nbytes))
    place = Place(allocation.memory_id, allocation.offset, nbytes)
    arenas = plan.non_const_buffer_sizes
    if not 1 <= place.arena < len(arenas) or place.end > arenas[place.arena]:
        size = arenas[place.arena] if 1 <= place.arena < len(arenas) else "none"
        raise InvalidPteError(
            f"{where}: {nbytes} bytes at {place.offset} of arena {place.arena}, whose size is {size} "
            f"(the method has arenas 1 to {len(arenas) - 1})"
        )
    return _with(made, place=place, initial=view)


def _with(
    made: TensorValue,
    place: Place | None = None,
    constant: memoryview | None = None,
    initial: memoryview | None = None,
) -> TensorValue:
    return TensorValue(made.index, made.dtype, made.sizes, made.dim_order, made.dynamism, place, constant, initial)


def _external(
    key: str, tensor: TensorValue, data: Mapping[str, PtdFile], where: str, missing: list[str]
) -> memoryview | None:
    file = data.get(key)
    if file is None:
        missing.append(f"{where}: its data {key!r} is in none of the data files given (.ptd)")
        return None
    layout = file.layouts.get(key)
    if layout is not None:
        got = (schema.NUMPY.get(layout.scalar_type), tuple(layout.sizes))
        if got != (tensor.dtype, tensor.sizes):
            raise InvalidPteError(f"{where} is {tensor}; {file.name} has {key!r} as {got[0]} {list(got[1])}")
    view = file.named_data[key]
    if len(view) < tensor.nbytes:
        raise InvalidPteError(f"{where} takes {tensor.nbytes} bytes; {file.name} has {len(view)} of {key!r}")
    return view[: tensor.nbytes]
